// SPDX-License-Identifier: Apache-2.0
// A block while it runs: its lanes as fibers, who may run, who waits where, and its shared memory.
// A Block is reused for block after block, and by later launches of the same thread, because making
// stacks costs more than small kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "executor.h"
#include "fiber.h"
#include "lane.h"
#include "sanitizers.h"
#include "shared_memory.h"

namespace simt {

enum class Collective : uint8_t {
  none,
  sync_block,
  sync_wave,
  shuffle,
  ballot,
  reduce,
  multiply,
  bulk_wait  // of a lane alone
};
const char* name_of(Collective op);
std::string text_of(Site site);  // "file:line"

class Block;
struct Wave;

struct Lane : LanePosition {
  Fiber fiber;
  Block* owner = nullptr;
  Wave* in = nullptr;
  uint64_t bit = 0;
  void* stack = nullptr;
  size_t stack_bytes = 0;
  Collective waits_in = Collective::none;
  Site waits_at;
  // Asynchronous copies, oldest first; group_ends[g] is the end of group g in `copies`.
  std::vector<Copy> copies;
  std::vector<size_t> group_ends;
  size_t groups_done = 0;
  Site last_copy;

  ~Lane();
};

struct Wave {
  int index = 0;
  uint64_t full = 0;        // all its lanes
  uint64_t ready = 0;       // lanes that can run
  uint64_t arrived = 0;     // lanes that wait in `op`
  uint64_t left = 0;        // lanes that ended the kernel
  uint64_t for_copies = 0;  // lanes that wait for bulk copies
  Collective op = Collective::none;
  Site site;
  uint64_t votes = 0, ballot = 0;
  uint64_t value[64] = {}, result[64] = {};
  int source[64] = {};
  float* c[64] = {};
  const uint16_t *a[64] = {}, *b[64] = {};
  int32_t* byte_c[32] = {};
  const uint32_t *byte_a[32] = {}, *byte_b[32] = {};
  // Two, by turns: a lane that runs ahead into the next barrier must not order itself before one
  // still leaving this.
  SyncPoint order[2];
  unsigned generation = 0;
};

// Thrown through the lanes of a block that failed, so that their stacks unwind.
struct Abandoned {};

class Block {
 public:
  Block() = default;
  Block(const Block&) = delete;  // lanes hold its address

  void prepare(const Launch& launch, const Options& options);
  // Runs block number `index` in x-fastest order. False: it failed, failure() says how.
  bool run(int64_t index);
  const std::string& failure() const { return failure_; }
  // What the lanes did is visible to the caller from here on.
  void join();

  // For the running lane.
  void arrive_at_barrier(Lane& lane, Site site);
  // True for the lane that came last: it computes for all, then calls finish().
  bool arrive(Lane& lane, Collective op, Site site);
  void finish(Wave& wave);  // lets the lanes of the wave go
  void wait(Lane& lane);    // until finish()
  [[noreturn]] void fail(const Lane& lane, const std::string& what, Site site);
  // Until bulk copies are complete, of whichever barrier, or nothing else can run: then it fails.
  void wait_for_copies(Lane& lane, const char* why, Site site);
  void copies_are_complete();
  SharedMemory& shared() { return shared_; }
  int open_bulk_barriers = 0;  // announced bytes that nobody has waited for
  int wave_width() const { return launch_->wave; }

 private:
  static void lane_main(void* lane);
  void add_lane();
  // Not inlined into the loop of lane_main, where the address of `current` would be kept over a
  // move to another thread.
  __attribute__((noinline)) void run_lane(Lane& lane);
  __attribute__((noinline)) void leave(Lane& lane);
  Lane* pick();
  void park(Lane& lane);
  void give_up(std::string text);
  std::string where() const;
  std::string deadlock() const;
  uint64_t random();

  BlockPosition position_{};
  const Launch* launch_ = nullptr;
  Order order_ = Order::forward;
  uint64_t seed_ = 0, random_ = 1;
  Fiber thread_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Wave> waves_;
  uint64_t ready_waves_ = 0;
  int turn_ = 0;  // the wave that ran last
  int left_ = 0, at_barrier_ = 0;
  Site barrier_site_;
  bool failing_ = false;
  bool no_copies_ = false;  // will come: nobody is left to make them
  std::string failure_;
  SharedMemory shared_;
  SyncPoint begin_, end_[2], barrier_[2];
  unsigned runs_ = 0, barrier_generation_ = 0;
};

inline Lane& running_lane() { return *const_cast<Lane*>(static_cast<const Lane*>(current)); }

}  // namespace simt
