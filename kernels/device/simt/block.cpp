// SPDX-License-Identifier: Apache-2.0
#include "block.h"

#include <sys/mman.h>

#include <bit>
#include <new>

#include "device/symbol_name.h"

namespace simt {
namespace {

#if defined(SIMT_ASAN) || defined(SIMT_TSAN)
constexpr size_t kStack = 256 * 1024;  // instrumented frames are larger
#else
constexpr size_t kStack = 64 * 1024;
#endif
constexpr size_t kGuard = 4096;

std::string number(int64_t n) { return std::to_string(n); }

// "lane 3", "lanes 0-15, 17"
std::string lanes_text(uint64_t mask) {
  std::string text = std::popcount(mask) == 1 ? "lane" : "lanes";
  char before = ' ';
  for (int from = 0; from < 64; ++from) {
    if (!(mask >> from & 1)) continue;
    int to = from;
    while (to + 1 < 64 && (mask >> (to + 1) & 1)) ++to;
    text += before;
    text += number(from);
    if (to > from) text.append("-").append(number(to));
    before = ',';
    from = to;
  }
  return text;
}

bool same(Site a, Site b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::string_view(a.file_name()) == b.file_name());
}

}  // namespace

constinit thread_local const LanePosition* current = nullptr;

const char* name_of(Collective op) {
  switch (op) {
    case Collective::none:
      return "nothing";
    case Collective::sync_block:
      return "sync_block";
    case Collective::sync_wave:
      return "sync_wave";
    case Collective::shuffle:
      return "a shuffle";
    case Collective::ballot:
      return "a vote";
    case Collective::reduce:
      return "a reduction of the wave";
    case Collective::multiply:
      return "Mma::multiply";
    case Collective::bulk_wait:
      return "bulk_wait";
  }
  return "?";
}

std::string text_of(Site site) { return std::string(site.file_name()) + ":" + number(site.line()); }

Lane::~Lane() {
  if (!stack) return;
  unpoison(stack, stack_bytes);
  munmap(static_cast<char*>(stack) - kGuard, stack_bytes + kGuard);
}

