// SPDX-License-Identifier: Apache-2.0
// The pass over the cache of a fast decode. A block goes through its share of stages
// (decode_schedule.h). A stage is one or more tiles of 16 tokens with all KV heads, each tile a
// contiguous run of bytes that the block copies to shared memory a few stages ahead; a wave takes
// one tile and one head tile (the query heads of a KV head, 8 at most) and keeps its softmax and
// its output in registers until the sequence ends or the share does.
#pragma once

#include "tq/decode_ring.h"
#include "tq/decode_tile.h"
#include "tq/decode_wide.h"

namespace tq {

// The pair table of a block; returns the power of two that all centroids carry in it.
template <int kKeyBits>
DEVICE_FUNCTION float fill_pair_table(const Codebook& book, uint8_t* table) {
  constexpr int kCodes = 1 << kKeyBits;
  float largest = 0;
  for (int i = 0; i < kCodes; ++i)
    largest = device::max(largest, device::abs(book.data[i * book.stride]));
  const float power = centroid_power(largest);
  DEVICE_ROLLED
  for (int i = device::thread(); i < kCodes * kCodes * kPairLanes; i += kStreamThreads) {
    const int entry = i / kPairLanes;
    const float first = book.data[entry % kCodes * book.stride] * power;
    const float second = book.data[entry / kCodes * book.stride] * power;
    *reinterpret_cast<device::Words2*>(table + i * kPairBytes) = split_pair(first, second);
  }
  return power;
}

// The stages [first, last) of a sequence that this block has so far.
struct Segment {
  int row = -1, first, last, stages;  // stages: of the whole sequence
};
// What a wave needs once a turn, written by its first lane. In registers it would push what it
// needs all the time out of them: the L1 has little room for spills beside so much shared memory.
struct WaveState {
  int unit, wave_tile, kv_head, in_group;  // in_group: which tile of the KV head's heads
  int tile_at;                             // bytes of its first tile in a stage
  Cursor now, ahead;
  int at, copy_at;  // their slots in the ring
  Segment segment;
};

// kColumns: of a fragment of queries; 16: decode_wide.h. Of 256 dimensions two waves take half
// each. Unless kStride is kAnyStride (decode_tile.h) stages come by bulk
// copies (decode_ring.h).
template <int kKeyBits, int kValueBits, int kDim, int kColumns, int kStride>
class Stream {
  static constexpr bool kWide = kColumns == kWideColumns, kPacked = kColumns == 4;
  static constexpr bool kBulk = kStride != kAnyStride;
  static constexpr bool kHalves = kDim == kWideDim && !kWide;
  static constexpr int kWaveDim = wave_dim(kDim), kSharers = kDim / kWaveDim;  // of a head
  using Math = std::conditional_t<kWide, WideMath<kKeyBits, kValueBits>,
                                  TileMath<kKeyBits, kValueBits, kWaveDim, kPacked, kStride>>;
  using State = typename Math::State;

 public:
  // `own`: in shared memory, of this wave.
  DEVICE_FUNCTION Stream(const StreamParams& p, uint8_t* shared, WaveState* own)
      : p_(p), shared_(shared), own_(own) {
    const int wave = device::wave(), wave_tile = divide(wave, p.by_units);
    const int unit = wave - wave_tile * p.head_tiles * kSharers;
    const int kv_head = divide(unit / kSharers, p.by_block_tiles);
    if (device::lane() == 0) {
      *own = WaveState{};
      own->unit = unit, own->wave_tile = wave_tile, own->kv_head = kv_head;
      own->in_group = unit / kSharers - kv_head * p.block_tiles + device::block_y();
      own->tile_at = wave_tile * p.tile.bytes;
    }
    math_.place(p, kv_head, unit % kSharers);
  }

  DEVICE_FUNCTION void run(Batch* batches, int* next_ids, StageSlot* slots, Cursor* ahead) {
    device::allow_next();
    const Runs runs = runs_of(p_.schedule);
    const Cut cut = runs.total > 0 ? cut_of(p_.schedule, runs.total) : Cut{};
    if (device::block_x() >= cut.parts) return device::wait_for_previous();
    const int begin = first_stage(cut, device::block_x());
    const int stages = first_stage(cut, device::block_x() + 1) - begin;
    const Planner planner(p_, next_ids);
    if (device::wave() == 0) planner.begin(find_stage(p_.schedule, runs, begin), batches);

    constexpr int kAlignment = pair_table_alignment(kKeyBits);
    uint8_t* const table =
        shared_ + (static_cast<uint32_t>(-device::shared_address(shared_)) & (kAlignment - 1));
    const SharedAddress lane_table = device::keep_whole(
        device::shared_address(table + (device::lane() & (kPairLanes - 1)) * kPairBytes));
    if constexpr (kBulk) {
      const Ring ring(p_, slots, batches, ahead, device::shared_address(shared_ + p_.ring_at));
      if (device::wave() == 0) {
        device::sync_wave();
        ring.begin(planner, stages);
      }
      const float key_constant = fill_table(table);
      device::wait_for_previous();  // for the queries
      device::sync_block();
      go(ring, planner, stages, lane_table, key_constant);
    } else {
      take_turns(batches, planner, stages, table, lane_table);
    }
  }

