// SPDX-License-Identifier: Apache-2.0
// qsa.topk: one block a row. Four histogram passes over ordered 32-bit keys find the k-th largest
// key exactly; then each wave compacts its own range of columns in order. There is no candidate
// buffer that could overflow: however many scores share a bin, every pass reads the row again.
#include "qsa/launches.h"
#include "qsa/topk.h"

namespace qsa {
namespace {

constexpr int kMaxThreads = 1024, kFewThreads = 256;
constexpr int64_t kManyColumns = 8192;  // from here on a block has all its threads
constexpr int kBins = 256, kDigitBits = 8;
constexpr int kMaxWaves = 32;

// Larger score, larger key; NaN below -inf, both zeros equal.
DEVICE_FUNCTION uint32_t key_of(float score) {
  if (device::isnan(score)) return 0;
  if (score == 0.0f) return 0x80000000u;
  const uint32_t bits = device::bit_cast<uint32_t>(score);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Row {
  const float* scores;
  int64_t stride, count;
};

DEVICE_FUNCTION uint32_t key_at(const Row& row, int64_t column) {
  return key_of(row.scores[column * row.stride]);
}

// Counts the digits at `shift` of the keys that agree with `found` above it. The lanes that share
// the first such lane's digit are added at once: rows of equal scores would else queue for one bin.
template <class Bins>
DEVICE_FUNCTION void count_digits(Bins& bins, const Row& row, uint32_t found, int shift) {
  const uint32_t above = shift + kDigitBits < 32 ? ~uint32_t{0} << (shift + kDigitBits) : 0;
  for (int64_t base = device::wave() * device::kWave; base < row.count; base += device::threads()) {
    const int64_t column = base + device::lane();
    const uint32_t key = column < row.count ? key_at(row, column) : 0;
    const bool counts = column < row.count && (key & above) == (found & above);
    const uint32_t digit = key >> shift & (kBins - 1);
    const device::LaneMask counting = device::ballot(counts);
    if (!counting) continue;
    const int leader = device::first_lane(counting);
    const uint32_t leading = device::shuffle(digit, leader);
    const device::LaneMask same = device::ballot(counts && digit == leading);
    if (device::lane() == leader)
      device::atomic_add(&bins[leading], uint32_t(device::popcount(same)));
    else if (counts && digit != leading)
      device::atomic_add(&bins[digit], 1u);
  }
}

// By one wave: the digit of the wanted-th largest key, and how many are still wanted within that
// digit's bin.
template <class Bins, class Choice>
DEVICE_FUNCTION void choose_digit(Bins& bins, Choice& choice, uint32_t wanted) {
  constexpr int kPerLane = kBins / device::kWave;
  const int top = kBins - 1 - device::lane() * kPerLane;  // lane 0 has the largest digits
  uint32_t own = 0;
  for (int i = 0; i < kPerLane; ++i) own += bins[top - i];
  uint32_t through = own;
  for (int step = 1; step < device::kWave; step *= 2) {
    const uint32_t lower = device::shuffle_up(through, step);
    if (device::lane() >= step) through += lower;
  }
  uint32_t before = through - own;
  if (before >= wanted || wanted > through) return;
  int digit = top;
  while (before + bins[digit] < wanted) before += bins[digit--];
  choice[0] = uint32_t(digit);
  choice[1] = wanted - before;
}

DEVICE_KERNEL(kMaxThreads) topk_kernel(TopkParams p) {
  DEVICE_SHARED(uint32_t, bins, kBins);
  DEVICE_SHARED(uint32_t, choice, 2);
  DEVICE_SHARED(uint32_t, wave_above, kMaxWaves);
  DEVICE_SHARED(uint32_t, wave_equal, kMaxWaves);
  const int64_t at = device::block_x(), k = p.blocks.size[1];
  const Row row{element<const float>(p.logits, at), p.logits.stride[1],
                smaller(larger(load_index(p.visible, at), 0), p.logits.size[1])};
  if (row.count <= k) {
    for (int64_t j = device::thread(); j < k; j += device::threads())
      *element<int32_t>(p.blocks, at, j) = j < row.count ? int32_t(j) : -1;
    return;
  }

  uint32_t limit = 0, wanted = uint32_t(k);  // k < count <= 2^31
  for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (int i = device::thread(); i < kBins; i += device::threads()) bins[i] = 0;
    device::sync_block();
    count_digits(bins, row, limit, shift);
    device::sync_block();
    if (device::wave() == 0) choose_digit(bins, choice, wanted);
    device::sync_block();
    limit |= choice[0] << shift;
    wanted = choice[1];
  }

  // All keys above the limit are in, and the first `wanted` that equal it.
  const int64_t share = (row.count + device::waves() - 1) / device::waves();
  const int64_t begin = smaller(device::wave() * share, row.count),
                end = smaller(begin + share, row.count);
  uint32_t above = 0, equal = 0;
  for (int64_t column = begin + device::lane(); column < end; column += device::kWave) {
    const uint32_t key = key_at(row, column);
    above += key > limit;
    equal += key == limit;
  }
  above = device::wave_sum(above);
  equal = device::wave_sum(equal);
  if (device::lane() == 0) {
    wave_above[device::wave()] = above;
    wave_equal[device::wave()] = equal;
  }
  device::sync_block();
  above = equal = 0;
  for (int w = 0; w < device::wave(); ++w) {
    above += wave_above[w];
    equal += wave_equal[w];
  }
  int64_t next = above + (equal < wanted ? equal : wanted);
  for (int64_t base = begin; base < end; base += device::kWave) {
    const int64_t column = base + device::lane();
    const uint32_t key = column < end ? key_at(row, column) : 0;
    const bool ties = column < end && key == limit;
    const device::LaneMask tied = device::ballot(ties);
    const bool wins =
        ties && equal + uint32_t(device::popcount(tied & device::lanes_below())) < wanted;
    const bool in = wins || (column < end && key > limit);
    const device::LaneMask taken = device::ballot(in);
    if (in)
      *element<int32_t>(p.blocks, at, next + device::popcount(taken & device::lanes_below())) =
          int32_t(column);
    next += device::popcount(taken);
    equal += uint32_t(device::popcount(tied));
  }
}

struct Topk {
  static constexpr const toolkit::Contract& contract = topk::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    TopkParams p{};
    p.logits = tensor_of<2>(call.tensor("logits"));
    p.visible = tensor_of<1>(call.tensor("visible_blocks"));
    p.blocks = tensor_of<2>(call.tensor("block_indices"));
    launch_topk(p, call.stream);
  }
};
DEVICE_OP(Topk)

}  // namespace

void launch_topk(const TopkParams& p, void* stream) {
  const int64_t rows = p.logits.size[0];
  if (rows == 0) return;
  const int threads = p.logits.size[1] >= kManyColumns ? kMaxThreads : kFewThreads;
  device::launch(topk_kernel, blocks(rows), threads, 0, stream, p);
}

}  // namespace qsa
