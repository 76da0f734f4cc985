// SPDX-License-Identifier: Apache-2.0
// The pass over the cache of a fast decode of 256 dimensions (decode_heads.h). A block goes through
// its share of stages (decode_schedule.h). A stage is four tiles of 16 tokens with all KV heads; a
// team of four waves has the four tiles of one KV head, and keeps its softmax and its output in
// registers until the sequence ends or the share does. Where two blocks find no room on a
// multiprocessor, a block has two sets of teams instead, a stage four tiles for each, and a
// sequence two results of a block.
#pragma once

#include "tq/decode_heads.h"

namespace tq {

inline constexpr int kMostTeams = 4, kMostSets = 2;  // of a block
inline constexpr int kMostHeadsThreads = kMostTeams * kTeamWaves * device::kWave;
inline constexpr int heads_batches(int ring) { return ring + 2; }

// Which stage of the batches that lie in shared memory.
struct HeadsCursor {
  int batch, stage;  // the stage within the batch
  DEVICE_FUNCTION void advance(int stages_of_batch, int ring) {
    stage += 1;
    if (stage < stages_of_batch) return;
    batch = batch + 1 == heads_batches(ring) ? 0 : batch + 1;
    stage = 0;
  }
};
// What a wave needs seldom, written by its first lane.
struct HeadsWave {
  HeadsCursor ahead;            // what is copied next
  int row = -1, first, stages;  // of a sequence: the block's first stage, and all
  int begun;                    // the turn of the first stage
};

template <int kKeyBits, int kValueBits, bool kMany>
class HeadsStream {
  using Math = HeadsMath<kKeyBits, kValueBits, kMany>;
  static constexpr int kQueryBytes = heads_query_bytes(kKeyBits, kMany);

 public:
  // `own`: in shared memory, of this wave.
  DEVICE_FUNCTION HeadsStream(const StreamParams& p, uint8_t* shared, HeadsWave* own)
      : p_(p), shared_(shared), own_(own), team_(device::wave() / kTeamWaves) {
    if (device::lane() == 0) *own = HeadsWave{};
    const int kv_head = divide(head_tile(), p.by_block_tiles);
    math_.place(p, kv_head, device::wave() % kTeamWaves,
                shared + p.merge_at + team_ * team_bytes(kKeyBits, kMany));
  }

  DEVICE_FUNCTION void run(int* next_ids, device::BulkBarrier* full) {
    auto* const batches = reinterpret_cast<Batch*>(shared_ + p_.scores_at);
    device::allow_next();
    full_ = device::shared_address(full);
    if (p_.bulk && device::wave() == 0) {
      if (device::lane() < p_.ring) device::bulk_begin(barrier(device::lane()));
      device::bulk_begun();
    }
    const Runs runs = runs_of(p_.schedule);
    const Cut cut = runs.total > 0 ? cut_of(p_.schedule, runs.total) : Cut{};
    if (device::block_x() >= cut.parts) return device::wait_for_previous();
    const int begin = first_stage(cut, device::block_x());
    const int stages = first_stage(cut, device::block_x() + 1) - begin;
    const Planner planner(p_, next_ids);
    if (device::wave() == 0) planner.begin(find_stage(p_.schedule, runs, begin), batches);
    state_.clear();

    // Turn i attends to stage i, in slot `at` of the ring, and starts the copies of stage
    // i + ring - 1 into the slot before it.
    int at = 1;
    uint32_t parity = 1;  // of the slot's copies
    HeadsCursor now{};
    DEVICE_ROLLED
    for (int i = 1 - p_.ring; i <= stages; ++i, ++at) {
      if (i == 0) device::wait_for_previous();  // for the queries
      if (at == p_.ring) at = 0, parity ^= 1;
      if (!p_.bulk) {
        if (p_.ring == 4)
          device::copy_async_wait<2>();
        else if (p_.ring == 3)
          device::copy_async_wait<1>();
        else
          device::copy_async_wait<0>();
      }
      device::sync_block();

      const int copied = i + p_.ring - 1;
      if (copied < stages && (!p_.bulk || device::wave() == 0))
        copy_stage(batches, planner, at == 0 ? p_.ring - 1 : at - 1, copied + 1 < stages);
      if (!p_.bulk) device::copy_async_commit();
      if (i < 0) continue;

      const Batch& batch = batches[now.batch];
      const int row = i < stages ? batch.row : -1;
      if (row != own_->row) {
        if (own_->row >= 0) finish(i);
        if (i == stages) break;
        begin_segment(row, batch, now.stage, i);
      }
      if (p_.bulk) device::bulk_wait(barrier(at), parity);
      turn(at, batch.tiles[now.stage * p_.schedule.stage_tiles + own_tile()].live);
      now.advance(batch.count, p_.ring);
    }
    if (!p_.bulk) device::copy_async_wait<0>();
  }

