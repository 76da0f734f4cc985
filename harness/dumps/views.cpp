// SPDX-License-Identifier: Apache-2.0
// safetensors has no strides: a view travels as its storage plus metadata,
//   "view.NAME" = "storage=S offset=O shape=a,b,c strides=x,y,z"   (elements)
#include <cerrno>
#include <cstdlib>
#include <map>

#include "harness/dumps/bad_file.h"
#include "harness/dumps/formats.h"
#include "toolkit/dtype.h"

namespace harness {

namespace {

// More elements than this in one view is no dump of a kernel call but a stride-0 trick.
constexpr int64_t kLargestView = int64_t{1} << 32;

class ViewText {
 public:
  ViewText(const std::string& path, const std::string& name, const std::string& text)
      : path_(path), place_("view '" + name + "'") {
    size_t at = 0;
    while (at < text.size()) {
      size_t end = text.find(' ', at);
      if (end == std::string::npos) end = text.size();
      const std::string part = text.substr(at, end - at);
      at = end + 1;
      if (part.empty()) continue;
      const size_t equals = part.find('=');
      if (equals == std::string::npos)
        refuse("key=value parts separated by spaces", "'" + part + "'");
      const std::string key = part.substr(0, equals);
      if (key != "storage" && key != "offset" && key != "shape" && key != "strides")
        refuse("the keys storage, offset, shape and strides", "'" + key + "'");
      if (!parts_.emplace(key, part.substr(equals + 1)).second)
        refuse("every key once", "'" + key + "' twice");
    }
  }

  const std::string& word(const std::string& key) const {
    const auto it = parts_.find(key);
    if (it == parts_.end()) refuse("a key '" + key + "'", "none");
    return it->second;
  }
  Shape integers(const std::string& key) const {
    const std::string& text = word(key);
    Shape out;
    if (text.empty()) return out;  // rank 0
    for (const char* p = text.c_str();; ++p) {
      char* end = nullptr;
      errno = 0;
      const long long v = std::strtoll(p, &end, 10);
      if (end == p || *p == ' ' || errno || (*end && *end != ','))
        refuse(key + " as integers separated by commas", "'" + text.substr(0, 60) + "'");
      if (out.size() == kLargestRank)
        refuse("at most " + std::to_string(kLargestRank) + " dimensions", "more");
      out.push_back(v);
      if (!*end) return out;
      p = end;
    }
  }
  [[noreturn]] void refuse(std::string expected, std::string got) const {
    throw BadFile(path_, place_, std::move(expected), std::move(got),
                  "correct the entry in the file's metadata");
  }

 private:
  const std::string& path_;
  std::string place_;
  std::map<std::string, std::string> parts_;
};

// Lowest and highest element that the view touches, from the storage's start; false where 64 bits
// do not hold them.
bool reach(const DumpEntry& v, int64_t& lowest, int64_t& highest) {
  lowest = highest = v.offset;
  for (size_t d = 0; d < v.shape.size(); ++d) {
    int64_t step = 0;
    if (__builtin_mul_overflow(v.shape[d] - 1, v.strides[d], &step)) return false;
    int64_t& end = step < 0 ? lowest : highest;
    if (__builtin_add_overflow(end, step, &end)) return false;
  }
  return true;
}

}  // namespace

void add_views(const std::string& path, Header& header) {
  const size_t stored = header.entries.size();  // views look into these only, not into each other
  std::map<std::string, size_t, std::less<>> by_name;
  for (size_t i = 0; i < stored; ++i) by_name.emplace(header.entries[i].name, i);
  for (const auto& [key, text] : header.metadata) {
    if (!key.starts_with("view.")) continue;
    const std::string name = key.substr(5);
    const ViewText parts(path, name, text);
    if (by_name.contains(name))
      parts.refuse("a name that no tensor of the file has", "'" + name + "'");
    const auto storage = by_name.find(parts.word("storage"));
    if (storage == by_name.end())
      parts.refuse("a storage that is a tensor of the file", "'" + parts.word("storage") + "'");
    const DumpEntry& base = header.entries[storage->second];
    DumpEntry v;
    v.name = name;
    v.dtype = base.dtype;
    v.dtype_text = base.dtype_text;
    v.storage = base.name;
    v.begin = base.begin;
    v.end = base.end;
    v.shape = parts.integers("shape");
    v.strides = parts.integers("strides");
    const Shape offset = parts.integers("offset");
    if (offset.size() != 1 || offset[0] < 0)
      parts.refuse("offset as one integer >= 0", "'" + parts.word("offset") + "'");
    v.offset = offset[0];
    if (v.shape.size() != v.strides.size())
      parts.refuse("as many strides as sizes", std::to_string(v.shape.size()) + " sizes and " +
                                                   std::to_string(v.strides.size()) + " strides");
    int64_t count = 0, held = 0, lowest = 0, highest = 0;
    if (!count_elements(v.shape, count) || count > kLargestView)
      parts.refuse("sizes >= 0 with a product of at most 2^32", toolkit::to_text(v.shape));
    count_elements(base.shape, held);
    const std::string room =
        "elements 0 to " + std::to_string(held) + " (not included) of '" + base.name + "'";
    if (count == 0) {
      if (v.offset > held) parts.refuse(room, "offset " + std::to_string(v.offset));
    } else if (!reach(v, lowest, highest)) {
      parts.refuse(room, "a reach beyond 64 bits");
    } else if (lowest < 0 || highest >= held) {
      parts.refuse(room, "elements " + std::to_string(lowest) + " to " + std::to_string(highest));
    }
    header.entries.push_back(std::move(v));
  }
}

}  // namespace harness
