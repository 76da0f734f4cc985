// SPDX-License-Identifier: Apache-2.0
// A fast decode in one launch, for few sequences. A block takes one unit (a tile of up to 8 query
// heads of a KV head) and a share of the tokens; its waves take different tiles of 16 tokens, each
// with a ring of its own, and meet at the end of a sequence only. The last block of a sequence and
// unit merges all, in their order.
//
// One sequence is dealt out tile by tile: block i takes tiles i, i + parts ..., so that it can ask
// for its pages before it knows the length. Several are laid end to end and cut
// (decode_schedule.h).
#pragma once

#include "tq/decode_few_merge.h"
#include "tq/decode_few_queries.h"

namespace tq {

// kOne: there is one sequence.
template <int kKeyBits, int kValueBits, int kDim, int kColumns, bool kOne>
class Few {
  using At = FewLayout<kKeyBits, kValueBits, kDim, kColumns>;
  static constexpr bool kPacked = kColumns == 4;
  using Math = TileMath<kKeyBits, kValueBits, kDim, kPacked>;
  using State = typename Math::State;
  using Queries = FewQueries<kKeyBits, kDim, kColumns>;
  static_assert(kKeyBits == 8 || Queries::kRowsBytes + At::kLine <= kFewTurnTiles * At::kTileBytes);
  static constexpr int kHeadWaves = kDim / device::kWave;  // that merge a head

 public:
  DEVICE_FUNCTION Few(const FewParams& p, uint8_t* shared, Statistics* of_waves, float* gains,
                      int* is_last)
      : p_(p), of_waves_(of_waves), gains_(gains), is_last_(is_last) {
    constexpr int kAlignment = pair_table_alignment(kKeyBits);
    shared_ = shared + (static_cast<uint32_t>(-device::shared_address(shared)) & (kAlignment - 1));
  }

  DEVICE_FUNCTION void run() {
    if constexpr (kOne)
      run_one();
    else
      run_all();
  }

 private:
  // One sequence: all loads are under way before the first is waited for.
  DEVICE_FUNCTION void run_one() {
    const Schedule& s = p_.schedule;
    const FewUnit unit(p_);
    LoadedIndex length;
    // Row 0, but the compiler may not know: it would wait for the number, to have it once a wave.
    const int row = device::min(device::lane(), s.batch - 1);
    length.load(s.seq_lens.data, s.seq_lens.dtype, row * s.seq_lens.stride[0]);
    FewSegment segment{};
    segment.first = unit.part;
    segment.step = s.parts;
    segment.end = p_.capacity_tiles;  // until the length is known
    load_id(segment, device::lane());
    load_codebook();
    uint64_t* const arrivals = p_.arrivals + unit.unit;
    uint64_t arrived = 0;
    if (device::thread() == 0) arrived = device::atomic_or(arrivals, 0);
    Queries queries(p_, rows(), 0, unit.first_head, unit.heads);
    prepare_sources(unit.kv_head);
    device::sync_block();
    const int64_t tokens = length.value(s.seq_lens.dtype);
    segment.tokens = static_cast<int>(tokens < 0 ? 0 : tokens < s.capacity ? tokens : s.capacity);
    segment.end = tiles_of(s, segment.tokens);
    segment.count = device::min(s.parts, segment.end);
    if (segment.end == 0 && unit.part == 0) store_empty<kDim>(p_, unit, 0);
    if (unit.part >= segment.count) return device::copy_async_wait<0>();
    attend(unit, segment, queries, arrived, arrivals);
  }

  DEVICE_FUNCTION void run_all() {
    const Schedule& s = p_.schedule;
    const FewUnit unit(p_);
    load_codebook();
    const Runs runs = runs_of(s);
    DEVICE_ROLLED
    for (int row = unit.part; row < s.batch; row += s.parts)
      if (stages_of(s, row) == 0) store_empty<kDim>(p_, unit, row);
    if (runs.total == 0) return;
    const Cut cut = cut_of(s, runs.total);
    if (unit.part >= cut.parts) return;
    prepare_sources(unit.kv_head);
    const int last = first_stage(cut, unit.part + 1);
    DEVICE_ROLLED
    for (int stage = first_stage(cut, unit.part); stage < last;) {
      device::sync_block();  // for the sources; shared memory is free again
      const Place at = find_stage(s, runs, stage);
      const int stages = stages_of(s, at.row), begin = stage - at.stage;
      stage += device::min(stages - at.stage, last - stage);
      FewSegment segment{};
      segment.row = at.row;
      segment.tokens = tokens_of(s, at.row);
      segment.first = at.stage * kFewStage;
      segment.step = 1;
      segment.end = device::min((stage - begin) * kFewStage, tiles_of(s, segment.tokens));
      segment.first_part = part_of(cut, begin);
      segment.count = part_of(cut, begin + stages - 1) - segment.first_part + 1;
      load_id(segment, device::lane());
      uint64_t* const arrivals = p_.arrivals + int64_t{segment.row} * p_.units + unit.unit;
      uint64_t arrived = 0;
      if (device::thread() == 0) arrived = device::atomic_or(arrivals, 0);
      Queries queries(p_, rows(), segment.row, unit.first_head, unit.heads);
      attend(unit, segment, queries, arrived, arrivals);
    }
  }

