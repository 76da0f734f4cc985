// SPDX-License-Identifier: Apache-2.0
#include "shared_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "executor.h"
#include "sanitizers.h"

namespace simt {
namespace {

constexpr size_t kZone = 64;
constexpr size_t kArena = shared_limit(32) + kStaticSharedLimit + 64 * 1024;  // the rest: red zones
// A NaN as float, as bf16 and as f16, and not the 0xff of fresh memory: writing -1 or the fill
// itself shows too.
constexpr uint16_t kZonePattern = 0xffc5;

// Not memset: ThreadSanitizer would take it for an access of the running lane, and report it as a
// race.
void fill(std::byte* p, size_t bytes) {
#if defined(__x86_64__)
  asm volatile("rep stosb" : "+D"(p), "+c"(bytes) : "a"(0xff) : "memory");
#else
  for (volatile std::byte* q = p; q < p + bytes; ++q) *q = std::byte{0xff};
#endif
}

void draw_zone(std::byte* from, std::byte* to) {
  unpoison(from, static_cast<size_t>(to - from));
  for (volatile std::byte* p = from; p < to; ++p)
    *p = std::byte(reinterpret_cast<uintptr_t>(p) % 2 ? kZonePattern >> 8 : kZonePattern & 0xff);
  poison(from, static_cast<size_t>(to - from));
}

// Arrays start 16 bytes past a 32-byte boundary: promised is alignment to 16, and no more is given.
std::byte* array_start(std::byte* p) {
  return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(p) + 15) / 32 * 32 + 16);
}

}  // namespace

void SharedMemory::Unmap::operator()(std::byte* p) const {
  unpoison(p, kArena);
  munmap(p, kArena);
}

std::byte* SharedMemory::place(const void* key, const char* name, size_t bytes) {
  std::byte* const data = array_start(next_ + kZone);
  std::byte* const end = data + bytes;
  if (end + 2 * kZone > arena_.get() + kArena) return nullptr;
  draw_zone(next_, data);
  unpoison(data, bytes);
  fill(data, bytes);
  draw_zone(end, end + kZone);
  next_ = end;
  arrays_.push_back({key, name, data, bytes});
  return data;
}

void SharedMemory::begin_block(size_t dynamic_bytes) {
  if (!arena_) {
    void* p = mmap(nullptr, kArena, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    arena_.reset(static_cast<std::byte*>(p));
  }
  next_ = arena_.get();
  arrays_.clear();
  static_bytes_ = 0;
  place(nullptr, "dynamic shared memory", dynamic_bytes);
}

void* SharedMemory::claim(const void* key, const char* name, size_t bytes) {
  for (const Array& a : arrays_)
    if (a.key == key) return a.data;
  if (static_bytes_ + bytes > kStaticSharedLimit) return nullptr;
  std::byte* const data = place(key, name, bytes);
  if (data) static_bytes_ += bytes;
  return data;
}

bool SharedMemory::contains(const void* p, size_t bytes) const {
  const auto* from = static_cast<const std::byte*>(p);
  for (const Array& a : arrays_)
    if (from >= a.data && from + bytes <= a.data + a.bytes) return true;
  return false;
}

std::string SharedMemory::damaged() const {
#ifndef SIMT_ASAN  // which has stopped at the access itself
  const std::byte* from = arena_.get();
  for (size_t i = 0; i <= arrays_.size(); ++i) {
    const std::byte* const to = i < arrays_.size() ? arrays_[i].data : next_ + kZone;
    for (const std::byte* p = from; p < to; ++p)
      if (*p !=
          std::byte(reinterpret_cast<uintptr_t>(p) % 2 ? kZonePattern >> 8 : kZonePattern & 0xff)) {
        const bool before = i == 0 || (i < arrays_.size() && to - p < p - from);
        return std::string(before ? "before '" : "past the end of '") +
               arrays_[before ? i : i - 1].name + "'";
      }
    if (i < arrays_.size()) from = to + arrays_[i].bytes;
  }
#endif
  return {};
}

}  // namespace simt
