// SPDX-License-Identifier: Apache-2.0
#include "harness/run/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "harness/judge/poison.h"
#include "harness/tensors/walk.h"
#include "reference/parallel.h"

namespace harness {

std::pair<int64_t, int64_t> extent(const Tensor& t) {
  int64_t first = t.offset, last = t.offset;
  const int64_t size = toolkit::bytes_of(t.dtype);
  for (size_t d = 0; d < t.shape.size(); ++d) {
    const int64_t reach = (t.shape[d] - 1) * t.strides[d] * size;
    (reach < 0 ? first : last) += reach;
  }
  return {first, last + size};
}

std::string Placement::Region::names() const {
  std::string text;
  for (const auto& m : members) text += fmt::format("{}'{}'", text.empty() ? "" : " and ", m.name);
  return text;
}

Placement::Placement(const Device& device, const Card& card, const Case& made) : device_(device) {
  {
    const HostCall inputs(made);
    const toolkit::Args args(card.contract(), inputs.call());
    args.check(false);
    for (const auto& o : card.contract().outputs(args)) {
      Tensor t = make_tensor(o.dtype, o.shape);
      poison(t);
      poisoned_.emplace(o.name, std::move(t));
    }
  }
  std::vector<Region> pieces;
  const auto add = [&](const std::string& name, const Tensor& t, Use use) {
    if (t.count() == 0) return;
    const auto [first, last] = extent(t);
    pieces.push_back({t.storage.get(), first, last, {{name, &t, use}}, nullptr});
  };
  for (const auto& [name, t] : made.inputs) {
    const auto spec = std::ranges::find(card.contract().tensors, std::string_view(name),
                                        &toolkit::TensorSpec::name);
    const bool in_place =
        spec != card.contract().tensors.end() && spec->role == toolkit::Role::in_place;
    add(name, t, in_place ? Use::in_place : Use::input);
  }
  for (const auto& [name, t] : poisoned_) add(name, t, Use::output);
  place(std::move(pieces));

  host_.emplace(made, poisoned_);
  call_ = host_->call();
  tensors_.reserve(call_.tensor_count);
  for (uint32_t i = 0; i < call_.tensor_count; ++i) {
    tk_tensor t = *call_.tensors[i];
    t.data = nullptr;
    for (const auto& region : regions_)
      for (const auto& m : region.members)
        if (m.name == t.name) t.data = region.memory->data() + (m.host->offset - region.first);
    tensors_.push_back(t);
    pointers_.push_back(&tensors_.back());
  }
  call_.tensors = pointers_.data();
}

// Pieces of one storage that overlap become one region, so that the views share on the device what
// they share here.
void Placement::place(std::vector<Region> pieces) {
  std::ranges::sort(pieces, [](const Region& a, const Region& b) {
    return std::pair(a.storage, a.first) < std::pair(b.storage, b.first);
  });
  for (auto& piece : pieces) {
    if (!regions_.empty() && regions_.back().storage == piece.storage &&
        piece.first < regions_.back().last) {
      regions_.back().last = std::max(regions_.back().last, piece.last);
      regions_.back().members.push_back(piece.members.front());
    } else {
      regions_.push_back(std::move(piece));
    }
  }
  for (auto& region : regions_) {
    region.memory = std::make_unique<GuardedMemory>(device_, region.last - region.first);
    region.memory->write(region.storage->data() + region.first);
  }
  device_.check(device_.runtime().synchronize(nullptr), "uploading the case");
}

void Placement::give_workspace(uint64_t bytes) {
  workspace_.reset();
  if (bytes) {
    workspace_ = std::make_unique<GuardedMemory>(device_, bytes);
    workspace_->fill(0xff);
    device_.check(device_.runtime().synchronize(nullptr), "filling the workspace");
  }
  call_.workspace = bytes ? workspace_->data() : nullptr;
  call_.workspace_bytes = bytes;
}

void Placement::reset() const {
  for (const auto& region : regions_)
    if (std::ranges::any_of(region.members, [](const Member& m) { return m.use != Use::input; }))
      region.memory->write(region.storage->data() + region.first);
  if (workspace_) workspace_->fill(0xff);
  device_.check(device_.runtime().synchronize(nullptr), "resetting the case");
}

TensorMap Placement::results() const {
  TensorMap results;
  for (const auto& [name, t] : poisoned_)
    if (t.count() == 0) results.emplace(name, t);
  for (const auto& region : regions_) {
    if (std::ranges::all_of(region.members, [](const Member& m) { return m.use == Use::input; }))
      continue;
    const auto storage = Storage::heap(region.last - region.first);
    region.memory->read(storage->data());
    for (const auto& m : region.members) {
      if (m.use == Use::input) continue;
      Tensor t = *m.host;
      t.storage = storage;
      t.offset -= region.first;
      results.emplace(m.name, std::move(t));
    }
  }
  return results;
}

uint64_t Placement::result_bytes() const {
  uint64_t bytes = 0;
  for (const auto& region : regions_)
    for (const auto& m : region.members)
      if (m.use != Use::input) bytes += m.host->count() * toolkit::bytes_of(m.host->dtype);
  return bytes;
}

std::string Placement::changed_input(const Region& region) const {
  const int64_t bytes = int64_t(region.last - region.first);
  const std::byte* before = region.storage->data() + region.first;
  std::vector<bool> may_change;  // a byte each; empty: none may
  for (const auto& m : region.members) {
    if (m.use == Use::input) continue;
    may_change.resize(size_t(bytes));
    const int64_t size = toolkit::bytes_of(m.host->dtype);
    walk(*m.host, [&](int64_t, const std::byte* p) {
      for (int64_t b = 0; b < size; ++b) may_change[size_t(p - before + b)] = true;
    });
  }
  // A cache has gigabytes: piece by piece through one buffer (to touch as much memory again for the
  // first time takes longer than the copies do), each compared on all cores.
  constexpr int64_t kPiece = 64 << 20, kPart = 1 << 20;
  const auto now = std::make_unique_for_overwrite<std::byte[]>(size_t(std::min(bytes, kPiece)));
  for (int64_t begin = 0; begin < bytes; begin += kPiece) {
    const int64_t size = std::min(kPiece, bytes - begin);
    region.memory->read(begin, now.get(), size);
    std::atomic<int64_t> changed = size;  // the first byte that is found
    reference::for_each_row((size + kPart - 1) / kPart, [&](int64_t part) {
      const int64_t first = part * kPart, last = std::min(first + kPart, size);
      if (std::memcmp(&now[first], &before[begin + first], size_t(last - first)) == 0) return;
      for (int64_t i = first; i < last; ++i) {
        if (now[i] == before[begin + i]) continue;
        if (!may_change.empty() && may_change[size_t(begin + i)]) continue;
        for (int64_t seen = changed; i < seen && !changed.compare_exchange_weak(seen, i);) continue;
        return;
      }
    });
    if (changed < size)
      return fmt::format("changed byte {} of {}, which it may only read", begin + changed.load(),
                         region.names());
  }
  return {};
}

std::vector<std::string> Placement::trespasses() const {
  std::vector<std::string> found;
  for (const auto& region : regions_) {
    if (const auto where = region.memory->damage(); !where.empty())
      found.push_back(fmt::format("wrote outside {}: {}", region.names(), where));
    if (std::ranges::all_of(region.members, [](const Member& m) { return m.use == Use::output; }))
      continue;
    if (const auto what = changed_input(region); !what.empty()) found.push_back(what);
  }
  if (workspace_)
    if (const auto where = workspace_->damage(); !where.empty())
      found.push_back(
          fmt::format("wrote outside its workspace of {} bytes: {}", workspace_->bytes(), where));
  return found;
}

uint64_t Placement::device_bytes() const {
  uint64_t bytes = workspace_ ? workspace_->bytes() : 0;
  for (const auto& region : regions_) bytes += region.memory->bytes();
  return bytes;
}

}  // namespace harness