 private:
  DEVICE_FUNCTION SharedAddress tile_at(int slot, int tile) const {
    return device::shared_address(shared_ + p_.ring_at) +
           static_cast<uint32_t>((slot * p_.schedule.stage_tiles + tile) * p_.tile.bytes);
  }
  DEVICE_FUNCTION int set() const { return team_ >= p_.head_tiles ? 1 : 0; }
  DEVICE_FUNCTION int head_tile() const { return team_ - set() * p_.head_tiles; }
  DEVICE_FUNCTION int own_tile() const { return set() * kTeamTiles + math_.own(); }  // of a stage

  DEVICE_FUNCTION SharedAddress barrier(int slot) const {
    return full_ + static_cast<uint32_t>(slot) * static_cast<uint32_t>(sizeof(device::BulkBarrier));
  }

  // Starts the copies of the next stage, and plans what is behind its batch.
  DEVICE_FUNCTION void copy_stage(Batch* batches, const Planner& planner, int slot, bool more) {
    const HeadsCursor ahead = own_->ahead;
    const Batch& batch = batches[ahead.batch];
    const TileInfo* const tiles = batch.tiles + ahead.stage * p_.schedule.stage_tiles;
    if (p_.bulk)
      copy_in_bulk(tiles, slot);
    else
      copy_share(tiles[own_tile()], slot);
    HeadsCursor next = ahead;
    next.advance(batch.count, p_.ring);
    if (next.stage == 0 && more && device::wave() == 0) planner.plan(batch, batches + next.batch);
    device::sync_wave();
    if (device::lane() == 0) own_->ahead = next;
  }
  DEVICE_FUNCTION void copy_in_bulk(const TileInfo* tiles, int slot) const {
    const int lane = device::lane();
    const TileInfo own = lane < p_.schedule.stage_tiles ? tiles[lane] : TileInfo{};
    auto bytes = static_cast<uint32_t>(own.bytes);
    DEVICE_UNROLL
    for (int mask = 1; mask < kMostSets * kTeamTiles; mask *= 2)
      bytes += device::shuffle_xor(bytes, mask);
    if (lane == 0) device::bulk_announce(barrier(slot), bytes);
    device::sync_wave();
    if (own.bytes > 0)
      device::bulk_copy(tile_at(slot, lane), p_.cache + own.offset,
                        static_cast<uint32_t>(own.bytes), barrier(slot), device::l2_evict_first());
  }
  // A wave copies its share of one tile.
  DEVICE_FUNCTION void copy_share(const TileInfo& tile, int slot) const {
    const int begin = (head_tile() * device::kWave + device::lane()) * 16;
    const int step = p_.head_tiles * device::kWave * 16, bytes = tile.bytes;
    const uint8_t* const from = p_.cache + tile.offset;
    const SharedAddress to = tile_at(slot, own_tile());
    if (p_.tile.runs == 1) {
      DEVICE_ROLLED
      for (int at = begin; at < bytes; at += 4 * step) {
        DEVICE_UNROLL
        for (int k = 0; k < 4; ++k)
          if (at + k * step < bytes)
            device::copy_async16_at<0>(to + static_cast<uint32_t>(at + k * step),
                                       from + at + k * step);
      }
    } else {
      DEVICE_ROLLED
      for (int at = begin; at < bytes; at += step) {
        const int run = at / p_.tile.run_bytes;
        device::copy_async16_at<0>(
            to + static_cast<uint32_t>(at),
            from + run * p_.tile.run_stride + (at - run * p_.tile.run_bytes));
      }
    }
  }

