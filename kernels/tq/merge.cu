// SPDX-License-Identifier: Apache-2.0
// tq.merge: the partial results of a split decode into one. A block takes a head of a sequence;
// each of its waves finds the weights of all splits again, one a lane, so that no wave waits for
// another and the first partial outputs are on their way meanwhile: what counts here is latency.
#include "device/launch.h"
#include "device/op.h"
#include "tq/merge.h"
#include "tq/split_merge.h"

namespace tq::merge {

inline constexpr int kMostThreads = 256;
inline constexpr int kBatch = 16;  // partial outputs in flight

struct Weights {
  float most, total;
  bool broken;  // a NaN or +inf lse: the maximum alone would drop the NaN
};

DEVICE_FUNCTION Weights weigh(const float* lses, int64_t step, int64_t used) {
  Weights w{-device::infinity(), 0, false};
  for (int64_t s = device::lane(); s < used; s += device::kWave) {
    const float lse = lses[s * step];
    w.broken = w.broken || device::isnan(lse) || lse == device::infinity();
    w.most = device::max(w.most, lse);
  }
  w.most = device::wave_max(w.most);
  w.broken = device::any(w.broken);
  return w;
}

DEVICE_KERNEL(kMostThreads) merge_splits(MergeParams p) {
  const int64_t pair = device::block_x(), head = pair % p.heads, row = pair / p.heads;
  int64_t tokens = load_index(p.seq_lens.data, p.seq_lens.dtype, row * p.seq_lens.stride[0]);
  if (tokens > p.capacity) tokens = p.capacity;
  const int64_t used = used_splits(tokens, p.splits);
  const float* partial = p.partial + row * p.stride[0] + head * p.stride[1];
  const float* lses = partial + p.head_dim * p.stride[3];
  const int64_t step = p.stride[2];

  // All lanes of a wave stay: they share the weights.
  for (int base = device::wave() * device::kWave; base < p.head_dim; base += device::threads()) {
    const int d = base + device::lane();
    const bool mine = d < p.head_dim;
    const float* from = partial + (mine ? d : 0) * p.stride[3];
    float ahead[kBatch];
    DEVICE_UNROLL
    for (int i = 0; i < kBatch; ++i) ahead[i] = i < used ? from[i * step] : 0;
    Weights w = weigh(lses, step, used);

    float sum = 0;
    for (int64_t first = 0; first < used; first += device::kWave) {
      const int64_t s = first + device::lane();
      const float lse = s < used ? lses[s * step] : -device::infinity();
      // Of a split with lse -inf: its partial may be garbage. Below 0: not to be added.
      const float weight = lse > -device::infinity() ? device::exp(lse - w.most) : -1.0f;
      w.total += device::wave_sum(device::max(weight, 0.0f));
      const int count =
          static_cast<int>(used - first < device::kWave ? used - first : int64_t{device::kWave});
      for (int begin = 0; begin < count; begin += kBatch) {
        DEVICE_UNROLL
        for (int i = 0; i < kBatch; ++i) {
          if (begin + i >= count) break;
          const float one = device::shuffle(weight, begin + i);
          if (one >= 0) sum += one * ahead[i];
        }
        DEVICE_UNROLL
        for (int i = 0; i < kBatch; ++i) {
          const int64_t next = first + begin + kBatch + i;
          ahead[i] = next < used ? from[next * step] : 0;
        }
      }
    }
    float output = 0, lse = -device::infinity();
    if (w.broken) {
      output = lse = device::nan();
    } else if (w.most > -device::infinity()) {
      output = device::divide(sum, w.total);
      lse = w.most + device::log(w.total);
    }
    if (!mine) continue;
    store_float(p.output.data, p.output.dtype,
                row * p.output.stride[0] + head * p.output.stride[1] + d * p.output.stride[2],
                output);
    if (d == 0)
      store_float(p.lse.data, TK_F32, row * p.lse.stride[0] + head * p.lse.stride[1], lse);
  }
}

struct Merge {
  static constexpr const toolkit::Contract& contract = merge::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    const TensorView mid = call.tensor("mid_o");
    const MergeParams p{mid.data<float>(),
                        {mid.stride(0), mid.stride(1), mid.stride(2), mid.stride(3)},
                        strided<1>(call.tensor("seq_lens")),
                        INT64_MAX,
                        strided<3>(call.tensor("output")),
                        strided<2>(call.tensor("lse")),
                        mid.size(1),
                        splits(call.args),
                        static_cast<int>(mid.size(3) - 1),
                        mid.size(0) * mid.size(1) * (mid.size(3) - 1)};
    if (p.items == 0) return;
    const int waves = (p.head_dim + device::kWave - 1) / device::kWave * device::kWave;
    device::launch(merge_splits, device::Grid{mid.size(0) * mid.size(1), 1, 1},
                   waves < kMostThreads ? waves : kMostThreads, 0, call.stream, p);
  }
};

DEVICE_OP(Merge)

}  // namespace tq::merge
