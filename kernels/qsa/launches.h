// SPDX-License-Identifier: Apache-2.0
// The launches behind the ops, as plain structs and functions: an op's run() fills one, composed
// ops (select, step) fill several. Each is defined in the .cu of its op; all enqueue on the stream
// and return. Zero rows launch nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "device/launch.h"
#include "device/op.h"
#include "qsa/common.h"
#include "qsa/divider.h"
#include "toolkit/dtype.h"

namespace qsa {

// A tuned kernel beside an op's portable one. Its file (attend_sm_80.cu) fills this while the
// plugin is loaded; a build without that file leaves it empty. Both functions throw
// device::Unsupported, before anything is launched, for calls that the kernel does not serve. Each
// is defined beside the portable kernel.
template <class Params>
struct Launch {
  void (*plan)(const Params& p, device::Carver& carver);
  void (*launch)(const Params& p, device::Carver& carver, void* stream);
};

struct CompressParams {
  Tensor<3> raw_keys, raw_positions;  // [R,1,D], [R,1,3]
  Tensor<4> ring, rope;               // [B,S,1,D], [B,S,1,3]; rope.data is null where there is none
  Tensor<2> ring_table;               // [>=N, >=1], column 0
  Tensor<1> token_to_req, query_start_loc, positions, slots;
  Tensor<3> pooled;           // [R,1,D]
  Tensor<2> first_positions;  // [R,3]
  int64_t ratio;
  float inverse;  // these three are set by the launch
  bool few_requests;
  int lanes_log2;
};
CompressParams compress_params(const toolkit::Args& args);
void launch_compress(const CompressParams& p, void* stream);  // by the tuned kernel where it serves
extern Launch<CompressParams> tuned_compress;

inline constexpr int kMaxSlotRank = 8;
struct StoreParams {
  Tensor<4> cache;             // [P,S,1,W]
  Tensor<2> rows;              // [n,W]
  Tensor<kMaxSlotRank> slots;  // any rank, leading dimensions of 1 added
  bool finds_owners;           // many rows
  uint32_t* owner;             // [P*S]: 1 + the last row of each slot; defined for slots in use
  int lanes_log2;              // set by the launch
};
StoreParams store_params(const toolkit::TensorView& cache, const toolkit::TensorView& slots,
                         const toolkit::TensorView& rows, device::Carver& carver);
void launch_store(const StoreParams& p, void* stream);

struct ScoreParams {
  Tensor<3> q;           // [R,H,D]
  Tensor<4> k_cache;     // [P,S,1,D]
  Tensor<2> page_table;  // [N,W]
  Tensor<1> token_to_req, positions, lengths;
  Tensor<2> logits;   // [R,columns]
  Tensor<1> visible;  // [R]
  int64_t ratio;
  float divisor;
  bool fill;  // write -inf beyond the visible columns; select reads only what is visible
};
ScoreParams score_params(const toolkit::Args& args);
void launch_score(const ScoreParams& p, void* stream);   // by a tuned kernel where one serves p
extern Launch<ScoreParams> tuned_score, score_of_pages;  // score_of_pages is asked first

struct TopkParams {
  Tensor<2> logits;   // [R,columns]
  Tensor<1> visible;  // [R]
  Tensor<2> blocks;   // [R,k]; without data where only the expanded indices are wanted
  int64_t k;
  bool eager;  // set by the launch
};
void plan_topk(const TopkParams& p, device::Carver& carver);  // room that long rows need
void launch_topk(const TopkParams& p, device::Carver& carver, void* stream);

struct ExpandParams {
  Tensor<2> blocks;  // [R,K]
  Tensor<1> positions, lengths, token_to_req;
  Tensor<2> indices;  // [R,K*ratio+ratio-1]
  int64_t ratio;
  Divider by_ratio{1};  // set by the launch
};
void launch_expand(const ExpandParams& p, void* stream);
ExpandParams with_divider(ExpandParams p);  // for whoever writes a row's tokens

// Both in one launch, where can_expand says so. expand.blocks is not looked at.
bool can_expand(int64_t k, const ExpandParams& expand);
void launch_topk_expand(const TopkParams& topk, const ExpandParams& expand, device::Carver& carver,
                        void* stream);

struct MergeParams {
  Tensor<4> partial;     // [splits,R,Hq,D]
  Tensor<3> lse;         // [splits,R,Hq]
  Tensor<3> output;      // [R,Hq,D]
  Tensor<2> merged_lse;  // [R,Hq], written where its data is not null
};
void launch_merge(const MergeParams& p, void* stream);

struct AttendParams {
  Tensor<3> q;                 // [R,Hq,D]
  Tensor<4> k_cache, v_cache;  // [P,S,Hkv,D]
  Tensor<2> tokens;            // [R,T]
  Tensor<2> block_table;       // [N,W]
  Tensor<1> token_to_req;
  Tensor<3> output;       // [R,Hq,D]
  Tensor<2> lse;          // [R,Hq], written where its data is not null
  const uint8_t* served;  // [R,Hkv], or null: not 0 where the output has been written already
};
// Takes its partial results from the carver; with a null base it only counts. Throws
// device::Unsupported. The tuned kernel where it is compiled in and serves the call.
void plan_attend(const AttendParams& p, device::Carver& carver);
void launch_attend(const AttendParams& p, device::Carver& carver, void* stream);
AttendParams attend_params(const toolkit::Args& args);

extern Launch<AttendParams> tuned_attend;

// ---- from the ABI's tensors ----

template <int kRank>
Tensor<kRank> tensor_of(const toolkit::TensorView& view) {
  Tensor<kRank> t{};
  t.data = view.data<void>();
  t.dtype = view.dtype();
  for (int d = 0; d < kRank; ++d) {
    t.size[d] = view.size(d);
    t.stride[d] = view.stride(d);
  }
  return t;
}

template <class... Size>
Tensor<sizeof...(Size)> dense(void* data, tk_dtype dtype, Size... sizes) {
  constexpr int kRank = sizeof...(Size);
  Tensor<kRank> t{data, {int64_t(sizes)...}, {}, dtype};
  int64_t stride = 1;
  for (int d = kRank - 1; d >= 0; --d) {
    t.stride[d] = stride;
    stride *= t.size[d];
  }
  return t;
}

// `count` rows from `first` on, along dimension 0.
template <int kRank>
Tensor<kRank> rows_of(Tensor<kRank> t, int64_t first, int64_t count) {
  if (t.data)
    t.data = static_cast<std::byte*>(t.data) + first * t.stride[0] * toolkit::bytes_of(t.dtype);
  t.size[0] = count;
  return t;
}

// Every element run of `elements` along the last dimension starts at a multiple of `bytes` and is
// dense.
template <int kRank>
bool dense_runs(const Tensor<kRank>& t, int bytes) {
  const int64_t per_run = bytes / toolkit::bytes_of(t.dtype);
  if (t.stride[kRank - 1] != 1 || t.size[kRank - 1] % per_run != 0) return false;
  if (reinterpret_cast<uintptr_t>(t.data) % uintptr_t(bytes) != 0) return false;
  for (int d = 0; d + 1 < kRank; ++d)
    if (t.size[d] > 1 && t.stride[d] % per_run != 0) return false;
  return true;
}

// Room for either kernel: whether the tuned one serves may hang on addresses, which a query of the
// workspace lacks.
template <class Params>
void plan_best(const Launch<Params>& tuned, const Launch<Params>& portable, const Params& p,
               device::Carver& carver) {
  device::Carver of_portable(nullptr), of_tuned(nullptr);
  portable.plan(p, of_portable);
  try {
    if (tuned.plan) tuned.plan(p, of_tuned);
  } catch (const device::Unsupported&) {
  }
  carver.take<std::byte>(std::max(of_portable.used(), of_tuned.used()));
}

template <class Params>
void launch_best(const Launch<Params>& tuned, const Launch<Params>& portable, const Params& p,
                 device::Carver& carver, void* stream) {
  std::byte* const room = carver.take<std::byte>(0);
  plan_best(tuned, portable, p, carver);
  device::Carver own(room);
  try {
    if (tuned.launch) return tuned.launch(p, own, stream);
  } catch (const device::Unsupported&) {
    own = device::Carver(room);
  }
  portable.launch(p, own, stream);
}

// A one-dimensional grid; the kernels decode the block's number themselves.
inline device::Grid blocks(int64_t count) {
  if (count > INT32_MAX)
    throw device::Unsupported("the launch needs " + std::to_string(count) +
                              " blocks and a grid has at most 2147483647: give fewer rows a call");
  return device::Grid{count, 1, 1};
}

}  // namespace qsa
