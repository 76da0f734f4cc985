// SPDX-License-Identifier: Apache-2.0
// qsa.store: elements are copied as bits, whatever they mean, in the widest units that all rows
// allow. Of rows with the same slot the last one wins, because two rows written to one slot at once
// would mix (seen on an H200 under racecheck) and differ from run to run.
//
// Few rows: one launch. Each block looks for its rows' slots among the slots of all later rows,
// while the rows are on their way. That takes rows^2 comparisons; many rows find the last of each
// slot by two launches over slot_mapping first.
#include "qsa/launches.h"
#include "qsa/store.h"

namespace qsa {
namespace {

constexpr int kThreads = 256;
constexpr int kFewRows = 1024;

// kFlat: the slots lie at one stride, whatever their rank.
template <bool kFlat>
DEVICE_FUNCTION int64_t slot_of(const Tensor<kMaxSlotRank>& slots, int64_t row) {
  int64_t at = row * slots.stride[kMaxSlotRank - 1];
  if constexpr (!kFlat) {
    at = 0;
    for (int d = kMaxSlotRank - 1; d >= 0 && row > 0; --d) {
      at += row % slots.size[d] * slots.stride[d];
      row /= slots.size[d];
    }
  }
  return slots.dtype == TK_I64 ? static_cast<const int64_t*>(slots.data)[at]
                               : int64_t(static_cast<const int32_t*>(slots.data)[at]);
}

// Slot of a row, or -1 where it is to be skipped.
template <bool kFlat>
DEVICE_FUNCTION int64_t live_slot(const StoreParams& p, int64_t row) {
  const int64_t slot = slot_of<kFlat>(p.slots, row);
  return slot >= 0 && slot < p.cache.size[0] * p.cache.size[1] ? slot : -1;
}

// Where a slot starts. Divisions of 64 bits take a hundred instructions: most caches do without.
template <class Unit>
DEVICE_FUNCTION Unit* slot_start(const StoreParams& p, int64_t slot) {
  if (slot <= UINT32_MAX && p.cache.size[1] <= UINT32_MAX) {
    const uint32_t size = uint32_t(p.cache.size[1]), page = uint32_t(slot) / size;
    return element<Unit>(p.cache, page, uint32_t(slot) - page * size);
  }
  return element<Unit>(p.cache, slot / p.cache.size[1], slot % p.cache.size[1]);
}

DEVICE_KERNEL(kThreads) clear_owners(StoreParams p) {
  const int64_t row = int64_t{device::block_x()} * device::threads() + device::thread();
  if (row >= p.rows.size[0]) return;
  if (const int64_t slot = live_slot<false>(p, row); slot >= 0)
    device::atomic_exchange(p.owner + slot, uint32_t{0});
}

DEVICE_KERNEL(kThreads) find_owners(StoreParams p) {
  const int64_t row = int64_t{device::block_x()} * device::threads() + device::thread();
  if (row >= p.rows.size[0]) return;
  if (const int64_t slot = live_slot<false>(p, row); slot >= 0)
    device::atomic_max(p.owner + slot, static_cast<uint32_t>(row + 1));
}

// Whether a later row has the slot of this thread's row: each of the row's lanes looks at its
// share. `slots` holds those from the block's first row on.
template <class Slots>
DEVICE_FUNCTION bool has_later(const Slots& slots, int64_t slot, int from, int lanes, int end) {
  constexpr int kAtOnce = 4;
  bool found = false;
  DEVICE_ROLLED
  for (int j = from; j < end; j += kAtOnce * lanes) {
    DEVICE_UNROLL
    for (int i = 0; i < kAtOnce; ++i)
      if (j + i * lanes < end) found |= slots[j + i * lanes] == slot;
  }
  return found;
}

// 2^lanes_log2 threads a row.
template <class Unit, bool kFlat>
DEVICE_KERNEL(kThreads)
store_kernel(StoreParams p) {
  DEVICE_SHARED(int64_t, slots, kFewRows);
  DEVICE_SHARED(uint32_t, beaten, kThreads);
  const int lanes = 1 << p.lanes_log2, rows_here = kThreads >> p.lanes_log2;
  const int here = device::thread() >> p.lanes_log2, lane = device::thread() & (lanes - 1);
  const int64_t first = int64_t{device::block_x()} * rows_here, row = first + here;
  const int64_t rows = p.rows.size[0], units = p.rows.size[1];
  const bool exists = row < rows;
  // The first unit is on its way before anybody knows where it goes.
  Unit unit{};
  if (exists && lane < units) unit = *element<const Unit>(p.rows, row, lane);

  int64_t slot = -1;
  if (p.finds_owners) {
    if (exists) slot = live_slot<kFlat>(p, row);
    if (slot >= 0 && p.owner[slot] != static_cast<uint32_t>(row + 1)) slot = -1;
  } else {
    const int end = int(rows - first);
    DEVICE_ROLLED
    for (int j = device::thread(); j < end; j += kThreads)
      slots[j] = live_slot<kFlat>(p, first + j);
    beaten[device::thread()] = 0;
    device::sync_block();
    if (exists) slot = slots[here];
    if (slot >= 0 && has_later(slots, slot, here + 1 + lane, lanes, end))
      device::atomic_or(&beaten[here], 1u);
    device::sync_block();
    if (beaten[here]) slot = -1;
  }
  if (slot < 0) return;
  Unit* const to = slot_start<Unit>(p, slot);
  const int64_t stride = p.cache.stride[3];
  if (lane < units) to[lane * stride] = unit;
  DEVICE_ROLLED
  for (int64_t u = lane + lanes; u < units; u += lanes)
    to[u * stride] = *element<const Unit>(p.rows, row, u);
}

// The same tensor in units of `bytes`, which divide its dense rows.
template <int kRank>
Tensor<kRank> in_units(Tensor<kRank> t, int bytes) {
  const int64_t per_unit = bytes / toolkit::bytes_of(t.dtype);
  t.size[kRank - 1] /= per_unit;
  for (int d = 0; d + 1 < kRank; ++d) t.stride[d] /= per_unit;
  return t;
}

// Whether a row's slot lies at row * the last stride.
bool is_flat(const Tensor<kMaxSlotRank>& slots) {
  int64_t inner = slots.size[kMaxSlotRank - 1];
  for (int d = kMaxSlotRank - 2; d >= 0; --d) {
    if (slots.size[d] > 1 && slots.stride[d] != inner * slots.stride[kMaxSlotRank - 1])
      return false;
    inner *= slots.size[d];
  }
  return true;
}

template <class Unit>
void launch_units(StoreParams p, void* stream) {
  while ((1 << p.lanes_log2) < kThreads && (1 << p.lanes_log2) < p.rows.size[1]) ++p.lanes_log2;
  const int64_t rows_here = kThreads >> p.lanes_log2;
  const device::Grid grid = blocks((p.rows.size[0] + rows_here - 1) / rows_here);
  if (is_flat(p.slots))
    device::launch(store_kernel<Unit, true>, grid, kThreads, 0, stream, p);
  else
    device::launch(store_kernel<Unit, false>, grid, kThreads, 0, stream, p);
}

struct Store {
  static constexpr const toolkit::Contract& contract = store::contract;
  static constexpr const char* implementation = "portable";
  static StoreParams params(const toolkit::Args& args, device::Carver& carver) {
    return store_params(args.tensor("cache"), args.tensor("slot_mapping"), args.tensor("rows"),
                        carver);
  }
  static uint64_t workspace(const toolkit::Args& args) {
    device::Carver carver(nullptr);
    params(args, carver);
    return carver.used();
  }
  static void run(const device::OpCall& call) {
    device::Carver carver(call.workspace);
    launch_store(params(call.args, carver), call.stream);
  }
};
DEVICE_OP(Store)

}  // namespace

StoreParams store_params(const toolkit::TensorView& cache, const toolkit::TensorView& slots,
                         const toolkit::TensorView& rows, device::Carver& carver) {
  if (slots.rank() > kMaxSlotRank)
    throw device::Unsupported("slot_mapping has rank " + std::to_string(slots.rank()) +
                              ", this kernel takes " + std::to_string(kMaxSlotRank) +
                              ": give it flat");
  StoreParams p{};
  p.cache = tensor_of<4>(cache);
  p.rows.data = rows.data<void>();
  p.rows.dtype = rows.dtype();
  for (int d = 0; d < 2; ++d) {
    const int from = d == 0 ? 0 : rows.rank() - 1;
    p.rows.size[d] = rows.size(from);
    p.rows.stride[d] = rows.stride(from);
  }
  p.slots.data = slots.data<void>();
  p.slots.dtype = slots.dtype();
  for (int d = 0; d < kMaxSlotRank; ++d) {
    const int from = d - (kMaxSlotRank - slots.rank());
    p.slots.size[d] = from < 0 ? 1 : slots.size(from);
    p.slots.stride[d] = from < 0 ? 0 : slots.stride(from);
  }
  if (p.rows.size[0] >= int64_t{UINT32_MAX})
    throw device::Unsupported("a call takes fewer than 4294967295 rows, got " +
                              std::to_string(p.rows.size[0]));
  p.finds_owners = p.rows.size[0] > kFewRows;
  if (p.finds_owners)
    p.owner = carver.take<uint32_t>(uint64_t(p.cache.size[0]) * uint64_t(p.cache.size[1]));
  return p;
}

void launch_store(const StoreParams& p, void* stream) {
  const int64_t rows = p.rows.size[0];
  if (rows == 0) return;
  if (p.finds_owners) {
    const int64_t id_blocks = (rows + kThreads - 1) / kThreads;
    device::launch(clear_owners, blocks(id_blocks), kThreads, 0, stream, p);
    device::launch(find_owners, blocks(id_blocks), kThreads, 0, stream, p);
  }
  const int element_bytes = toolkit::bytes_of(p.cache.dtype);
  int unit = element_bytes;
  for (int bytes = 16; bytes > unit; bytes /= 2)
    if (dense_runs(p.cache, bytes) && dense_runs(p.rows, bytes)) unit = bytes;
  StoreParams in = p;
  in.cache = in_units(p.cache, unit);
  in.rows = in_units(p.rows, unit);
  switch (unit) {
    case 1:
      return launch_units<uint8_t>(in, stream);
    case 2:
      return launch_units<uint16_t>(in, stream);
    case 4:
      return launch_units<uint32_t>(in, stream);
    case 8:
      return launch_units<uint64_t>(in, stream);
    case 16:
      return launch_units<Pack<uint32_t>>(in, stream);
  }
  throw device::Unsupported("elements of " + std::to_string(element_bytes) + " bytes");
}

}  // namespace qsa
