// SPDX-License-Identifier: Apache-2.0
#include "harness/measure/roofs.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <random>

#include "harness/plugins/errors.h"
#include "roof/copy.h"
#include "roof/mma.h"

namespace harness {

namespace {

constexpr uint64_t kChunk = 16 << 20;  // the source repeats this many random bytes
constexpr int kMostBlocks = 1 << 16;
constexpr int kSegments[] = {256, 512, 1024, 2048, 4096};
constexpr int kPasses = 64;        // over the part of the source that fits in the L2
constexpr int kIterations = 4096;  // of the matrix product
constexpr int kNodes = 11;         // launches of one graph, to see what ten more cost

std::string size_text(uint64_t bytes) {
  if (bytes >= 1 << 30) return fmt::format("{} GiB", bytes >> 30);
  if (bytes >= 1 << 20) return fmt::format("{} MiB", bytes >> 20);
  return fmt::format("{} KiB", bytes >> 10);
}

// Elements of A and B: products and sums of them are exact in fp32 however often they are added.
float element(std::mt19937& random) {
  constexpr float kValues[] = {-1, -0.5, 0.5, 1};
  return kValues[random() % 4];
}
uint16_t bits_of(float value, tk_dtype dtype) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (dtype == TK_BF16) return static_cast<uint16_t>(bits >> 16);
  const uint32_t exponent = (bits >> 23 & 0xff) - 127 + 15;
  return static_cast<uint16_t>(bits >> 16 & 0x8000) | static_cast<uint16_t>(exponent << 10);
}

}  // namespace

void ProbeCall::tensor(const char* name, tk_dtype dtype, std::vector<int64_t> shape, void* data) {
  TensorRoom& room = tensors_.emplace_back();
  room.shape = std::move(shape);
  room.strides.assign(room.shape.size(), 1);
  for (size_t d = room.shape.size(); d-- > 1;)
    room.strides[d - 1] = room.strides[d] * room.shape[d];
  room.tensor = {sizeof(tk_tensor),
                 dtype,
                 name,
                 data,
                 room.shape.data(),
                 room.strides.data(),
                 static_cast<int32_t>(room.shape.size()),
                 0};
  tensor_pointers_.push_back(&room.tensor);
}

void ProbeCall::scalar(const char* name, int64_t value) {
  ScalarRoom& room = scalars_.emplace_back();
  room.text = std::to_string(value);
  room.scalar = {sizeof(tk_scalar), 0, name, room.text.c_str(), value, static_cast<double>(value)};
  scalar_pointers_.push_back(&room.scalar);
}

tk_call& ProbeCall::call() {
  call_.struct_size = sizeof call_;
  call_.op = op_.c_str();
  call_.tensors = tensor_pointers_.data();
  call_.scalars = scalar_pointers_.data();
  call_.tensor_count = static_cast<uint32_t>(tensor_pointers_.size());
  call_.scalar_count = static_cast<uint32_t>(scalar_pointers_.size());
  return call_;
}

struct ProbeSet::Memory {
  Memory(const Device& device, uint64_t bytes)
      : source(device, bytes),
        target(device, bytes),
        ids(device, 2 * bytes / kSegments[0] * sizeof(int32_t)),
        sums(device, kMostBlocks * sizeof(uint32_t)),
        matrices(device, 4 * 256 * sizeof(uint16_t)),
        product(device, 256 * sizeof(float)) {
    chunk.resize(std::min(bytes, kChunk) / sizeof(uint32_t));
    std::mt19937 random(1);
    std::ranges::generate(chunk, random);
    const uint64_t step = chunk.size() * sizeof(uint32_t);
    for (uint64_t at = 0; at < bytes; at += step) source.write(at, chunk.data(), step);
    device.check(device.runtime().synchronize(nullptr), "uploading the source of the roofs");
  }
  uint32_t sum(uint64_t bytes) const {  // of the first bytes of the source
    const uint64_t words = bytes / sizeof(uint32_t), whole = words / chunk.size();
    const auto part = static_cast<std::ptrdiff_t>(words % chunk.size());
    return static_cast<uint32_t>(whole) * std::accumulate(chunk.begin(), chunk.end(), 0u) +
           std::accumulate(chunk.begin(), chunk.begin() + part, 0u);
  }

  DeviceMemory source, target, ids, sums, matrices, product;
  std::vector<uint32_t> chunk;
  float expected[2][256] = {};  // A B, for bf16 and f16
};

uint64_t probe_bytes(const Device& device) {
  const uint64_t memory = device.info().memory_bytes;
  const uint64_t bytes = memory ? std::min<uint64_t>(1 << 30, memory / 16) : 1 << 30;
  return std::bit_floor(std::max<uint64_t>(bytes, 1 << 16));
}