void Block::add_lane() {
  auto lane = std::make_unique<Lane>();
  void* p = mmap(nullptr, kStack + kGuard, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  mprotect(p, kGuard, PROT_NONE);
  lane->stack = static_cast<char*>(p) + kGuard;
  lane->stack_bytes = kStack;
  lane->owner = this;
  lane->block = &position_;
  // The tops of the stacks, which every lane uses, would share a few cache sets if all were equally
  // far apart.
  const size_t shift = lanes_.size() % 16 * 256;
  lane->fiber.start(
      lane->stack, kStack - shift, lane_main, lane.get(),
      ("thread " + number(static_cast<int64_t>(lanes_.size())) + " of a block").c_str());
  lanes_.push_back(std::move(lane));
}

void Block::prepare(const Launch& launch, const Options& options) {
  launch_ = &launch;
  order_ = options.order;
  seed_ = options.seed;
  thread_.adopt_thread();
  while (lanes_.size() < static_cast<size_t>(launch.threads)) add_lane();
  waves_.resize(static_cast<size_t>(launch.threads / launch.wave));
  for (int t = 0; t < launch.threads; ++t) {
    Lane& lane = *lanes_[static_cast<size_t>(t)];
    lane.thread = t;
    lane.lane = t % launch.wave;
    lane.wave = t / launch.wave;
    lane.in = &waves_[static_cast<size_t>(lane.wave)];
    lane.bit = uint64_t{1} << lane.lane;
  }
  for (size_t w = 0; w < waves_.size(); ++w) {
    waves_[w].index = static_cast<int>(w);
    waves_[w].full = launch.wave == 64 ? ~uint64_t{0} : 0xffffffffu;
  }
  position_.threads = launch.threads;
  position_.blocks_x = static_cast<int>(launch.blocks[0]);
  position_.blocks_y = static_cast<int>(launch.blocks[1]);
  position_.blocks_z = static_cast<int>(launch.blocks[2]);
}

bool Block::run(int64_t index) {
  position_.x = static_cast<int>(index % launch_->blocks[0]);
  position_.y = static_cast<int>(index / launch_->blocks[0] % launch_->blocks[1]);
  position_.z = static_cast<int>(index / launch_->blocks[0] / launch_->blocks[1]);
  shared_.begin_block(launch_->dynamic_shared_bytes);
  for (Wave& wave : waves_) {
    wave.ready = wave.full;
    wave.arrived = wave.left = wave.votes = wave.for_copies = 0;
  }
  ready_waves_ = ~uint64_t{0} >> (64 - waves_.size());
  turn_ = order_ == Order::reverse ? static_cast<int>(waves_.size()) - 1 : 0;
  left_ = at_barrier_ = open_bulk_barriers = 0;
  failing_ = no_copies_ = false;
  random_ =
      (seed_ + 1) * 0x9e3779b97f4a7c15u ^ static_cast<uint64_t>(index + 1) * 0xbf58476d1ce4e5b9u;
  if (random_ == 0) random_ = 1;
  if (order_ == Order::shuffled) turn_ = static_cast<int>((random() >> 32) % waves_.size());
  ++runs_;
  begin_.release();
  while (left_ < launch_->threads) {
    Lane* first = pick();
    if (!first) {
      copies_are_complete();  // those that wait for them shall say so themselves
      no_copies_ = true;
      if (!ready_waves_) give_up(deadlock());
      continue;
    }
    current = first;
    thread_.switch_to(first->fiber);
  }
  current = nullptr;
  if (failing_) join();  // the report was written by a lane
  if (!failing_ && open_bulk_barriers > 0)
    give_up(where() + ": the block ends with " + number(open_bulk_barriers) +
            " bulk barriers whose bytes were announced and no bulk_wait covered");
  if (!failing_)
    if (const std::string what = shared_.damaged(); !what.empty())
      give_up(where() + ": something was written " + what + " through a raw pointer");
  return !failing_;
}

void Block::join() {
  end_[0].acquire();
  end_[1].acquire();
}

void Block::lane_main(void* p) {
  Lane& lane = *static_cast<Lane*>(p);
  for (;;) {
    Block& block = *lane.owner;
    const unsigned run = block.runs_;
    // Ordered after the launch and after the block that used the same memory before, but after no
    // other block.
    block.begin_.acquire();
    block.end_[(run - 1) % 2].acquire();
    block.run_lane(lane);
    block.end_[run % 2].release();
    block.leave(lane);
  }
}

void Block::run_lane(Lane& lane) {
  if (failing_) return;
  try {
    launch_->body(launch_->call);
    const size_t open =
        lane.copies.size() - (lane.groups_done ? lane.group_ends[lane.groups_done - 1] : 0);
    if (open > 0)
      fail(lane,
           "the kernel ends with " + number(static_cast<int64_t>(open)) +
               " asynchronous copies that no copy_async_wait covered; this is the last",
           lane.last_copy);
    const Wave& wave = *lane.in;
    if (wave.arrived)
      fail(lane,
           "the kernel ends here while " + lanes_text(wave.arrived) + " of the same wave wait in " +
               name_of(wave.op) + ", which all lanes of a wave have to reach",
           wave.site);
    if (at_barrier_ > 0)
      fail(lane,
           "the kernel ends here while " + number(at_barrier_) +
               " threads wait in sync_block, which all threads of a block have to reach",
           barrier_site_);
  } catch (const Abandoned&) {
  } catch (const std::exception& e) {
    give_up(where() + ", thread " + number(lane.thread) + ": exception: " + e.what());
  }
}

// Ends the lane for this block. Returns when it is started for the next.
void Block::leave(Lane& lane) {
  lane.copies.clear();
  lane.group_ends.clear();
  lane.groups_done = 0;
  lane.waits_in = Collective::none;
  ++left_;
  Wave& wave = *lane.in;
  wave.left |= lane.bit;
  wave.ready &= ~lane.bit;
  if (!wave.ready) ready_waves_ &= ~(uint64_t{1} << wave.index);
  Lane* next = pick();
  current = next;
  lane.fiber.switch_to(next ? next->fiber : thread_);
}

uint64_t Block::random() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_;
}

Lane* Block::pick() {
  if (!ready_waves_) return nullptr;
  uint64_t draw = 0;
  if (order_ == Order::shuffled) {
    draw = random() * 0x2545f4914f6cdd1du;
    // Mostly on with the same wave: waves that all advance alike would hide that a barrier between
    // them is missing.
    if (!(ready_waves_ >> turn_ & 1) || (draw >> 32 & 15) == 0) {
      uint64_t waves = ready_waves_;
      for (auto skip = (draw >> 48) * static_cast<uint64_t>(std::popcount(waves)) >> 16; skip > 0;
           --skip)
        waves &= waves - 1;
      turn_ = std::countr_zero(waves);
    }
  } else if (!(ready_waves_ >> turn_ & 1)) {
    turn_ = order_ == Order::forward ? std::countr_zero(ready_waves_)
                                     : 63 - std::countl_zero(ready_waves_);
  }
  const uint64_t ready = waves_[static_cast<size_t>(turn_)].ready;
  int lane = 0;
  switch (order_) {
    case Order::forward:
      lane = std::countr_zero(ready);
      break;
    case Order::reverse:
      lane = 63 - std::countl_zero(ready);
      break;
    case Order::shuffled: {  // the next ready lane from a random one on
      const int from = static_cast<int>(draw >> 40 & 63);
      lane =
          launch_->wave == 64
              ? (std::countr_zero(std::rotr(ready, from)) + from) % 64
              : (std::countr_zero(std::rotr(static_cast<uint32_t>(ready), from % 32)) + from) % 32;
      break;
    }
  }
  return lanes_[static_cast<size_t>(turn_ * launch_->wave + lane)].get();
}