 private:
  DEVICE_FUNCTION float fill_table(uint8_t* table) const {
    if constexpr (kKeyBits == 8) return p_.fp8_factor;
    const float power = fill_pair_table<kKeyBits>(p_.centroids, table);
    return p_.norm_correction ? 1e-16f * power * power : inverse_of_power(power);
  }

  // The stages of a block by copies of all threads. Turn i attends to stage i and starts the copies
  // of stage i + ring - 1.
  DEVICE_FUNCTION void take_turns(Batch* batches, const Planner& planner, int stages,
                                  uint8_t* table, SharedAddress lane_table) {
    float key_constant = p_.fp8_factor;
    DEVICE_ROLLED
    for (int i = 1 - p_.ring; i <= stages; ++i) {
      if (i == 0) {
        key_constant = fill_table(table);
        device::wait_for_previous();  // for the queries
      }
      if (p_.ring == 4)
        device::copy_async_wait<2>();
      else if (p_.ring == 3)
        device::copy_async_wait<1>();
      else
        device::copy_async_wait<0>();
      device::sync_block();

      const int copied = i + p_.ring - 1;
      if (copied < stages) copy_stage(batches, planner, copied + 1 < stages);
      device::copy_async_commit();
      if (i < 0) continue;

      const Batch& batch = batches[own_->now.batch];
      const int row = i < stages ? batch.row : -1;
      if (row != own_->segment.row) {
        if (own_->segment.row >= 0) finish();
        if (i == stages) break;
        const int first = batch.first + own_->now.stage;
        begin_segment({row, first, first, batch.stages});
      }
      // Where the wave's tiles are; the second lies wave_tiles further.
      const TileInfo* const infos =
          batch.tiles + own_->now.stage * p_.schedule.stage_tiles + own_->wave_tile;
      const SharedAddress tile = stage_at(own_->at) + static_cast<uint32_t>(own_->tile_at);
      const bool busy = own_->wave_tile < p_.wave_tiles;
      if constexpr (Math::kTiles == 2) {
        const int live[2] = {busy ? infos[0].live : 0,
                             busy && p_.depth == 2 ? infos[p_.wave_tiles].live : 0};
        const SharedAddress tiles[2] = {
            tile, tile + static_cast<uint32_t>(p_.depth == 2 ? p_.wave_tiles * p_.tile.bytes : 0)};
        if constexpr (kWide)
          math_.turn(p_, tiles, live, lane_table, key_constant, state_);
        else
          attend(i, tiles, live, lane_table, key_constant);
      } else {
        DEVICE_ROLLED
        for (int d = 0; d < p_.depth; ++d) {
          const int live[1] = {busy ? infos[d * p_.wave_tiles].live : 0};
          const SharedAddress tiles[1] = {tile +
                                          static_cast<uint32_t>(d * p_.wave_tiles * p_.tile.bytes)};
          attend(i * p_.depth + d, tiles, live, lane_table, key_constant);
        }
      }
      device::sync_wave();
      if (device::lane() == 0) {
        own_->at = own_->at + 1 == p_.ring ? 0 : own_->at + 1;
        own_->now.advance(batches[own_->now.batch].count);
        own_->segment.last += 1;
      }
    }
    device::copy_async_wait<0>();
  }