ProbeSet::ProbeSet(const Device& device, const Find& find, uint64_t bytes) : device_(device) {
  constexpr std::string_view kOps[] = {"roof.read", "roof.copy", "roof.gather", "roof.mma",
                                       "roof.empty"};
  if (std::ranges::all_of(kOps, [&](std::string_view op) { return find(op).empty(); })) return;
  memory_ = std::make_unique<Memory>(device, bytes);
  add_reads(find);
  add_copies(find);
  add_gathers(find);
  add_products(find);
  add_launches(find);
}

ProbeSet::~ProbeSet() = default;

Probe* ProbeSet::add(const Find& find, const std::string& op, const std::string& name,
                     std::string shape) {
  const auto found = find(op);
  if (found.empty()) return nullptr;
  Probe& probe = probes_.emplace_back();
  probe.op = op;
  probe.id = op + "/" + name;
  probe.shape = std::move(shape);
  probe.implementation = found.front();
  return &probe;
}

std::vector<int> ProbeSet::block_counts(std::initializer_list<int> per_multiprocessor) const {
  std::vector<int> counts;
  for (const int n : per_multiprocessor)
    counts.push_back(std::min(n * std::max(1, device_.info().multiprocessors), kMostBlocks));
  return counts;
}

std::string ProbeSet::check_sum(int64_t blocks, uint32_t expected) const {
  std::vector<uint32_t> sums(static_cast<size_t>(blocks));
  memory_->sums.read(0, sums.data(), sums.size() * sizeof(uint32_t));
  const uint32_t got = std::accumulate(sums.begin(), sums.end(), 0u);
  return got == expected ? "" : fmt::format("expected the sum {:#x}, got {:#x}", expected, got);
}

void ProbeSet::add_reads(const Find& find) {
  const uint64_t whole = memory_->source.bytes();
  const uint64_t in_l2 = std::min(std::bit_floor(device_.info().l2_bytes / 2), whole);
  const auto read = [&](const std::string& name, uint64_t bytes, int passes, Cache cache) {
    std::string shape = size_text(bytes);
    if (passes > 1) shape += fmt::format(" {} times", passes);
    Probe* probe = add(find, "roof.read", name, shape);
    if (!probe) return;
    probe->dtype = TK_U32;
    probe->cache = cache;
    probe->cost.bytes = static_cast<double>(bytes) * passes;
    for (const int in_flight : {4, 16})
      for (const int blocks : block_counts({2, 4, 8, 16})) {
        auto call = std::make_unique<ProbeCall>(probe->op);
        call->tensor("source", TK_U32, {static_cast<int64_t>(bytes / 4)}, memory_->source.data());
        call->tensor("sums", TK_U32, {blocks}, memory_->sums.data());
        call->scalar("blocks", blocks);
        call->scalar("passes", passes);
        call->scalar("in_flight", in_flight);
        probe->widths.push_back(
            {fmt::format("{} blocks, {} in flight", blocks, in_flight), std::move(call)});
      }
    probe->poison = [this](const Probe::Width&) { memory_->sums.fill(0xff, nullptr); };
    const uint32_t expected = memory_->sum(bytes) * static_cast<uint32_t>(passes);
    probe->check = [this, expected](const Probe::Width& width) {
      return check_sum(width.call->call().tensors[1]->shape[0], expected);
    };
  };
  read("stream", whole, 1, Cache::cold);
  if (in_l2 >= 1 << 12) read("l2", in_l2, kPasses, Cache::warm);
}