  // The tile of a segment that is the wave's n-th.
  DEVICE_FUNCTION static int tile_of(const FewSegment& s, int n) {
    return s.first + s.step * (device::wave() + device::waves() * n);
  }
  // Starts to load the page of the wave's n-th tile.
  DEVICE_FUNCTION void load_id(const FewSegment& s, int n) {
    const int tile = tile_of(s, n);
    if (tile < s.end)
      next_id_.load(
          p_.table, p_.table_dtype,
          int64_t{s.row} * p_.table_row + int64_t{p_.schedule.page_of(tile)} * p_.table_column);
  }
  DEVICE_FUNCTION FewEntry* entries() const {
    return reinterpret_cast<FewEntry*>(shared_ + At::kEntriesAt) + device::wave() * kFewEntries;
  }
  DEVICE_FUNCTION uint8_t* ring() const {
    return shared_ + At::rings(device::waves()) + device::wave() * At::kRingBytes;
  }

  DEVICE_FUNCTION FewSegment& own_segment() const {
    return *reinterpret_cast<FewSegment*>(shared_ + At::kEntriesAt +
                                          device::waves() * At::kEntriesBytes +
                                          device::wave() * At::kSegmentBytes);
  }
  // Of Pi; they lie where the second turn will, behind what the first turn's tiles are shifted by.
  DEVICE_FUNCTION uint8_t* rows() const {
    return ring() + kFewTurnTiles * At::kTileBytes + At::kLine;
  }
  // What lies of a head's begin in a tile beyond a unit of 16 bytes.
  DEVICE_FUNCTION int remainder(int kv_head) const {
    return static_cast<int>(p_.kv_head_offset(kv_head) & 15);
  }

  // Of the tiles of a ring.
  DEVICE_FUNCTION int shift(int kv_head) const {
    return static_cast<int>(p_.kv_head_offset(kv_head)) & At::kShift;
  }

  // Where the units lie that a lane copies, from a tile's begin in the cache; all tiles alike.
  DEVICE_FUNCTION void prepare_sources(int kv_head) {
    uint32_t* const to = reinterpret_cast<uint32_t*>(shared_ + At::kSources);
    DEVICE_ROLLED
    for (int i = device::thread(); i < At::kCopies * device::kWave; i += device::threads()) {
      const int token = device::min(i / At::kCopied, kTileTokens - 1), unit = i % At::kCopied;
      const int at = token * p_.token_stride + remainder(kv_head);
      const int last = (at % 16 + At::kSlotBytes - 1) / 16;
      to[i] = static_cast<uint32_t>(at / 16 + device::min(unit, last)) * 16;
    }
  }

