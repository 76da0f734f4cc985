// SPDX-License-Identifier: Apache-2.0
// What lanes do together: each call arrives, the last lane computes for all, and every lane takes
// its result. Only the two barriers order memory; shuffles, votes and multiplications do not, as on
// a GPU.
#include <algorithm>
#include <iterator>

#include "block.h"
#include "multiply.h"

namespace simt {

void fail(const std::string& what, Site site) {
  if (!current) throw KernelError(text_of(site) + ": " + what);
  running_lane().owner->fail(running_lane(), what, site);
}

void sync_block(Site site) { running_lane().owner->arrive_at_barrier(running_lane(), site); }

void sync_wave(Site site) {
  Lane& lane = running_lane();
  Wave& wave = *lane.in;
  SyncPoint& order = wave.order[wave.generation % 2];
  order.release();
  if (lane.owner->arrive(lane, Collective::sync_wave, site)) {
    ++wave.generation;
    lane.owner->finish(wave);
  } else {
    lane.owner->wait(lane);
  }
  order.acquire();
}

// All fences lie on one line: each comes after all that ran before it.
void fence() {
  static SyncPoint order;
  order.acquire();
  order.release();
}

uint64_t shuffle(uint64_t bits, int source_lane, Site site) {
  Lane& lane = running_lane();
  Wave& wave = *lane.in;
  const int width = lane.owner->wave_width();
  if (source_lane < 0 || source_lane >= width)
    fail("shuffle from lane " + std::to_string(source_lane) + " of a wave of " +
             std::to_string(width),
         site);
  wave.value[lane.lane] = bits;
  wave.source[lane.lane] = source_lane;
  if (lane.owner->arrive(lane, Collective::shuffle, site)) {
    for (int l = 0; l < width; ++l) wave.result[l] = wave.value[wave.source[l]];
    lane.owner->finish(wave);
  } else {
    lane.owner->wait(lane);
  }
  return wave.result[lane.lane];
}

uint64_t ballot(bool vote, Site site) {
  Lane& lane = running_lane();
  Wave& wave = *lane.in;
  const bool last = lane.owner->arrive(lane, Collective::ballot, site);
  if (vote) wave.votes |= lane.bit;
  if (last) {
    wave.ballot = wave.votes;
    wave.votes = 0;
    lane.owner->finish(wave);
  } else {
    lane.owner->wait(lane);
  }
  return wave.ballot;
}

uint64_t reduce(uint64_t bits, void (*combine)(uint64_t* lanes), Site site) {
  Lane& lane = running_lane();
  Wave& wave = *lane.in;
  wave.value[lane.lane] = bits;
  if (lane.owner->arrive(lane, Collective::reduce, site)) {
    // On this lane's stack: `combine` may be instrumented, and would race on the wave's arrays.
    uint64_t lanes[64];
    std::copy(wave.value, wave.value + 64, lanes);
    combine(lanes);
    std::copy(lanes, lanes + 64, wave.result);
    lane.owner->finish(wave);
  } else {
    lane.owner->wait(lane);
  }
  return wave.result[lane.lane];
}

void multiply(Half type, float* c, const uint16_t* a, const uint16_t* b, Site site) {
  Lane& lane = running_lane();
  Wave& wave = *lane.in;
  wave.c[lane.lane] = c;
  wave.a[lane.lane] = a;
  wave.b[lane.lane] = b;
  if (lane.owner->arrive(lane, Collective::multiply, site)) {
    multiply_fragments(type, lane.owner->wave_width(), wave.c, wave.a, wave.b);
    lane.owner->finish(wave);
  } else {
    lane.owner->wait(lane);
  }
}

void multiply_bytes(int32_t* c, const uint32_t* a, const uint32_t* b, Site site) {
  Lane& lane = running_lane();
  Wave& wave = *lane.in;
  if (lane.owner->wave_width() != 32) fail("multiply_16x8x32 is of 32 lanes", site);
  wave.byte_c[lane.lane] = c;
  wave.byte_a[lane.lane] = a;
  wave.byte_b[lane.lane] = b;
  if (lane.owner->arrive(lane, Collective::multiply, site)) {
    multiply_byte_fragments(wave.byte_c, wave.byte_a, wave.byte_b);
    lane.owner->finish(wave);
  } else {
    lane.owner->wait(lane);
  }
}

void* static_shared(const void* key, const char* name, size_t bytes, Site site) {
  Lane& lane = running_lane();
  Block& block = *lane.owner;
  void* data = block.shared().claim(key, name, bytes);
  const size_t total = block.shared().static_bytes() + block.shared().dynamic_bytes();
  if (!data || total > shared_limit(block.wave_width()))
    fail("no room for the shared array '" + std::string(name) + "' of " + std::to_string(bytes) +
             " bytes beside " + std::to_string(block.shared().static_bytes()) +
             " bytes of static and " + std::to_string(block.shared().dynamic_bytes()) +
             " of dynamic shared memory; the limits are " + std::to_string(kStaticSharedLimit) +
             " static and " + std::to_string(shared_limit(block.wave_width())) + " together",
         site);
  return data;
}

void* dynamic_shared(size_t* bytes) {
  const SharedMemory& shared = running_lane().owner->shared();
  *bytes = shared.dynamic_bytes();
  return shared.dynamic();
}

void begin_copy(Copy copy, Site site) {
  Lane& lane = running_lane();
  if (reinterpret_cast<uintptr_t>(copy.to) % 16 || reinterpret_cast<uintptr_t>(copy.from) % 16)
    fail(std::string("copy_async16: the ") +
             (reinterpret_cast<uintptr_t>(copy.to) % 16 ? "target" : "source") +
             " is not aligned to 16 bytes",
         site);
  if (!lane.owner->shared().contains(copy.to, 16))
    fail("copy_async16: the target is not in shared memory", site);
  lane.copies.push_back(copy);
  lane.last_copy = site;
}

void commit_copies() {
  Lane& lane = running_lane();
  lane.group_ends.push_back(lane.copies.size());
}

const Copy* take_copies(int open, size_t* count) {
  Lane& lane = running_lane();
  const size_t from = lane.groups_done ? lane.group_ends[lane.groups_done - 1] : 0;
  const size_t groups = lane.group_ends.size();
  *count = 0;
  if (groups <= lane.groups_done + static_cast<size_t>(open)) return nullptr;
  lane.groups_done = groups - static_cast<size_t>(open);
  *count = lane.group_ends[lane.groups_done - 1] - from;
  return lane.copies.data() + from;
}

// A barrier's own line of order: a lane at it comes after those that were there before.
namespace {
SyncPoint& order_of(BulkBarrier* barrier) { return *reinterpret_cast<SyncPoint*>(barrier); }
}  // namespace

void begin_bulk_barrier(BulkBarrier* barrier, Site site) {
  if (!running_lane().owner->shared().contains(barrier, sizeof(*barrier)))
    fail("bulk_begin: the barrier is not in shared memory", site);
  *barrier = {};
  leave_bulk_barrier(barrier);
}

void announce_bulk_copies(BulkBarrier* barrier, uint32_t bytes, Site site) {
  order_of(barrier).acquire();
  if (barrier->open) fail("bulk_announce: nobody has waited for what was announced before", site);
  barrier->open = true;
  ++running_lane().owner->open_bulk_barriers;
  barrier->announced = bytes;
  barrier->noted = barrier->copies = 0;
  leave_bulk_barrier(barrier);
  if (bytes == 0) running_lane().owner->copies_are_complete();
}

void begin_bulk_copy(BulkBarrier* barrier, BulkCopy copy, Site site) {
  order_of(barrier).acquire();
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  if (!aligned(copy.to) || !aligned(copy.from) || copy.bytes % 16 || copy.bytes == 0)
    fail("bulk_copy: target, source and bytes have to be multiples of 16, and some bytes", site);
  if (!running_lane().owner->shared().contains(copy.to, copy.bytes))
    fail("bulk_copy: the target is not in shared memory", site);
  if (!barrier->open || barrier->noted + copy.bytes > barrier->announced)
    fail("bulk_copy: more bytes than were announced", site);
  if (barrier->copies == std::size(barrier->copy))
    fail("bulk_copy: more copies at once than simt keeps", site);
  barrier->noted += copy.bytes;
  barrier->copy[barrier->copies++] = copy;
  leave_bulk_barrier(barrier);
  if (barrier->noted == barrier->announced) running_lane().owner->copies_are_complete();
}

const BulkCopy* take_bulk_copies(BulkBarrier* barrier, uint32_t parity, size_t* count, Site site) {
  order_of(barrier).acquire();
  *count = 0;
  for (;;) {
    if (barrier->phase % 2 != parity) return nullptr;  // that phase is over
    if (barrier->open && barrier->noted == barrier->announced) break;
    running_lane().owner->wait_for_copies(
        running_lane(), "bulk_wait: waits for bytes that nobody has announced and copied", site);
    order_of(barrier).acquire();
  }
  barrier->open = false;
  --running_lane().owner->open_bulk_barriers;
  ++barrier->phase;
  *count = barrier->copies;
  return barrier->copy;
}

void leave_bulk_barrier(BulkBarrier* barrier) { order_of(barrier).release(); }

}  // namespace simt