// The runtime's first, because the kernel is told how near it comes to that.
void ProbeSet::add_copies(const Find& find) {
  const uint64_t bytes = memory_->source.bytes();
  const auto words = static_cast<int64_t>(bytes / 4);
  const auto copy = [&](const std::string& name, bool by_runtime) {
    const auto those = [&](std::string_view op) {
      auto found = find(op);
      std::erase_if(found, [&](const Implementation& i) {
        return (i.op->implementation == std::string_view("memcpy")) != by_runtime;
      });
      return found;
    };
    Probe* probe = add(those, "roof.copy", name, size_text(bytes) + " to as much");
    if (!probe) return probe;
    probe->dtype = TK_U32;
    probe->cost.bytes = 2 * static_cast<double>(bytes);
    probe->poison = [this](const Probe::Width&) { memory_->target.fill(0xff, nullptr); };
    probe->check = [this](const Probe::Width&) { return check_copy(); };
    return probe;
  };
  const auto add_width = [&](Probe& probe, std::string text, int64_t blocks, int in_flight) {
    auto call = std::make_unique<ProbeCall>(probe.op);
    call->tensor("source", TK_U32, {words}, memory_->source.data());
    call->tensor("target", TK_U32, {words}, memory_->target.data());
    call->scalar("blocks", blocks);
    call->scalar("in_flight", in_flight);
    probe.widths.push_back({std::move(text), std::move(call)});
  };
  if (Probe* probe = copy("memcpy", true)) {
    probe->by_stream = true;
    add_width(*probe, "the runtime's own", 1, 4);
  }
  if (Probe* probe = copy("stream", false))
    for (const int in_flight : {1, 4}) {
      std::vector<int> counts = block_counts({4, 8});
      const auto tile = static_cast<uint64_t>(in_flight * roof::copy::kThreads * 16);
      counts.push_back(static_cast<int>((bytes + tile - 1) / tile));  // one tile each
      for (const int blocks : counts)
        add_width(*probe, fmt::format("{} blocks, {} in flight", blocks, in_flight), blocks,
                  in_flight);
    }
}

// Whole chunks from the beginning, the middle and the end.
std::string ProbeSet::check_copy() const {
  const uint64_t size = memory_->chunk.size() * sizeof(uint32_t);
  const uint64_t chunks = memory_->target.bytes() / size;
  std::vector<uint32_t> got(memory_->chunk.size());
  for (const uint64_t c : {uint64_t{0}, chunks / 2, chunks - 1}) {
    memory_->target.read(c * size, got.data(), size);
    if (got != memory_->chunk) return fmt::format("the copy differs in its chunk {}", c);
  }
  return {};
}

void ProbeSet::add_gathers(const Find& find) {
  const uint64_t bytes = memory_->source.bytes();
  uint64_t at = 0;  // of the list, in the memory of ids
  for (const int segment : kSegments) {
    Probe* probe = add(find, "roof.gather", std::to_string(segment),
                       fmt::format("{} in segments of {} B", size_text(bytes), segment));
    if (!probe) return;
    // Every segment once, in random order: as many bytes as the source has, none of them twice.
    std::vector<int32_t> ids(bytes / static_cast<uint64_t>(segment));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(static_cast<unsigned>(segment)));
    memory_->ids.write(at, ids.data(), ids.size() * sizeof(int32_t));
    device_.check(device_.runtime().synchronize(nullptr), "uploading a list of segments");
    const auto count = static_cast<int64_t>(ids.size());
    probe->dtype = TK_U32;
    probe->cost.bytes = static_cast<double>(bytes + ids.size() * sizeof(int32_t));
    std::vector<int> counts = block_counts({2, 4, 8, 64, 96});
    // 256 threads with four loads of 16 bytes each: what a block takes at once.
    counts.push_back(static_cast<int>(std::clamp<uint64_t>(bytes >> 14, 1, kMostBlocks)));
    for (const int blocks : counts) {
      auto call = std::make_unique<ProbeCall>(probe->op);
      call->tensor("source", TK_U32, {count, segment / 4}, memory_->source.data());
      call->tensor("ids", TK_I32, {count}, memory_->ids.data() + at);
      call->tensor("sums", TK_U32, {blocks}, memory_->sums.data());
      call->scalar("blocks", blocks);
      probe->widths.push_back({fmt::format("{} blocks", blocks), std::move(call)});
    }
    at += ids.size() * sizeof(int32_t);
    probe->poison = [this](const Probe::Width&) { memory_->sums.fill(0xff, nullptr); };
    const uint32_t expected = memory_->sum(bytes);
    probe->check = [this, expected](const Probe::Width& width) {
      return check_sum(width.call->call().tensors[2]->shape[0], expected);
    };
  }
}

