// SPDX-License-Identifier: Apache-2.0
// The safetensors header: 8 bytes of length, then JSON {"name": {"dtype", "shape", "data_offsets"},
// "__metadata__": {string: string}}. Tensors cover the rest of the file exactly: no gap, no
// overlap, no byte after the last.
#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "harness/dumps/bad_file.h"
#include "harness/dumps/formats.h"
#include "toolkit/dtype.h"

namespace harness {

namespace {

constexpr const char* kNext = "write the file again with the safetensors library";

// Event parser: nlohmann's tree silently keeps the last of two equal keys and nests as deep as the
// text says. The only legal nesting is object -> object -> array, so everything deeper stops at
// once.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderEvents(const std::string& path, Header& header) : path_(path), header_(header) {}

  bool key(string_t& name) override {
    if (depth_ == 1) {
      if (!names_.insert(name).second)
        refuse("header", "every key once", "duplicate key '" + name + "'");
      name_ = name;
      refuse_control("a name", name);
      return true;
    }
    if (!fields_.insert(name).second)
      refuse(place(), "every key once", "duplicate key '" + name + "'");
    if (!in_metadata() && name != "dtype" && name != "shape" && name != "data_offsets")
      refuse(place(), "the keys dtype, shape and data_offsets", "key '" + name + "'");
    field_ = name;
    return true;
  }

  bool start_object(size_t) override {
    if (in_array_ || depth_ == 2) refuse(place(), expected_value(), "an object");
    if (++depth_ == 2) {
      fields_.clear();
      if (!in_metadata()) {
        header_.entries.emplace_back();
        header_.entries.back().name = name_;
        offsets_.clear();
      }
    }
    return true;
  }

  bool end_object() override {
    if (depth_-- == 2 && !in_metadata()) {
      for (const char* f : {"dtype", "shape", "data_offsets"})
        if (!fields_.contains(f)) refuse(place(), std::string("a key '") + f + "'", "none");
      if (offsets_.size() != 2)
        refuse(place() + " data_offsets", "[begin, end]",
               std::to_string(offsets_.size()) + " numbers");
      header_.entries.back().begin = offsets_[0];
      header_.entries.back().end = offsets_[1];
    }
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_array_ || in_metadata() ||
        (field_ != "shape" && field_ != "data_offsets"))
      refuse(place(), expected_value(), "an array");
    in_array_ = true;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ == 2 && in_metadata()) {
      header_.metadata.emplace(field_, text);
      return true;
    }
    if (depth_ != 2 || in_array_ || field_ != "dtype")
      refuse(place(), expected_value(), "a string");
    refuse_control("a dtype", text);
    DumpEntry& e = header_.entries.back();
    e.dtype_text = text;
    for (const auto& d : toolkit::kDtypes)
      if (!d.safetensors.empty() && d.safetensors == text) e.dtype = d.dtype;
    return true;
  }

  bool number_unsigned(number_unsigned_t v) override {
    if (!in_array_) refuse(place(), expected_value(), "the number " + std::to_string(v));
    if (field_ == "data_offsets") {
      if (offsets_.size() == 2)
        refuse(place() + " data_offsets", "[begin, end]", "more than 2 numbers");
      offsets_.push_back(v);
      return true;
    }
    Shape& shape = header_.entries.back().shape;
    if (shape.size() == kLargestRank)
      refuse(place() + " shape", "at most " + std::to_string(kLargestRank) + " dimensions", "more");
    if (v > uint64_t(std::numeric_limits<int64_t>::max()))
      refuse(place() + " shape", "sizes below 2^63", std::to_string(v));
    shape.push_back(int64_t(v));
    return true;
  }
  bool number_integer(number_integer_t v) override {
    refuse(place(), expected_value(), "the negative number " + std::to_string(v));
  }
  bool number_float(number_float_t, const string_t& text) override {
    refuse(place(), expected_value(),
           "'" + text.substr(0, 40) + "' (no integer, or above 64 bits)");
  }
  bool null() override { refuse(place(), expected_value(), "null"); }
  bool boolean(bool v) override { refuse(place(), expected_value(), v ? "true" : "false"); }
  bool binary(binary_t&) override { refuse(place(), expected_value(), "binary data"); }

  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception& e) override {
    // "[json.exception.parse_error.101] parse error at ...: syntax error ...": the part that says
    // why.
    std::string why = e.what();
    if (const size_t colon = why.find(": "); colon != std::string::npos) why.erase(0, colon + 2);
    refuse("header", "JSON in valid UTF-8",
           "at byte " + std::to_string(at) + " of it: " + why.substr(0, 160));
  }

 private:
  [[noreturn]] void refuse(std::string what, std::string expected, std::string got) const {
    throw BadFile(path_, std::move(what), std::move(expected), std::move(got), kNext);
  }
  // Names travel to kernels as C strings and to terminals as lines.
  void refuse_control(const std::string& what, const std::string& text) const {
    if (printable(text) != text)
      refuse(place(), what + " without control characters", "'" + text.substr(0, 60) + "'");
  }
  bool in_metadata() const { return name_ == "__metadata__"; }
  std::string place() const {
    return depth_ == 0 ? "header" : in_metadata() ? "__metadata__" : "tensor '" + name_ + "'";
  }
  std::string expected_value() const {
    if (depth_ == 0) return "one object";
    if (depth_ == 1) return "an object";
    if (in_metadata()) return "strings only (no tensor may have that name)";
    if (field_ == "dtype") return "dtype a string";
    return field_ + " an array of integers >= 0";
  }

  const std::string& path_;
  Header& header_;
  int depth_ = 0;
  bool in_array_ = false;
  std::string name_, field_;
  std::set<std::string> names_, fields_;
  std::vector<uint64_t> offsets_;
};

