// SPDX-License-Identifier: Apache-2.0
// The stages of a block by bulk copies (from sm_90 on). Each slot of the ring has a barrier that
// its bytes complete, and counts the waves that are done with it: whichever wave is the last plans
// and starts the copies of the stage that comes there next. So no wave waits for another, but for
// bytes alone, as long as they are not further apart than the ring is long.
#pragma once

#include "tq/decode_plan.h"

namespace tq {

inline constexpr int kMostBulkTiles = 4;  // of a stage

// A stage in the ring.
struct StageSlot {
  device::BulkBarrier full;
  uint32_t done;  // waves
  int flags;
  int row, first, stages;  // of a sequence: the stage in it, and how many it has
  int live[kMostBulkTiles];
};
inline constexpr int kFreshStage = 1;   // the first of a sequence that the block has
inline constexpr int kRaggedStage = 2;  // not all tokens are live

// Which stage of the batches that lie in shared memory.
struct Cursor {
  int batch, stage;  // the stage within the batch
  DEVICE_FUNCTION void advance(int stages_of_batch) {
    stage += 1;
    if (stage < stages_of_batch) return;
    batch = batch + 1 == kBatches ? 0 : batch + 1;
    stage = 0;
  }
};

class Ring {
 public:
  // `slots`, `batches`, `ahead`: of the block, in shared memory; `stages`: all of the block.
  DEVICE_FUNCTION Ring(const StreamParams& p, StageSlot* slots, Batch* batches, Cursor* ahead,
                       SharedAddress bytes)
      : p_(p), slots_(slots), batches_(batches), ahead_(ahead), bytes_(bytes) {}

  // By one wave, which has planned the first batch.
  DEVICE_FUNCTION void begin(const Planner& planner, int stages) const {
    if (device::lane() == 0) {
      *ahead_ = Cursor{};
      DEVICE_ROLLED
      for (int i = 0; i < p_.ring; ++i) device::bulk_begin(barrier(i));
      device::bulk_begun();
    }
    device::sync_wave();
    DEVICE_ROLLED
    for (int i = 0; i < device::min(p_.ring, stages); ++i) fill(i, i, planner, stages);
  }

  DEVICE_FUNCTION const StageSlot& wait(int slot, uint32_t parity) const {
    device::bulk_wait(barrier(slot), parity);
    return slots_[slot];
  }
  // The wave is done with stage i.
  DEVICE_FUNCTION void leave(int slot, int i, const Planner& planner, int stages) const {
    device::sync_wave();
    bool last = false;
    if (device::lane() == 0) last = device::count_in(&slots_[slot].done) == kWaves - 1;
    if (device::any(last) && i + p_.ring < stages) fill(slot, i + p_.ring, planner, stages);
  }
  DEVICE_FUNCTION SharedAddress address(int slot) const {
    return bytes_ + static_cast<uint32_t>(slot * p_.schedule.stage_tiles * p_.tile.bytes);
  }

 private:
  DEVICE_FUNCTION SharedAddress barrier(int slot) const {
    return device::shared_address(&slots_[slot].full);
  }

  // Starts the copies of stage i of the block, and plans what is behind its batch.
  DEVICE_FUNCTION void fill(int slot, int i, const Planner& planner, int stages) const {
    const int lane = device::lane(), tiles = p_.schedule.stage_tiles;
    const Cursor at = *ahead_;
    const Batch& batch = batches_[at.batch];
    StageSlot& to = slots_[slot];
    TileInfo info{};
    if (lane < tiles) {
      info = batch.tiles[at.stage * tiles + lane];
      to.live[lane] = info.live;
    }
    const bool ragged = device::any(lane < tiles && info.live != kTileTokens);
    const int bytes = device::wave_sum(info.bytes), first = batch.first + at.stage;
    if (lane == 0) {
      to.done = 0;
      to.flags = (i == 0 || first == 0 ? kFreshStage : 0) | (ragged ? kRaggedStage : 0);
      to.row = batch.row, to.first = first, to.stages = batch.stages;
    }
    device::sync_wave();
    if (lane == 0) device::bulk_announce(barrier(slot), static_cast<uint32_t>(bytes));
    device::sync_wave();
    if (info.bytes > 0)
      device::bulk_copy(address(slot) + static_cast<uint32_t>(lane * p_.tile.bytes),
                        p_.cache + info.offset, static_cast<uint32_t>(info.bytes), barrier(slot),
                        device::l2_evict_first());
    Cursor next = at;
    next.advance(batch.count);
    if (next.stage == 0 && i + 1 < stages) planner.plan(batch, batches_ + next.batch);
    if (lane == 0) *ahead_ = next;
    device::sync_wave();
  }

  const StreamParams& p_;
  StageSlot* const slots_;
  Batch* const batches_;
  Cursor* const ahead_;
  const SharedAddress bytes_;
};

}  // namespace tq