void ProbeSet::add_products(const Find& find) {
  for (const tk_dtype dtype : {TK_BF16, TK_F16}) {
    const bool second = dtype == TK_F16;
    Probe* probe = add(find, "roof.mma", std::string(toolkit::name_of(dtype)),
                       fmt::format("{} products of 16x16x16 per accumulator", kIterations));
    if (!probe) return;
    std::mt19937 random(7);
    float a[256], b[256];
    std::ranges::generate(a, [&] { return element(random); });
    std::ranges::generate(b, [&] { return element(random); });
    float* expected = memory_->expected[second];
    for (int i = 0; i < 256; ++i)
      for (int k = 0; k < 16; ++k) expected[i] += a[i / 16 * 16 + k] * b[k * 16 + i % 16];
    uint16_t bits[512];
    for (int i = 0; i < 512; ++i) bits[i] = bits_of(i < 256 ? a[i] : b[i - 256], dtype);
    const uint64_t at = second ? sizeof bits : 0;
    memory_->matrices.write(at, bits, sizeof bits);
    device_.check(device_.runtime().synchronize(nullptr), "uploading the matrices of the roofs");
    probe->dtype = dtype;
    probe->cache = Cache::warm;  // it touches no memory
    for (const int blocks : block_counts({1, 2, 4})) {
      auto call = std::make_unique<ProbeCall>(probe->op);
      std::byte* left = memory_->matrices.data() + at;
      call->tensor("a", dtype, {16, 16}, left);
      call->tensor("b", dtype, {16, 16}, left + sizeof bits / 2);
      call->tensor("c", TK_F32, {16, 16}, memory_->product.data());
      call->tensor("sums", TK_F32, {blocks}, memory_->sums.data());
      call->scalar("blocks", blocks);
      call->scalar("iterations", kIterations);
      const double waves = double(roof::mma::kThreads) / std::max(1, device_.info().wave);
      const double products = blocks * waves * roof::mma::kProducts * kIterations;
      probe->widths.push_back(
          {fmt::format("{} blocks", blocks), std::move(call), products * 2 * 16 * 16 * 16});
    }
    probe->poison = [this](const Probe::Width&) {
      memory_->product.fill(0xff, nullptr);
      memory_->sums.fill(0xff, nullptr);
    };
    probe->check = [this, expected](const Probe::Width& width) -> std::string {
      float got[256];
      memory_->product.read(0, got, sizeof got);
      for (int i = 0; i < 256; ++i)
        if (got[i] != kIterations * expected[i])
          return fmt::format("row {}, column {} of the product: expected {}, got {}", i / 16,
                             i % 16, kIterations * expected[i], got[i]);
      std::vector<float> sums(static_cast<size_t>(width.call->call().tensors[3]->shape[0]));
      memory_->sums.read(0, sums.data(), sums.size() * sizeof(float));
      for (size_t i = 1; i < sums.size(); ++i)
        if (!(sums[i] == sums[0]))
          return fmt::format("block {} gives {}, block 0 gives {}", i, sums[i], sums[0]);
      return {};
    };
  }
}

void ProbeSet::add_launches(const Find& find) {
  for (const int nodes : {1, kNodes}) {
    Probe* probe = add(find, "roof.empty", fmt::format("nodes-{}", nodes),
                       fmt::format("{} launch{} of nothing", nodes, nodes == 1 ? "" : "es"));
    if (!probe) return;
    probe->cache = Cache::warm;
    auto call = std::make_unique<ProbeCall>(probe->op);
    call->scalar("nodes", nodes);
    probe->widths.push_back({"one wave", std::move(call)});
    probe->poison = [](const Probe::Width&) {};
    probe->check = [](const Probe::Width&) { return std::string(); };
  }
}

Roof ProbeSet::measure(const Probe& probe, Launch wanted, const SamplingRules& rules) const {
  const Launch launch = probe.by_stream ? Launch::stream : wanted;
  const auto timer_of = [&](const Probe::Width& width) {
    return KernelTimer(device_, *probe.implementation.op, {&width.call->call()},
                       {probe.cache, launch});
  };
  SamplingRules quick = rules;
  quick.min_time_s = quick.max_time_s = rules.min_time_s / 10;
  const auto rate = [&](const Probe::Width& width, double us) {
    return (width.flops > 0 ? width.flops : std::max(probe.cost.bytes, 1.0)) / us;
  };
  const Probe::Width* best = &probe.widths.front();
  double best_rate = 0;
  if (probe.widths.size() > 1)
    for (const auto& width : probe.widths) {
      KernelTimer timer = timer_of(width);
      timer.launch_once();
      const double us = take_samples({[&] { return timer.sample(); }}, quick).front().median;
      if (us <= 0 || rate(width, us) <= best_rate) continue;
      best = &width;
      best_rate = rate(width, us);
    }
  KernelTimer timer = timer_of(*best);
  timer.launch_once();
  Roof roof;
  roof.probe = &probe;
  roof.width = best->text;
  roof.cost = {probe.cost.bytes, best->flops > 0 ? best->flops : probe.cost.flops};
  roof.launch = launch;
  roof.flushed = timer.flushed();
  roof.time = take_samples({[&] { return timer.sample(); }}, rules).front();
  probe.poison(*best);
  device_.check(device_.runtime().synchronize(nullptr), "poisoning the outputs of a roof");
  timer.launch_once();
  roof.wrong = probe.check(*best);
  return roof;
}

}  // namespace harness