  // Copies of the wave's turn into the ring; finds the tiles' places first.
  DEVICE_FUNCTION void copy_turn(int turn) {
    const FewSegment& s = own_segment();
    const int n = turn * kFewTurnTiles, lane = device::lane();
    constexpr int kHalf = kFewEntries / 2;
    if (tile_of(s, n) >= s.end) return;
    FewEntry* const own = entries();
    if (n % kHalf == 0) {
      if (lane / kHalf == n / kHalf % 2) {
        const Schedule& schedule = p_.schedule;
        const int tile = tile_of(s, n + lane % kHalf);
        const int64_t id = next_id_.value(p_.table_dtype);
        FewEntry entry{};
        if (tile < s.end && id >= 0 && id < p_.blocks) {
          const int in_page = tile - schedule.page_of(tile) * schedule.page_tiles;
          entry.offset = id * p_.block_stride + in_page * p_.tile_stride;
          entry.live = tokens_from(schedule, s.tokens, tile);
        }
        own[lane] = entry;
        load_id(s, n + kFewEntries + lane % kHalf);
      }
      device::sync_wave();
    }
    const uint8_t* const cache = s.cache;
    const uint32_t* const sources =
        reinterpret_cast<const uint32_t*>(shared_ + At::kSources) + lane;
    const int own_at =
        shift(device::block_x()) +
        (At::kEven ? lane / At::kCopied * At::kPitch + lane % At::kCopied * 16 : lane * 16);
    SharedAddress to =
        device::shared_address(ring() + turn % kFewRing * kFewTurnTiles * At::kTileBytes + own_at);
    FewEntry entry[kFewTurnTiles];
    int all = kTileTokens;
    DEVICE_UNROLL
    for (int t = 0; t < kFewTurnTiles; ++t) {
      entry[t] = device::load16<FewEntry>(own + n % kFewEntries + t);
      all = device::min(all, entry[t].live);
    }
    if (all == kTileTokens) {
      uint32_t at[At::kCopies];  // all of these first: a copy waits for loads before it
      DEVICE_UNROLL
      for (int i = 0; i < At::kCopies; ++i) at[i] = sources[i * device::kWave];
      DEVICE_UNROLL
      for (int t = 0; t < kFewTurnTiles; ++t) DEVICE_UNROLL
      for (int i = 0; i < At::kCopies; ++i)
        if ((i + 1) * device::kWave <= kTileTokens * At::kCopied ||
            lane + i * device::kWave < kTileTokens * At::kCopied)
          device::copy_async16_at<0>(to + static_cast<uint32_t>(t * At::kTileBytes + i * At::kStep),
                                     cache + entry[t].offset + at[i]);
    } else {
      DEVICE_ROLLED
      for (int t = 0; t < kFewTurnTiles; ++t, to += At::kTileBytes) {
        const FewEntry one = own[n % kFewEntries + t];
        DEVICE_ROLLED
        for (int i = 0; lane + i * device::kWave < one.live * At::kCopied; ++i)
          device::copy_async16_at<0>(to + static_cast<uint32_t>(i * At::kStep),
                                     cache + one.offset + sources[i * device::kWave]);
      }
    }
  }

  // `arrived`: what thread 0 has read of the count of arrivals.
  DEVICE_FUNCTION void attend(const FewUnit& unit, FewSegment segment, Queries& queries,
                              uint64_t arrived, uint64_t* arrivals) {
    segment.cache = p_.cache + (p_.kv_head_offset(unit.kv_head) & ~int64_t{15});
    if (device::lane() == 0) own_segment() = segment;
    device::sync_wave();
    float key_constant = p_.stream.fp8_factor;
    DEVICE_ROLLED
    for (int turn = 0; turn < kFewRing; ++turn) {
      if (turn == 1) {
        // The count of done blocks begins with this call's tag. The workspace holds anything before
        // the first run, and the count of the last replay of a graph (which ends as it began)
        // thereafter.
        if (device::thread() == 0 && arrived - p_.tag >= static_cast<uint64_t>(own_segment().count))
          device::atomic_cas(arrivals, arrived, p_.tag);
        if constexpr (kKeyBits != 8) {
          const float power = fill_table();
          key_constant =
              p_.stream.norm_correction ? 1e-16f * power * power : inverse_of_power(power);
        }
        device::copy_async_wait<1>();
        device::sync_wave();
        queries.finish(shared_ + At::kQueries, gains_);
        device::sync_wave();
      }
      copy_turn(turn);
      device::copy_async_commit();
    }
    device::sync_block();
    load_queries(shared_ + At::kQueries);
    math_.place(p_.stream, 0, [&](int token) {
      const int at = token * p_.token_stride + remainder(unit.kv_head);
      return static_cast<uint32_t>(shift(unit.kv_head) + token * At::kPitch + at % 16);
    });
    state_.clear();
    // Turn i attends to turn i's tiles and starts the copies of turn i + kFewRing.
    DEVICE_ROLLED
    for (int turn = 0; tile_of(own_segment(), turn * kFewTurnTiles) < own_segment().end; ++turn) {
      device::copy_async_wait<kFewRing - 1>();
      device::sync_wave();
      attend_turn(turn, key_constant);
      device::sync_wave();  // all lanes have read the tiles
      copy_turn(turn + kFewRing);
      device::copy_async_commit();
    }
    device::copy_async_wait<0>();
    device::sync_wave();
    finish();
  }

