// SPDX-License-Identifier: Apache-2.0
// What compiled kernel code sees of the executor: which lane is running, and the calls that every
// lane of a wave or a block has to reach together. All of it works on the lane that calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>

namespace simt {

using Site = std::source_location;  // where in the kernel's source a call stands, for reports

struct BlockPosition {
  int threads;
  int x, y, z;
  int blocks_x, blocks_y, blocks_z;
};

struct LanePosition {
  int thread, lane, wave;
  const BlockPosition* block;
};

// initial-exec: a plugin is loaded with dlopen, and the default model would call a function for
// every thread().
extern constinit thread_local const LanePosition* current
    __attribute__((tls_model("initial-exec")));

// Stops the kernel: the launch throws a LaunchError with kernel, block, lane, place and this text.
[[noreturn]] void fail(const std::string& what, Site site);

void sync_block(Site site);
void sync_wave(Site site);
void fence();

uint64_t shuffle(uint64_t bits, int source_lane, Site site);
uint64_t ballot(bool vote, Site site);
// A reduction over the wave. The last lane to arrive has `combine` turn the values of all lanes
// into their results.
uint64_t reduce(uint64_t bits, void (*combine)(uint64_t* lanes), Site site);

enum class Half : uint8_t { bf16, f16 };
// c += a b over the whole wave; every lane brings its fragments. 32 lanes: m16n8k16, 64 lanes:
// 16x16x16.
void multiply(Half type, float* c, const uint16_t* a, const uint16_t* b, Site site);

// The same of signed bytes, exactly, on 32 lanes: m16n8k32.
void multiply_bytes(int32_t* c, const uint32_t* a, const uint32_t* b, Site site);

// The block's one array of this declaration (`key` stands for it); claimed and filled with 0xff by
// the first lane that comes by. 16-byte aligned, with red zones around it.
void* static_shared(const void* key, const char* name, size_t bytes, Site site);
void* dynamic_shared(size_t* bytes);

// Asynchronous copies of 16 bytes. begin_copy checks and notes one. take_copies gives those that a
// wait with at most `open` open groups covers, one after the other; the caller moves the bytes, so
// that the sanitizers see it.
struct Copy {
  void* to;
  const void* from;  // null: zeros
};
void begin_copy(Copy copy, Site site);
void commit_copies();
const Copy* take_copies(int open, size_t* count);

// Bulk copies, which a barrier in shared memory counts. The lane that announces bytes makes the
// copies of them right after; begin_bulk_copy checks and notes one. take_bulk_copies gives the lane
// that comes first after the last of them what to move, the others nothing; each comes after the
// calls for the same barrier before its own. leave_bulk_barrier ends such a call.
struct BulkCopy {
  void* to;
  const void* from;
  uint32_t bytes;
};
struct BulkBarrier {
  uint32_t phase, announced, noted, copies;
  bool open;  // bytes are announced, nobody has waited for them
  BulkCopy copy[8];
};
void begin_bulk_barrier(BulkBarrier* barrier, Site site);
void announce_bulk_copies(BulkBarrier* barrier, uint32_t bytes, Site site);
void begin_bulk_copy(BulkBarrier* barrier, BulkCopy copy, Site site);
const BulkCopy* take_bulk_copies(BulkBarrier* barrier, uint32_t parity, size_t* count, Site site);
void leave_bulk_barrier(BulkBarrier* barrier);

}  // namespace simt