  // The stages of a block by bulk copies. All waves have tiles.
  DEVICE_FUNCTION void go(const Ring& ring, const Planner& planner, int stages,
                          SharedAddress lane_table, float key_constant) {
    static_assert(!kBulk || !(kWide || kHalves));
    // From a tile of the wave to the next. With a stride, a stage has one beside each other.
    const auto next =
        static_cast<uint32_t>(kStride > 0 ? kTileTokens * kStride : p_.wave_tiles * p_.tile.bytes);
    // The same of stages.
    const auto next_stage = static_cast<uint32_t>(
        kStride > 0 ? 2 * kTileTokens * kStride : p_.schedule.stage_tiles * p_.tile.bytes);
    int slot = 0;
    uint32_t parity = 0;
    SharedAddress tile = ring.address(0) + static_cast<uint32_t>(own_->tile_at);
    DEVICE_ROLLED
    for (int i = 0; i < stages; ++i) {
      const StageSlot& stage = ring.wait(slot, parity);
      const int flags = stage.flags;
      if (flags & kFreshStage) {
        if (i > 0) finish(i);
        begin_segment({stage.row, stage.first, stage.first - i, stage.stages});
      }
      if constexpr (Math::kTiles == 2) {  // a stage has two tiles of a wave
        int live[2] = {kTileTokens, kTileTokens};
        if (flags & kRaggedStage) {
          live[0] = stage.live[own_->wave_tile];
          live[1] = stage.live[own_->wave_tile + p_.wave_tiles];
        }
        const SharedAddress tiles[2] = {tile, tile + next};
        attend(i, tiles, live, lane_table, key_constant);
      } else {
        DEVICE_ROLLED
        for (int d = 0; d < p_.depth; ++d) {
          int live[1] = {kTileTokens};
          if (flags & kRaggedStage) live[0] = stage.live[own_->wave_tile + d * p_.wave_tiles];
          const SharedAddress tiles[1] = {tile + static_cast<uint32_t>(d) * next};
          attend(i, tiles, live, lane_table, key_constant);
        }
      }
      ring.leave(slot, i, planner, stages);
      slot += 1, tile += next_stage;
      if (slot == p_.ring) {
        slot = 0, parity ^= 1;
        tile = ring.address(0) + static_cast<uint32_t>(own_->tile_at);
      }
    }
    finish(stages);
  }

  DEVICE_FUNCTION SharedAddress stage_at(int slot) const {
    return device::shared_address(shared_ + p_.ring_at) +
           static_cast<uint32_t>(slot * p_.schedule.stage_tiles * p_.tile.bytes);
  }

  // Starts the copies of the next stage, and plans what is behind its batch.
  DEVICE_FUNCTION void copy_stage(Batch* batches, const Planner& planner, bool more) {
    const Cursor ahead = own_->ahead;
    const int slot = own_->copy_at;
    const Batch& batch = batches[ahead.batch];
    const TileInfo* const tiles = batch.tiles + ahead.stage * p_.schedule.stage_tiles;
    SharedAddress to = stage_at(slot);
    if (p_.tile.runs == 1) {
      to += static_cast<uint32_t>(device::thread() * 16);
      const uint8_t* const from = p_.cache + device::thread() * 16;
      DEVICE_ROLLED
      for (int t = 0; t < p_.schedule.stage_tiles; ++t, to += static_cast<uint32_t>(p_.tile.bytes))
        copy_run(tiles[t].bytes, to, from + tiles[t].offset);
    } else {
      DEVICE_ROLLED
      for (int t = 0; t < p_.schedule.stage_tiles; ++t, to += static_cast<uint32_t>(p_.tile.bytes))
        copy_runs(p_.tile, tiles[t].bytes, to, p_.cache + tiles[t].offset);
    }
    Cursor next = ahead;
    next.advance(batch.count);
    if (next.stage == 0 && more && device::wave() == 0) planner.plan(batch, batches + next.batch);
    device::sync_wave();
    if (device::lane() == 0) {
      own_->ahead = next;
      own_->copy_at = slot + 1 == p_.ring ? 0 : slot + 1;
    }
  }

  DEVICE_FUNCTION void begin_segment(const Segment& segment) {
    const int row = segment.row;
    device::sync_wave();
    if (device::lane() == 0) own_->segment = segment;
    device::sync_wave();
    const int first_tile = row * p_.row_tiles + own_->kv_head * p_.tiles + own_->in_group;
    if constexpr (kWide) {
      constexpr int kBytes = kWideQueryBytes, kPieces = kBytes / 16;
      state_.clear();
      uint8_t* const to = shared_ + p_.queries_at;
      DEVICE_ROLLED
      for (int i = device::thread(); i < p_.head_tiles * kPieces; i += kStreamThreads) {
        const int tile = i / kPieces, head = divide(tile, p_.by_block_tiles);
        const int of_all =
            row * p_.row_tiles + head * p_.tiles + tile - head * p_.block_tiles + device::block_y();
        *reinterpret_cast<device::Words4*>(to + i * 16) = device::load16<device::Words4>(
            p_.queries + (int64_t{of_all} * kPieces + i % kPieces) * 4);
      }
      math_.begin(p_, first_tile, device::shared_address(to + own_->unit / kSharers * kBytes),
                  reinterpret_cast<float*>(shared_ + p_.scores_at) + device::wave() * kWideFloats);
      device::sync_block();
    } else if (own_->wave_tile < p_.wave_tiles) {
      state_.clear();
      math_.load_queries(p_, first_tile);
    }
  }

