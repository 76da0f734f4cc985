// SPDX-License-Identifier: Apache-2.0
// device/warpgroup.h on the host. Products are done where they are issued: each wave has 16 of the
// 64 rows, as on the GPU.
#pragma once

namespace device {

inline void fence_async_copies() {}
inline void products_begin() {}
inline void products_commit() {}
template <int kOpen, int kSize>
void products_wait(float (&)[kSize]) {}

inline uint32_t half_of_tile(SharedAddress tile, int row, int column) {
  uint16_t half;
  std::memcpy(&half,
              reinterpret_cast<const char*>(tile) + tile_at(row, column / 8) + column % 8 * 2, 2);
  return half;
}
template <class T, bool kAdd>
void multiply_64x64x16(float (&d)[32], SharedAddress a_tile, SharedAddress b_tile, int k,
                       Site site = Site::current()) {
  const int row = wave() % 4 * 16 + lane() / 4, member = lane() % 4;
  uint32_t a[4];
  for (int i = 0; i < 4; ++i) {
    const int at = k * 16 + member * 2 + i / 2 * 8;
    a[i] = half_of_tile(a_tile, row + i % 2 * 8, at) | half_of_tile(a_tile, row + i % 2 * 8, at + 1)
                                                           << 16;
  }
  for (int j = 0; j < 8; ++j) {
    uint32_t b[2];
    for (int i = 0; i < 2; ++i) {
      const int at = k * 16 + member * 2 + i * 8, column = j * 8 + lane() / 4;
      b[i] = half_of_tile(b_tile, column, at) | half_of_tile(b_tile, column, at + 1) << 16;
    }
    float part[4] = {};
    if (kAdd) std::memcpy(part, d + 4 * j, sizeof(part));
    multiply_16x8x16<T>(part, a, b, site);
    std::memcpy(d + 4 * j, part, sizeof(part));
  }
}
template <class T>
void multiply_64x256x16(float (&d)[128], const uint32_t (&weights)[16], SharedAddress b_tile, int k,
                        Site site = Site::current()) {
  const int member = lane() % 4;
  const uint32_t a[4] = {weights[4 * k], weights[4 * k + 1], weights[4 * k + 2],
                         weights[4 * k + 3]};
  for (int j = 0; j < 32; ++j) {
    uint32_t b[2];
    for (int i = 0; i < 2; ++i) {
      const int at = k * 16 + member * 2 + i * 8, column = j * 8 + lane() / 4;
      b[i] = half_of_tile(b_tile, at, column) | half_of_tile(b_tile, at + 1, column) << 16;
    }
    float part[4];
    std::memcpy(part, d + 4 * j, sizeof(part));
    multiply_16x8x16<T>(part, a, b, site);
    std::memcpy(d + 4 * j, part, sizeof(part));
  }
}

}  // namespace device
