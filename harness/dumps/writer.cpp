// SPDX-License-Identifier: Apache-2.0
#include "harness/dumps/writer.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "harness/dumps/bad_file.h"
#include "toolkit/dtype.h"

namespace harness {

static_assert(std::endian::native == std::endian::little,
              "the formats are little endian; swap here on another host");

namespace {

// Writes beside the file and renames at the end: a reader never sees half a dump.
class NewFile {
 public:
  explicit NewFile(const std::string& path)
      : path_(path), part_(path + ".part"), out_(part_, std::ios::binary) {
    if (!out_) refuse("open");
  }
  ~NewFile() {
    if (!done_) std::remove(part_.c_str());
  }
  void write(const void* data, size_t bytes) {
    out_.write(static_cast<const char*>(data), std::streamsize(bytes));
    if (!out_) refuse("write");
  }
  void finish() {
    out_.close();
    if (!out_ || std::rename(part_.c_str(), path_.c_str()) != 0) refuse("write");
    done_ = true;
  }

 private:
  [[noreturn]] void refuse(const char* what) const {
    throw BadFile(path_, what, "a place that can be written", std::strerror(errno));
  }
  std::string path_, part_;
  std::ofstream out_;
  bool done_ = false;
};

struct Piece {  // a tensor of the file: dense bytes
  std::string name;
  tk_dtype dtype;
  Shape shape;
  Tensor data;  // dense
};

std::string_view word_of(tk_dtype d) {
  const toolkit::DtypeInfo* i = toolkit::info_of(d);
  if (!i || i->safetensors.empty())
    throw std::invalid_argument("safetensors has no dtype " + std::string(toolkit::name_of(d)) +
                                "; write its bytes as u8");
  return i->safetensors;
}

std::string commas(const Shape& s) {
  std::string t;
  for (const int64_t v : s) t += (t.empty() ? "" : ",") + std::to_string(v);
  return t;
}

// First and one past the last byte of its storage that a tensor touches.
std::pair<int64_t, int64_t> extent(const Tensor& t) {
  const int64_t bytes = toolkit::bytes_of(t.dtype);
  int64_t lowest = 0, highest = 0;
  for (size_t d = 0; d < t.shape.size(); ++d) {
    const int64_t reach = (t.shape[d] - 1) * t.strides[d];
    (reach < 0 ? lowest : highest) += reach;
  }
  return {t.offset + lowest * bytes, t.offset + (highest + 1) * bytes};
}

// Strided tensors that share a storage and a dtype, as one stored span and views into it.
struct Group {
  Storage* storage;
  tk_dtype dtype;
  int64_t begin, end;
  std::vector<std::pair<std::string, const Tensor*>> views;
};

std::vector<Group> group_views(const TensorMap& tensors) {
  std::vector<Group> groups;
  for (const auto& [name, t] : tensors) {
    if (t.dense()) continue;
    const auto [begin, end] = extent(t);
    const int64_t bytes = toolkit::bytes_of(t.dtype);
    Group* into = nullptr;
    for (Group& g : groups)
      if (g.storage == t.storage.get() && g.dtype == t.dtype && (begin - g.begin) % bytes == 0)
        into = &g;
    if (!into) into = &groups.emplace_back(Group{t.storage.get(), t.dtype, begin, end, {}});
    into->begin = std::min(into->begin, begin);
    into->end = std::max(into->end, end);
    into->views.emplace_back(name, &t);
  }
  return groups;
}

}  // namespace

void write_safetensors(const std::string& path, const TensorMap& tensors,
                       const ScalarMap& metadata) {
  std::vector<Piece> pieces;
  ScalarMap notes = metadata;
  for (const auto& [name, t] : tensors)
    if (t.dense()) pieces.push_back({name, t.dtype, t.shape, t});
  for (const Group& g : group_views(tensors)) {
    const int64_t bytes = toolkit::bytes_of(g.dtype);
    Tensor span;
    span.dtype = g.dtype;
    span.shape = {(g.end - g.begin) / bytes};
    span.strides = {1};
    span.storage = g.views[0].second->storage;
    span.offset = g.begin;
    const std::string stored = g.views[0].first + ".storage";
    for (const auto& [name, t] : g.views)
      notes["view." + name] = "storage=" + stored +
                              " offset=" + std::to_string((t->offset - g.begin) / bytes) +
                              " shape=" + commas(t->shape) + " strides=" + commas(t->strides);
    pieces.push_back({stored, g.dtype, span.shape, span});
  }
  // Widest elements first, so that every tensor is aligned to its element.
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return toolkit::bytes_of(a.dtype) > toolkit::bytes_of(b.dtype);
  });
  nlohmann::ordered_json header;
  if (!notes.empty()) header["__metadata__"] = notes;
  uint64_t at = 0;
  for (const Piece& p : pieces) {
    if (p.name == "__metadata__" || header.contains(p.name))
      throw std::invalid_argument("tensor '" + p.name + "': a name that the file can hold once");
    const uint64_t end = at + uint64_t(p.data.count() * toolkit::bytes_of(p.dtype));
    header[p.name] = {{"dtype", word_of(p.dtype)}, {"shape", p.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = pieces.empty() && notes.empty() ? "{}" : header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  NewFile file(path);
  file.write(&length, sizeof length);
  file.write(text.data(), text.size());
  for (const Piece& p : pieces)
    if (p.data.count() > 0)
      file.write(p.data.data(), size_t(p.data.count() * toolkit::bytes_of(p.dtype)));
  file.finish();
}

void write_case(const std::string& path, const Case& c) {
  TensorMap all = c.inputs;
  const auto add = [&](const TensorMap& results, const std::string& kind) {
    for (const auto& [name, t] : results) {
      const size_t dot = c.op == "qsa.step" ? name.find('.') : std::string::npos;
      all.emplace(dot == std::string::npos ? kind + "." + name
                                           : name.substr(0, dot) + "." + kind + name.substr(dot),
                  t);
    }
  };
  add(c.expected, "expected");
  add(c.actual, "actual");
  ScalarMap metadata = c.scalars;
  metadata["op"] = c.op;
  if (!c.preset.empty()) metadata["preset"] = c.preset;
  write_safetensors(path, all, metadata);
}

void write_npy(const std::string& path, const Tensor& t) {
  static constexpr std::pair<tk_dtype, const char*> words[] = {
      {TK_F16, "<f2"}, {TK_F32, "<f4"}, {TK_F64, "<f8"}, {TK_I8, "|i1"},
      {TK_I16, "<i2"}, {TK_I32, "<i4"}, {TK_I64, "<i8"}, {TK_U8, "|u1"},
      {TK_U16, "<u2"}, {TK_U32, "<u4"}, {TK_U64, "<u8"}, {TK_BOOL, "|b1"}};
  const auto word = std::find_if(std::begin(words), std::end(words),
                                 [&](const auto& w) { return w.first == t.dtype; });
  if (word == std::end(words))
    throw std::invalid_argument(".npy has no dtype " + std::string(toolkit::name_of(t.dtype)) +
                                "; write safetensors, which keeps it");
  std::string shape;
  for (const int64_t size : t.shape) shape += std::to_string(size) + ",";
  std::string text = "{'descr': '" + std::string(word->second) +
                     "', 'fortran_order': False, 'shape': (" + shape + "), }";
  text.resize((10 + text.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  text += '\n';
  const Tensor dense = t.dense() ? t : t.packed();
  NewFile file(path);
  const unsigned char start[10] = {
      0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, uint8_t(text.size()), uint8_t(text.size() >> 8)};
  file.write(start, sizeof start);
  file.write(text.data(), text.size());
  if (dense.count() > 0)
    file.write(dense.data(), size_t(dense.count() * toolkit::bytes_of(dense.dtype)));
  file.finish();
}

}  // namespace harness