void Block::park(Lane& lane) {
  Wave& wave = *lane.in;
  wave.ready &= ~lane.bit;
  if (!wave.ready) ready_waves_ &= ~(uint64_t{1} << wave.index);
  Lane* next = pick();
  current = next;
  lane.fiber.switch_to(next ? next->fiber : thread_);
  if (failing_) throw Abandoned{};
  lane.waits_in = Collective::none;
}

bool Block::arrive(Lane& lane, Collective op, Site site) {
  Wave& wave = *lane.in;
  if (!wave.arrived) {
    if (wave.left)
      fail(lane,
           std::string(name_of(op)) + " without " + lanes_text(wave.left) +
               " of the wave, which ended the kernel before",
           site);
    wave.op = op;
    wave.site = site;
  } else if (wave.op != op || !same(wave.site, site)) {
    fail(lane,
         std::string("divergent: ") + name_of(op) + " here, while " + lanes_text(wave.arrived) +
             " of the same wave wait in " + name_of(wave.op) + " at " + text_of(wave.site),
         site);
  }
  wave.arrived |= lane.bit;
  return wave.arrived == wave.full;
}

void Block::finish(Wave& wave) {
  wave.arrived = 0;
  wave.ready = wave.full;
  ready_waves_ |= uint64_t{1} << wave.index;
}

void Block::wait(Lane& lane) {
  lane.waits_in = lane.in->op;
  lane.waits_at = lane.in->site;
  park(lane);
}

void Block::wait_for_copies(Lane& lane, const char* why, Site site) {
  if (no_copies_) fail(lane, why, site);
  lane.in->for_copies |= lane.bit;
  lane.waits_in = Collective::bulk_wait;
  lane.waits_at = site;
  park(lane);
}

void Block::copies_are_complete() {
  for (Wave& wave : waves_) {
    wave.ready |= wave.for_copies;
    wave.for_copies = 0;
    if (wave.ready) ready_waves_ |= uint64_t{1} << wave.index;
  }
}

void Block::arrive_at_barrier(Lane& lane, Site site) {
  if (left_ > 0)
    fail(lane, "sync_block after " + number(left_) + " threads of the block ended the kernel",
         site);
  if (at_barrier_ > 0 && !same(barrier_site_, site))
    fail(lane,
         "divergent: sync_block here, while " + number(at_barrier_) +
             " threads wait in sync_block at " + text_of(barrier_site_),
         site);
  barrier_site_ = site;
  SyncPoint& order = barrier_[barrier_generation_ % 2];  // two by turns, as in Wave
  order.release();
  if (++at_barrier_ == launch_->threads) {
    at_barrier_ = 0;
    ++barrier_generation_;
    for (Wave& wave : waves_) wave.ready = wave.full;
    ready_waves_ = ~uint64_t{0} >> (64 - waves_.size());
  } else {
    lane.waits_in = Collective::sync_block;
    lane.waits_at = site;
    park(lane);
  }
  order.acquire();
}

// Notes the first failure and makes every lane runnable: each unwinds its stack where it stands.
void Block::give_up(std::string text) {
  if (failing_) return;
  failing_ = true;
  failure_ = std::move(text);
  ready_waves_ = 0;
  for (Wave& wave : waves_) {
    wave.ready = wave.full & ~wave.left;
    if (wave.ready) ready_waves_ |= uint64_t{1} << wave.index;
  }
}

void Block::fail(const Lane& lane, const std::string& what, Site site) {
  give_up(where() + ", thread " + number(lane.thread) + " (wave " + number(lane.wave) + ", lane " +
          number(lane.lane) + "), " + text_of(site) + ": " + what);
  throw Abandoned{};
}

std::string Block::where() const {
  return "simt: " + device::symbol_name(launch_->kernel) + ", block (" + number(position_.x) + ", " +
         number(position_.y) + ", " + number(position_.z) + ")";
}

std::string Block::deadlock() const {
  std::string text = where() + ": deadlock: every thread that is left waits for others";
  int shown = 0;
  for (const Wave& wave : waves_) {
    uint64_t todo = wave.full & ~wave.left;
    while (todo) {
      const Lane& first =
          *lanes_[static_cast<size_t>(wave.index * launch_->wave + std::countr_zero(todo))];
      uint64_t group = 0;
      for (uint64_t rest = todo; rest; rest &= rest - 1) {
        const int l = std::countr_zero(rest);
        const Lane& other = *lanes_[static_cast<size_t>(wave.index * launch_->wave + l)];
        if (other.waits_in == first.waits_in && same(other.waits_at, first.waits_at))
          group |= uint64_t{1} << l;
      }
      todo &= ~group;
      if (++shown > 8) continue;
      text += "; wave " + number(wave.index) + ", " + lanes_text(group) + " in " +
              name_of(first.waits_in) + " at " + text_of(first.waits_at);
    }
  }
  if (shown > 8) text += "; and " + number(shown - 8) + " groups more";
  return text;
}

}  // namespace simt