  DEVICE_FUNCTION void attend_turn(int turn, float key_constant) {
    const SharedAddress lane_table =
        device::shared_address(shared_ + device::lane() % kPairLanes * kPairBytes);
    const SharedAddress tile =
        device::shared_address(ring() + turn % kFewRing * kFewTurnTiles * At::kTileBytes);
    const FewEntry* const entry = entries() + turn * kFewTurnTiles % kFewEntries;
    if constexpr (Math::kTiles == 2) {
      const int live[2] = {entry[0].live, entry[1].live};
      const SharedAddress tiles[2] = {tile, tile + At::kTileBytes};
      take(tiles, live, lane_table, key_constant);
    } else {
      DEVICE_ROLLED
      for (int t = 0; t < kFewTurnTiles; ++t) {
        const int live[1] = {entry[t].live};
        const SharedAddress tiles[1] = {tile + static_cast<uint32_t>(t * At::kTileBytes)};
        take(tiles, live, lane_table, key_constant);
      }
    }
  }

  DEVICE_FUNCTION void take(const SharedAddress (&tiles)[Math::kTiles],
                            const int (&live)[Math::kTiles], SharedAddress lane_table,
                            float key_constant) {
    int all = kTileTokens, some = 0;
    DEVICE_UNROLL
    for (int t = 0; t < Math::kTiles; ++t) all = device::min(all, live[t]), some |= live[t];
    if (!some) return;
    float s[4] = {}, squares[2] = {};
    math_.dot_products(p_.stream, tiles, lane_table, s, squares);
    math_.attend(p_.stream, tiles, Math::own_tile() ? live[Math::kTiles - 1] : live[0],
                 all == kTileTokens, s, squares, key_constant, state_);
  }

  DEVICE_FUNCTION void load_queries(const uint8_t* fragments) {
    const int lane = device::lane();
    DEVICE_UNROLL
    for (int k = 0; k < Math::kSteps; ++k) {
      const SharedAddress at =
          device::shared_address(fragments) +
          static_cast<uint32_t>((k * device::kWave + lane) * Math::kQueryRegisters * 4);
      if constexpr (kPacked) {
        const auto words = device::load_shared8(at);
        DEVICE_UNROLL
        for (int r = 0; r < 2; ++r) math_.query[k][r] = words.x[r];
      } else {
        const auto words = device::load_shared16(at);
        DEVICE_UNROLL
        for (int r = 0; r < 4; ++r) math_.query[k][r] = words.x[r];
      }
    }
    DEVICE_UNROLL
    for (int c = 0; c < 2; ++c) math_.gain[c] = gains_[(lane % 4 * 2 + c) % kColumns];
  }

  // A lane's centroid, early; the pair table from all lanes' (decode_fragments.h), late. Returns
  // the power of two that all centroids carry in it.
  DEVICE_FUNCTION void load_codebook() {
    if constexpr (kKeyBits != 8)
      centroid_ = p_.centroids.data[device::lane() % (1 << kKeyBits) * p_.centroids.stride];
  }
  DEVICE_FUNCTION float fill_table() const {
    constexpr int kCodes = 1 << kKeyBits, kChunks = kEntryBytes / 16;
    const int lane = device::lane();
    const float power = centroid_power(device::wave_max(device::abs(centroid_)));
    DEVICE_ROLLED
    for (int i = device::wave(); i < kCodes * kCodes / device::kWave; i += device::waves()) {
      const int entry = i * device::kWave + lane;
      const device::Words2 pair = split_pair(device::shuffle(centroid_, entry % kCodes) * power,
                                             device::shuffle(centroid_, entry / kCodes) * power);
      const device::Words4 two{{pair.x[0], pair.x[1], pair.x[0], pair.x[1]}};
      uint8_t* const to = shared_ + entry * kEntryBytes;
      DEVICE_UNROLL
      for (int c = 0; c < kChunks; ++c)  // eight lanes write to all banks
        *reinterpret_cast<device::Words4*>(to + (c ^ lane % kChunks) * 16) = two;
    }
    return power;
  }