  DEVICE_FUNCTION void attend(int turn, const SharedAddress (&tiles)[Math::kTiles],
                              const int (&live)[Math::kTiles], SharedAddress lane_table,
                              float key_constant) {
    int all = kTileTokens, some = 0;
    DEVICE_UNROLL
    for (int t = 0; t < Math::kTiles; ++t) all = device::min(all, live[t]), some |= live[t];
    float s[4] = {}, squares[2] = {};
    if (some) math_.dot_products(p_, tiles, lane_table, s, squares);
    if constexpr (kHalves) add_other_half(turn, s, squares);
    if (some)
      math_.attend(p_, tiles, Math::own_tile() ? live[Math::kTiles - 1] : live[0],
                   all == kTileTokens, s, squares, key_constant, state_);
  }

  // The waves of both halves of the dimensions get the sums of both. The buffer of one turn is read
  // before the barrier of the next, so two take turns.
  DEVICE_FUNCTION void add_other_half(int turn, float (&s)[4], float (&squares)[2]) {
    float* const mine = reinterpret_cast<float*>(shared_ + p_.scores_at) +
                        (turn % 2 * kWaves + device::wave()) * kHalfFloats * device::kWave +
                        device::lane();
    const float* const other = mine + (math_.half() ? -1 : 1) * kHalfFloats * device::kWave;
    DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) mine[i * device::kWave] = s[i];
    DEVICE_UNROLL
    for (int i = 0; i < 2; ++i) mine[(4 + i) * device::kWave] = squares[i];
    device::sync_block();
    DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) s[i] += other[i * device::kWave];
    DEVICE_UNROLL
    for (int i = 0; i < 2; ++i) squares[i] += other[(4 + i) * device::kWave];
  }

  // Writes the result of a segment; `turns`: what its `last` lacks.
  DEVICE_FUNCTION void finish(int turns = 0) {
    Segment s = own_->segment;
    s.last += turns;
    merge_tiles();
    if constexpr (kWide) math_.join_sums(state_);
    if (own_->wave_tile != 0) return;
    const int group = lane_group(), member = lane_member();
    const bool whole = s.first == 0 && s.last == s.stages;
    const int64_t slot = whole ? int64_t{2} * p_.schedule.parts + s.row
                               : int64_t{2} * device::block_x() + (s.first == 0);
    if constexpr (kWide) {
      DEVICE_UNROLL
      for (int c = 0; c < State::kHeads; ++c) {
        const Ending end = ending(slot, 8 * c + group, c, member == 0);
        if (!end.partial) continue;
        DEVICE_UNROLL
        for (int f = 0; f < State::kFields; ++f) DEVICE_UNROLL
        for (int j = 0; j < 2; ++j) {
          const auto& x = state_.output[f];
          put(end, 2 * member + j, f, x[2 * c + j]);
        }
      }
    } else {
      DEVICE_UNROLL
      for (int mask = kPacked ? 2 : 4; mask < device::kWave; mask *= 2) DEVICE_UNROLL
      for (int c = 0; c < 2; ++c) {
        state_.sum[c] += device::shuffle_xor(state_.sum[c], mask);
        state_.zero[c] += device::shuffle_xor(state_.zero[c], mask);
      }
      if constexpr (kWaveDim == 128) {
        DEVICE_UNROLL
        for (int h = 0; h < (kPacked ? 1 : 2); ++h) put_half(slot, kPacked ? member / 2 : h);
      } else {
        DEVICE_UNROLL
        for (int c = 0; c < 2; ++c) {
          const Ending end = ending(slot, 2 * member + c, c, group == 0);
          if (!end.partial) continue;
          DEVICE_UNROLL
          for (int f = 0; f < kWaveDim / 8; ++f)
            put(end, group, f, state_.output[f / 2][f % 2 * 2 + c]);
        }
      }
    }
  }
  DEVICE_FUNCTION void put_half(int64_t slot, int half) {
    const int group = lane_group();
    DEVICE_UNROLL
    for (int c = 0; c < 2; ++c) {
      const Ending end = ending(slot, Math::output_column(c), c, group == 0 && half == 0);
      Four x[2];
      Math::half_output(state_, half, c, end.codes, end.zero, x);
      if (!end.partial) continue;
      DEVICE_UNROLL
      for (int run = 0; run < 2; ++run)
        *reinterpret_cast<Four*>(end.partial + math_.value_dim(group, 8 * half + 4 * run)) = x[run];
    }
  }

  // Where a column's output goes (nowhere: there is no such head), and what it is made of.
  struct Ending {
    float* partial;
    float codes, zero;
  };
  DEVICE_FUNCTION Ending ending(int64_t slot, int column, int c, bool first) const {
    const int in_group = own_->in_group * p_.tile_heads + column;
    if (column >= p_.tile_heads || in_group >= p_.group) return {};
    const int64_t head = slot * p_.query_heads + own_->kv_head * p_.group + in_group;
    const float sum = state_.sum[c];
    const bool none = sum == 0;  // a NaN sum is not 0 and makes the head NaN
    const float inverse = none ? 0 : device::divide(1, sum);
    constexpr float kLn2 = 0.693147180559945309f;
    if (first && math_.half() == 0)
      p_.partial_lse[head] =
          none ? -device::infinity() : (state_.limit[c] + device::log2(sum)) * kLn2;
    return {p_.partial + head * p_.format.head_dim + math_.half() * kWaveDim,
            none ? 0 : inverse * inverse_of_power(state_.unit),
            none ? 0 : state_.zero[c] * inverse};
  }
  DEVICE_FUNCTION void put(const Ending& end, int group, int field, float x) const {
    const float undo = static_cast<float>(1 << (24 - field_bit<kValueBits>(field)));
    int d = 0;
    if constexpr (kWide)
      d = field_dim<kValueBits, kWaveDim>(group, field);
    else
      d = math_.value_dim(group, field);
    end.partial[d] = device::fma(x, end.codes * undo, end.zero);
  }

  // Where several waves share a head: into the wave of the first tile, one after another.
  DEVICE_FUNCTION void merge_tiles() {
    if (p_.wave_tiles == 1) return;
    constexpr int kHeads = State::kHeads;
    float* const buffer = reinterpret_cast<float*>(shared_ + p_.merge_at) +
                          own_->unit * merge_floats(kWaveDim, kWide) * device::kWave +
                          device::lane();
    DEVICE_ROLLED
    for (int t = 1; t < p_.wave_tiles; ++t) {
      device::sync_block();  // the buffer has been read
      if (own_->wave_tile == t) {
        DEVICE_UNROLL
        for (int c = 0; c < kHeads; ++c) buffer[c * device::kWave] = state_.limit[c];
        buffer[kHeads * device::kWave] = state_.unit;
        state_.for_each(
            [&](int i, int, bool, float& x) { buffer[(kHeads + 1 + i) * device::kWave] = x; });
      }
      device::sync_block();
      if (own_->wave_tile == 0) {
        float limit[kHeads], f[kHeads];
        DEVICE_UNROLL
        for (int c = 0; c < kHeads; ++c)
          limit[c] = device::max(state_.limit[c], buffer[c * device::kWave]);
        const float unit = buffer[kHeads * device::kWave];
        state_.rescale(limit, device::min(state_.unit, unit));
        DEVICE_UNROLL
        for (int c = 0; c < kHeads; ++c)
          f[c] = device::exp2_fast(buffer[c * device::kWave] - limit[c]);
        const float units = state_.unit * inverse_of_power(unit);
        state_.for_each([&](int i, int c, bool in_units, float& x) {
          x = device::fma(buffer[(kHeads + 1 + i) * device::kWave], in_units ? f[c] * units : f[c],
                          x);
        });
      }
    }
  }

  const StreamParams& p_;
  uint8_t* const shared_;
  WaveState* const own_;
  State state_;
  Math math_;
};

template <int kKeyBits, int kValueBits, int kDim, int kColumns, int kStride>
DEVICE_KERNEL_BLOCKS(kStreamThreads, stream_blocks(kColumns))
decode_stream(StreamParams p) {
  DEVICE_SHARED(Batch, batches, kBatches);
  DEVICE_SHARED(WaveState, waves, kWaves);
  DEVICE_SHARED(int, next_ids, device::kWave);
  DEVICE_SHARED(StageSlot, slots, kStride != kAnyStride ? kMostRing : 1);
  DEVICE_SHARED(Cursor, ahead, 1);
  DEVICE_DYNAMIC_SHARED(uint8_t, shared);
  Stream<kKeyBits, kValueBits, kDim, kColumns, kStride>(p, device::data(shared),
                                                        device::data(waves) + device::wave())
      .run(device::data(batches), device::data(next_ids), device::data(slots), device::data(ahead));
}

}  // namespace tq
