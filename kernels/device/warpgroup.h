// SPDX-License-Identifier: Apache-2.0
// Matrix products of four waves with operands in shared memory (wgmma), for NVIDIA GPUs of sm_90a
// alone, and on simt with 32 lanes. Meanings: device/dialect.md, "sm_90a only".
#pragma once

#include "device/nvidia.h"

namespace device {

// A tile of 64 rows of halves, in blocks of 64 columns (128 bytes) which follow each other. The
// chunks of 16 bytes of a row are permuted by the row. Tiles begin at multiples of 1024 bytes.
inline constexpr int kTileRows = 64, kTileBlockBytes = kTileRows * 128;
DEVICE_FUNCTION constexpr int tile_at(int row, int chunk) {
  return chunk / 8 * kTileBlockBytes + row * 128 + (chunk % 8 ^ row % 8) * 16;
}

}  // namespace device

#include "backend_warpgroup.h"