  DEVICE_FUNCTION int in_group() const {  // which tile of the KV head's heads
    const int tile = head_tile();
    return tile - divide(tile, p_.by_block_tiles) * p_.block_tiles + device::block_y();
  }
  DEVICE_FUNCTION void begin_segment(int row, const Batch& batch, int stage, int turn) {
    device::sync_wave();
    if (device::lane() == 0) {
      own_->row = row, own_->begun = turn;
      own_->first = batch.first + stage, own_->stages = batch.stages;
    }
    state_.clear();
    const int tile =
        row * p_.row_tiles + divide(head_tile(), p_.by_block_tiles) * p_.tiles + in_group();
    uint8_t* const to = shared_ + p_.queries_at + head_tile() * kQueryBytes;
    const uint32_t* const from = p_.queries + int64_t{tile} * (kQueryBytes / 4);
    constexpr int kThreads = kTeamWaves * device::kWave;
    if (set() == 0) DEVICE_ROLLED
    for (int i = device::thread() % kThreads; i < kQueryBytes / 16; i += kThreads)
      *reinterpret_cast<device::Words4*>(to + i * 16) =
          device::load16<device::Words4>(from + i * 4);
    math_.begin(p_, tile, device::shared_address(to));
    device::sync_block();
  }

  DEVICE_FUNCTION void turn(int slot, int live) {
    if (live > 0)
      math_.weigh(p_, tile_at(slot, own_tile()), live, state_);
    else
      math_.weigh_none(state_);
    device::sync_block();
    math_.attend(p_, tile_at(slot, set() * kTeamTiles), state_);
  }

  // Writes the result of a segment.
  DEVICE_FUNCTION void finish(int turn) {
    math_.join(state_);
    const bool whole = own_->first == 0 && turn - own_->begun == own_->stages;
    const int64_t slot = whole ? int64_t{2} * p_.schedule.parts + own_->row
                               : int64_t{2} * device::block_x() + (own_->first == 0);
    const int group = device::lane() / 4;
    put_head(slot, group, 0);
    if constexpr (kMany) {
      if (group < 4) put_head(slot, kSomeHeads + group, 1);
    }
  }
  DEVICE_FUNCTION void put_head(int64_t slot, int column, int c) {
    const int in_kv_head = in_group() * p_.tile_heads + column;
    if (column >= p_.tile_heads || in_kv_head >= p_.group) return;
    const int member = device::lane() % 4;
    const int64_t head = (slot * p_.sets + set()) * p_.query_heads +
                         divide(head_tile(), p_.by_block_tiles) * p_.group + in_kv_head;
    const float sum = state_.sum[c];
    const bool none = sum == 0;  // a NaN sum is not 0 and makes the head NaN
    const float inverse = none ? 0 : device::divide(1, sum);
    constexpr float kLn2 = 0.693147180559945309f;
    if (math_.own() == 0 && member == 0)
      p_.partial_lse[head] =
          none ? -device::infinity() : (state_.limit[c] + device::log2(sum)) * kLn2;
    const float codes = none ? 0 : inverse * inverse_of_power(state_.unit);
    const float zero = none ? 0 : state_.zero[c] * inverse;
    float* const to = p_.partial + head * kHeadsDim;
    DEVICE_UNROLL
    for (int j = 0; j < 2; ++j) DEVICE_UNROLL
    for (int run = 0; run < 2; ++run) {
      Quad four;
      DEVICE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int field = 4 * run + i;
        const float undo = static_cast<float>(1 << (24 - field_bit<kValueBits>(field)));
        four.x[i] = device::bit_cast<uint32_t>(
            device::fma(state_.output[field][2 * c + j], codes * undo, zero));
      }
      *reinterpret_cast<Quad*>(to + math_.dim(p_, 2 * member + j, run)) = four;
    }
  }

  const StreamParams& p_;
  uint8_t* const shared_;
  HeadsWave* const own_;
  const int team_;
  SharedAddress full_;  // barriers of the ring's slots
  HeadsState state_;
  Math math_;
};

template <int kKeyBits, int kValueBits, bool kMany>
DEVICE_KERNEL_BLOCKS(kMostHeadsThreads, 1)
decode_heads(StreamParams p) {
  DEVICE_SHARED(HeadsWave, waves, kMostTeams * kTeamWaves);
  DEVICE_SHARED(int, next_ids, device::kWave);
  DEVICE_SHARED(device::BulkBarrier, full, kMostRing);
  DEVICE_DYNAMIC_SHARED(uint8_t, shared);
  HeadsStream<kKeyBits, kValueBits, kMany>(p, device::data(shared),
                                           device::data(waves) + device::wave())
      .run(device::data(next_ids), device::data(full));
}

}  // namespace tq
