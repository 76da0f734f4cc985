// SPDX-License-Identifier: Apache-2.0
// The .npy header: "\x93NUMPY", version, length (2 bytes in version 1, 4 in 2 and 3), then a Python
// dictionary
// {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } padded with spaces. Data fills the
// rest of the file.
#include <cstring>

#include "harness/dumps/bad_file.h"
#include "harness/dumps/formats.h"
#include "toolkit/dtype.h"

namespace harness {

namespace {

constexpr const char* kNext = "save it again with numpy.save";

struct Fields {
  std::string descr;
  bool fortran = false;
  Shape shape;
  bool has_descr = false, has_order = false, has_shape = false;
};

// The few literals that such a dictionary holds.
class Dictionary {
 public:
  Dictionary(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  Fields parse() {
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted("a key in quotes");
      expect(':');
      if (key == "descr") {
        once(fields_.has_descr, key);
        if (peek() == '[') refuse("descr one plain dtype", "a structured one");
        fields_.descr = quoted("descr as a string");
      } else if (key == "fortran_order") {
        once(fields_.has_order, key);
        fields_.fortran = boolean();
      } else if (key == "shape") {
        once(fields_.has_shape, key);
        tuple();
      } else {
        refuse("the keys descr, fortran_order and shape", "'" + key.substr(0, 40) + "'");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip();
    if (at_ != text_.size()) refuse("spaces after the dictionary", "more text");
    for (const auto& [has, key] :
         {std::pair(fields_.has_descr, "descr"), std::pair(fields_.has_order, "fortran_order"),
          std::pair(fields_.has_shape, "shape")})
      if (!has) refuse(std::string("a key '") + key + "'", "none");
    return fields_;
  }

 private:
  [[noreturn]] void refuse(std::string expected, std::string got) const {
    throw BadFile(path_, "header", std::move(expected), std::move(got), kNext);
  }
  void once(bool& seen, const std::string& key) {
    if (seen) refuse("every key once", "duplicate key '" + key + "'");
    seen = true;
  }
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t'))
      ++at_;
  }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) refuse(std::string("'") + c + "'", where());
  }
  std::string where() const {
    return at_ < text_.size() ? "byte " + std::to_string(int(uint8_t(text_[at_]))) +
                                    " at position " + std::to_string(at_)
                              : "the end of the header";
  }
  std::string quoted(const char* expected) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') refuse(expected, where());
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) refuse(expected, "no closing quote");
    std::string out(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return out;
  }
  bool boolean() {
    skip();
    for (const auto& [word, value] :
         {std::pair(std::string_view("True"), true), std::pair(std::string_view("False"), false)})
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return value;
      }
    refuse("fortran_order True or False", where());
  }
  void tuple() {
    expect('(');
    while (!accept(')')) {
      if (fields_.shape.size() == kLargestRank)
        refuse("at most " + std::to_string(kLargestRank) + " dimensions", "more");
      fields_.shape.push_back(size());
      if (!accept(',')) {
        if (fields_.shape.size() == 1 && peek() == ')') expect(',');  // (4) is a number
        expect(')');
        break;
      }
    }
  }
  int64_t size() {
    if (peek() == '-') refuse("sizes >= 0", "a negative size");
    int64_t v = 0;
    const size_t begin = at_;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      if (__builtin_mul_overflow(v, int64_t{10}, &v) ||
          __builtin_add_overflow(v, int64_t{text_[at_] - '0'}, &v))
        refuse("sizes below 2^63", "a longer number");
    if (at_ == begin) refuse("an integer in shape", where());
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2 wrote (2L, 3L)
    return v;
  }

  const std::string& path_;
  std::string_view text_;
  size_t at_ = 0;
  Fields fields_;
};