uint64_t header_length(std::span<const std::byte> file) {
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | std::to_integer<uint64_t>(file[size_t(i)]);
  return length;
}

std::string looks_like(std::span<const std::byte> file) {
  const std::string_view start(reinterpret_cast<const char*>(file.data()),
                               std::min<size_t>(file.size(), 64));
  if (start.starts_with("PK\x03\x04")) return "a zip archive";
  if (start.starts_with("\x93NUMPY")) return "an .npy file";
  if (start.starts_with("<") || start.starts_with("\n<")) return "HTML or XML text";
  if (start.starts_with("{")) return "JSON text";
  return "";
}

void check_cover(const std::string& path, const Header& header, uint64_t data_bytes) {
  std::vector<const DumpEntry*> order;
  for (const DumpEntry& e : header.entries) order.push_back(&e);
  std::sort(order.begin(), order.end(), [](const DumpEntry* a, const DumpEntry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  uint64_t at = 0;
  const DumpEntry* before = nullptr;
  for (const DumpEntry* e : order) {
    const std::string place = "tensor '" + e->name + "' data_offsets";
    if (e->begin < at)
      throw BadFile(path, place, "a begin at " + std::to_string(at) + " or later",
                    std::to_string(e->begin) + ": overlap with '" + before->name + "'", kNext);
    if (e->begin > at)
      throw BadFile(path, place, "a begin at " + std::to_string(at),
                    std::to_string(e->begin) + ": a gap", kNext);
    at = e->end;
    before = e;
  }
  if (at < data_bytes)
    throw BadFile(path, "size", std::to_string(at) + " bytes of data",
                  std::to_string(data_bytes) + ": bytes after the last tensor", kNext);
}

}  // namespace

bool count_elements(const Shape& shape, int64_t& count) {
  count = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return false;
    if (size == 0)
      empty = true;  // goes on: a zero must not hide an absurd size beside it
    else if (__builtin_mul_overflow(count, size, &count))
      return false;
  }
  if (empty) count = 0;
  return true;
}

bool starts_with_header(std::span<const std::byte> file) {
  return file.size() > 8 && file[8] == std::byte{'{'} && header_length(file) <= file.size() - 8;
}

Header parse_safetensors(const std::string& path, std::span<const std::byte> file) {
  // Only of what is no header: the length of one may begin with any byte, '<' too.
  const std::string other = starts_with_header(file) ? "" : looks_like(file);
  if (!other.empty())
    throw BadFile(path, "format", "a safetensors file", other + ", which is not safetensors",
                  "give the dump itself");
  if (file.size() < 8)
    throw BadFile(path, "size", "a safetensors file of at least 8 bytes",
                  std::to_string(file.size()) + " bytes");
  const uint64_t length = header_length(file);
  if (length > file.size() - 8)
    throw BadFile(path, "header length",
                  "at most " + std::to_string(file.size() - 8) + " bytes, all of the file",
                  std::to_string(length), "the file is truncated or not safetensors");
  if (length > kLargestHeader)
    throw BadFile(path, "header length", "at most " + std::to_string(kLargestHeader) + " bytes",
                  std::to_string(length), "the file is not safetensors, or split it");
  const char* text = reinterpret_cast<const char*>(file.data() + 8);
  if (length == 0 || *text != '{')
    throw BadFile(path, "header", "a JSON object", length == 0 ? "nothing" : "another text",
                  "the file is not safetensors");
  // The parser takes NUL for the end of the text and would not look at what follows.
  if (const void* nul = std::memchr(text, 0, length))
    throw BadFile(path, "header", "JSON padded with spaces",
                  "a NUL at byte " + std::to_string(static_cast<const char*>(nul) - text), kNext);
  Header header;
  HeaderEvents events(path, header);
  nlohmann::json::sax_parse(text, text + length, &events);  // every refusal is thrown
  const uint64_t data_begin = 8 + length, data_bytes = file.size() - data_begin;
  for (DumpEntry& e : header.entries) {
    const std::string place = "tensor '" + e.name + "'";
    if (e.begin > e.end)
      throw BadFile(path, place + " data_offsets", "begin <= end",
                    "[" + std::to_string(e.begin) + ", " + std::to_string(e.end) + "]", kNext);
    if (e.end > data_bytes)
      throw BadFile(path, place + " data_offsets",
                    "an end within the " + std::to_string(data_bytes) + " bytes of data",
                    std::to_string(e.end), "the file is truncated");
    int64_t count = 0, bytes = 0;
    if (!count_elements(e.shape, count) ||
        __builtin_mul_overflow(count, int64_t{std::max(toolkit::bytes_of(e.dtype), 1)}, &bytes))
      throw BadFile(path, place + " shape", "a product within 63 bits", toolkit::to_text(e.shape),
                    kNext);
    if (e.dtype != 0 && uint64_t(bytes) != e.end - e.begin)
      throw BadFile(
          path, place,
          std::to_string(bytes) + " bytes for " + e.dtype_text + " " + toolkit::to_text(e.shape),
          std::to_string(e.end - e.begin) + " in data_offsets", kNext);
    e.strides = dense_strides(e.shape);
  }
  check_cover(path, header, data_bytes);
  for (DumpEntry& e : header.entries) {
    e.begin += data_begin;
    e.end += data_begin;
  }
  add_views(path, header);
  return header;
}

}  // namespace harness
