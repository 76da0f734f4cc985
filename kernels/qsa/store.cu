// SPDX-License-Identifier: Apache-2.0
// qsa.store: one block a row; elements are copied as bits, whatever they mean. Of rows with the
// same slot the last one wins: two launches over slot_mapping find it first, because two blocks
// that write one slot would mix their rows (seen on an H200 under racecheck).
#include "qsa/launches.h"
#include "qsa/store.h"

namespace qsa {
namespace {

constexpr int kThreads = 128;

DEVICE_FUNCTION int64_t slot_of(const Tensor<kMaxSlotRank>& slots, int64_t row) {
  int64_t at = 0;
  for (int d = kMaxSlotRank - 1; d >= 0 && row > 0; --d) {
    at += row % slots.size[d] * slots.stride[d];
    row /= slots.size[d];
  }
  return slots.dtype == TK_I64 ? static_cast<const int64_t*>(slots.data)[at]
                               : int64_t(static_cast<const int32_t*>(slots.data)[at]);
}

// Slot of a row, or -1 where it is to be skipped.
DEVICE_FUNCTION int64_t live_slot(const StoreParams& p, int64_t row) {
  const int64_t slot = slot_of(p.slots, row);
  return slot >= 0 && slot < p.cache.size[0] * p.cache.size[1] ? slot : -1;
}

DEVICE_KERNEL(kThreads) clear_owners(StoreParams p) {
  const int64_t row = int64_t{device::block_x()} * device::threads() + device::thread();
  if (row >= p.rows.size[0]) return;
  if (const int64_t slot = live_slot(p, row); slot >= 0)
    device::atomic_exchange(p.owner + slot, uint32_t{0});
}

DEVICE_KERNEL(kThreads) find_owners(StoreParams p) {
  const int64_t row = int64_t{device::block_x()} * device::threads() + device::thread();
  if (row >= p.rows.size[0]) return;
  if (const int64_t slot = live_slot(p, row); slot >= 0)
    device::atomic_max(p.owner + slot, static_cast<uint32_t>(row + 1));
}

template <class Bits>
DEVICE_KERNEL(kThreads)
store_kernel(StoreParams p) {
  const int64_t row = device::block_x();
  const int64_t slot = live_slot(p, row);
  if (slot < 0 || p.owner[slot] != static_cast<uint32_t>(row + 1)) return;
  const int64_t page_size = p.cache.size[1];
  for (int64_t w = device::thread(); w < p.rows.size[1]; w += device::threads())
    *element<Bits>(p.cache, slot / page_size, slot % page_size, 0, w) =
        *element<const Bits>(p.rows, row, w);
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
  p.owner = carver.take<uint32_t>(uint64_t(p.cache.size[0]) * uint64_t(p.cache.size[1]));
  return p;
}

void launch_store(const StoreParams& p, void* stream) {
  const int64_t rows = p.rows.size[0];
  if (rows == 0) return;
  const int64_t id_blocks = (rows + kThreads - 1) / kThreads;
  device::launch(clear_owners, blocks(id_blocks), kThreads, 0, stream, p);
  device::launch(find_owners, blocks(id_blocks), kThreads, 0, stream, p);
  switch (toolkit::bytes_of(p.cache.dtype)) {
    case 1:
      return device::launch(store_kernel<uint8_t>, blocks(rows), kThreads, 0, stream, p);
    case 2:
      return device::launch(store_kernel<uint16_t>, blocks(rows), kThreads, 0, stream, p);
    case 4:
      return device::launch(store_kernel<uint32_t>, blocks(rows), kThreads, 0, stream, p);
    case 8:
      return device::launch(store_kernel<uint64_t>, blocks(rows), kThreads, 0, stream, p);
  }
  throw device::Unsupported("elements of " + std::to_string(toolkit::bytes_of(p.cache.dtype)) +
                            " bytes");
}

}  // namespace qsa