tk_dtype dtype_of(std::string_view code) {
  static constexpr std::pair<std::string_view, tk_dtype> known[] = {
      {"f2", TK_F16},
      {"f4", TK_F32},
      {"f8", TK_F64},
      {"i1", TK_I8},
      {"i2", TK_I16},
      {"i4", TK_I32},
      {"i8", TK_I64},
      {"u1", TK_U8},
      {"u2", TK_U16},
      {"u4", TK_U32},
      {"u8", TK_U64},
      {"b1", TK_BOOL},
      // What ml_dtypes makes of bf16 and fp8: raw bytes, to be named by --as.
      {"V2", TK_U16},
      {"V1", TK_U8}};
  for (const auto& [text, dtype] : known)
    if (text == code) return dtype;
  return 0;
}

}  // namespace

Header parse_npy(const std::string& path, std::span<const std::byte> file) {
  const auto byte = [&](size_t i) { return std::to_integer<uint32_t>(file[i]); };
  if (file.size() < 10 || std::memcmp(file.data(), "\x93NUMPY", 6) != 0)
    throw BadFile(path, "format", "an .npy file of at least 10 bytes", "no such start");
  const uint32_t version = byte(6);
  if (version < 1 || version > 3 || byte(7) != 0)
    throw BadFile(path, "version", "1.0, 2.0 or 3.0",
                  std::to_string(version) + "." + std::to_string(byte(7)), kNext);
  const size_t start = version == 1 ? 10 : 12;
  if (file.size() < start)
    throw BadFile(path, "header", "a length", "the end of the file", "the file is truncated");
  size_t length = byte(8) | byte(9) << 8;
  if (version > 1) length |= size_t{byte(10)} << 16 | size_t{byte(11)} << 24;
  if (length > file.size() - start)
    throw BadFile(path, "header length",
                  "at most " + std::to_string(file.size() - start) + " bytes, all of the file",
                  std::to_string(length), "the file is truncated");
  if (length > kLargestHeader)
    throw BadFile(path, "header length", "at most " + std::to_string(kLargestHeader) + " bytes",
                  std::to_string(length), kNext);
  const Fields f =
      Dictionary(path, {reinterpret_cast<const char*>(file.data() + start), length}).parse();
  const bool has_order =
      !f.descr.empty() && std::string_view("<>|=").find(f.descr[0]) != std::string_view::npos;
  const std::string_view code = std::string_view(f.descr).substr(has_order ? 1 : 0);
  if (code.starts_with("O"))
    throw BadFile(path, "descr", "numbers",
                  "'" + f.descr + "': Python objects (pickled; never executed here)",
                  "save the array with a numeric dtype");
  DumpEntry e;
  e.dtype = dtype_of(code);
  e.dtype_text = f.descr;
  if (e.dtype == 0)
    throw BadFile(path, "descr", "f2, f4, f8, i1 to i8, u1 to u8 or b1",
                  "'" + f.descr.substr(0, 40) + "'", "save the array with one of these dtypes");
  const int64_t size = toolkit::bytes_of(e.dtype);
  e.swapped = f.descr[0] == '>' && size > 1;
  e.shape = f.shape;
  int64_t count = 0, bytes = 0;
  if (!count_elements(e.shape, count) || __builtin_mul_overflow(count, size, &bytes))
    throw BadFile(path, "shape", "a product within 63 bits", toolkit::to_text(e.shape), kNext);
  const uint64_t data = file.size() - start - length;
  if (uint64_t(bytes) != data)
    throw BadFile(
        path, "size",
        std::to_string(bytes) + " bytes of data for " + f.descr + " " + toolkit::to_text(e.shape),
        std::to_string(data),
        data < uint64_t(bytes) ? "the file is truncated" : "data longer than the shape");
  e.begin = start + length;
  e.end = file.size();
  if (f.fortran) {
    const Shape reversed(e.shape.rbegin(), e.shape.rend());
    const Shape strides = dense_strides(reversed);
    e.strides.assign(strides.rbegin(), strides.rend());
  } else {
    e.strides = dense_strides(e.shape);
  }
  Header header;
  header.entries.push_back(std::move(e));
  return header;
}

}  // namespace harness