  // Sums over the tiles of this wave, then of the block, then of all parts of the sequence.
  DEVICE_FUNCTION void finish() {
    const int lane = device::lane(), group = lane / 4, member = lane % 4, wave = device::wave();
    DEVICE_UNROLL
    for (int mask = kPacked ? 2 : 4; mask < device::kWave; mask *= 2) DEVICE_UNROLL
    for (int c = 0; c < 2; ++c) {
      state_.sum[c] += device::shuffle_xor(state_.sum[c], mask);
      state_.zero[c] += device::shuffle_xor(state_.zero[c], mask);
    }
    // Results begin where tiles may: before that, the last copies of the wave before may come to
    // lie.
    float* const own = reinterpret_cast<float*>(ring() + At::kShift);
    const float inverse_unit = inverse_of_power(state_.unit);
    DEVICE_UNROLL
    for (int h = 0; h < (kPacked ? 1 : 2); ++h) {
      const int half = kPacked ? member / 2 : h;
      DEVICE_UNROLL
      for (int c = 0; c < 2; ++c) {
        const int column = Math::output_column(c);
        Four x[2];
        Math::half_output(state_, half, c, inverse_unit, state_.zero[c], x);
        float* const to =
            own + column * At::kOutPitch + field_dim<kValueBits, kDim>(group, 8 * half);
        *reinterpret_cast<Four*>(to) = x[0];
        *reinterpret_cast<Four*>(to + 4) = x[1];
        if (group == 0 && half == 0)
          of_waves_[wave * kFewHeads + column] = {state_.limit[c], state_.sum[c]};
      }
    }
    device::sync_block();

    const FewUnit unit(p_);
    const FewSegment s = own_segment();
    // Results of part and row lie at part + row: parts and rows come in one order.
    const int64_t at_first = (int64_t{s.first_part + s.row} * p_.units + unit.unit) * kFewHeads;
    const int64_t at_step = int64_t{p_.units} * kFewHeads;
    const int64_t at_own = at_first + (unit.part - s.first_part) * at_step;
    bool all = s.count == 1;
    DEVICE_ROLLED
    for (int item = wave; item < unit.heads * kHeadWaves; item += device::waves()) {
      const int head = item / kHeadWaves, d = item % kHeadWaves * device::kWave + lane;
      const FewMean mean = average_waves<At::kRingBytes>(
          of_waves_ + head,
          shared_ + At::rings(device::waves()) + At::kShift + (head * At::kOutPitch + d) * 4);
      if (all) {
        store_mean(p_, s.row, unit.first_head + head, d, mean);
      } else {
        p_.partial[(at_own + head) * kDim + d] = mean.sum;
        if (d == 0) p_.statistics[at_own + head] = {mean.top, mean.total};
      }
    }
    if (all) return;

    device::sync_block();
    if (device::thread() == 0) {
      uint64_t* const arrivals = p_.arrivals + int64_t{s.row} * p_.units + unit.unit;
      device::fence_acquire_release();
      const uint64_t before = device::atomic_add(arrivals, 1);
      is_last_[0] = before - p_.tag + 1 == static_cast<uint64_t>(s.count);
      if (is_last_[0]) device::atomic_exchange(arrivals, p_.tag);
      device::fence_acquire_release();
    }
    device::sync_block();
    if (!is_last_[0]) return;
    DEVICE_ROLLED
    for (int item = wave; item < unit.heads * kHeadWaves; item += device::waves()) {
      const int head = item / kHeadWaves, d = item % kHeadWaves * device::kWave + lane;
      store_mean(
          p_, s.row, unit.first_head + head, d,
          average_parts(s.count, p_.statistics + at_first + head,
                        p_.partial + (at_first + head) * kDim + d, p_.units * kFewHeads, kDim));
    }
  }

  const FewParams& p_;
  uint8_t* shared_;
  Statistics* const of_waves_;
  float* const gains_;
  int* const is_last_;
  LoadedIndex next_id_;
  float centroid_;
  State state_;
  Math math_;
};

template <int kKeyBits, int kValueBits, int kDim, int kColumns, bool kOne>
DEVICE_KERNEL_BLOCKS(kFewWaves* device::kWave, 1)
decode_few(FewParams p) {
  DEVICE_SHARED(Statistics, of_waves, kFewWaves * kFewHeads);
  DEVICE_SHARED(float, gains, kFewHeads);
  DEVICE_SHARED(int, is_last, 1);
  DEVICE_DYNAMIC_SHARED(uint8_t, shared);
  Few<kKeyBits, kValueBits, kDim, kColumns, kOne>(p, device::data(shared), device::data(of_waves),
                                                  device::data(gains), device::data(is_last))
      .run();
}

}  // namespace tq
