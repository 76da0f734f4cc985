// SPDX-License-Identifier: Apache-2.0
#include "harness/dumps/dump.h"

#include <algorithm>
#include <cstring>

#include "harness/dumps/bad_file.h"
#include "harness/dumps/formats.h"
#include "harness/tensors/walk.h"
#include "toolkit/dtype.h"

namespace harness {

namespace {

bool ends_with(const std::string& path, std::string_view ending) {
  return path.size() >= ending.size() &&
         std::string_view(path).substr(path.size() - ending.size()) == ending;
}

[[noreturn]] void not_yet(const std::string& path, const std::string& kind) {
  throw BadFile(
      path, "format", "safetensors or .npy", kind + ", which is not read yet",
      "not yet: convert to safetensors (safetensors.torch.save_file, or numpy.save per array)");
}

// A dense copy in this host's byte order.
Tensor copied(const Tensor& from, bool swapped) {
  Tensor to = make_tensor(from.dtype, from.shape);
  const size_t bytes = size_t(toolkit::bytes_of(from.dtype));
  std::byte* out = to.data();
  walk(from, [&](int64_t, const std::byte* p) {
    if (swapped)
      std::reverse_copy(p, p + bytes, out);
    else
      std::memcpy(out, p, bytes);
    out += bytes;
  });
  return to;
}

}  // namespace

Dump Dump::open(const std::string& path) {
  Dump d;
  d.path_ = path;
  d.file_ = MappedFile::open(path);
  const std::span<const std::byte> file(d.file_->data(), d.file_->bytes());
  const std::string_view start(reinterpret_cast<const char*>(file.data()),
                               std::min<size_t>(file.size(), 8));
  // The name decides only where the content does not: a zip that calls itself safetensors is not
  // read as .npz.
  const bool is_safetensors = ends_with(path, ".safetensors") || starts_with_header(file);
  if (!is_safetensors) {
    if (ends_with(path, ".pt") || ends_with(path, ".pth")) not_yet(path, "a torch.save file (.pt)");
    if (ends_with(path, ".npz")) not_yet(path, "an .npz archive");
    if (start.starts_with("PK\x03\x04")) not_yet(path, "a zip archive (.npz or .pt)");
    if (start.starts_with("\x80\x02")) not_yet(path, "a pickle (.pt, .pkl)");
  }
  Header header;
  if (!is_safetensors && (start.starts_with("\x93NUMPY") || ends_with(path, ".npy"))) {
    header = parse_npy(path, file);
    d.format_ = "npy";
  } else {
    header = parse_safetensors(path, file);
    d.format_ = "safetensors";
  }
  d.entries_ = std::move(header.entries);
  d.metadata_ = std::move(header.metadata);
  for (const DumpEntry& e : d.entries_)
    if (!e.storage.empty()) d.storages_.insert(e.storage);
  return d;
}

const DumpEntry* Dump::find(std::string_view name) const {
  for (const DumpEntry& e : entries_)
    if (e.name == name) return &e;
  return nullptr;
}

bool Dump::is_storage(std::string_view name) const { return storages_.contains(name); }

Tensor Dump::tensor(std::string_view name) const {
  const DumpEntry* e = find(name);
  if (!e)
    throw BadFile(path_, "tensor '" + std::string(name) + "'", "a tensor of that name", "none");
  if (e->dtype == 0)
    throw BadFile(path_, "tensor '" + std::string(name) + "'", "a dtype that this program knows",
                  "'" + e->dtype_text.substr(0, 40) + "'", "convert the tensor");
  Tensor t;
  t.dtype = e->dtype;
  t.shape = e->shape;
  t.strides = e->strides;
  t.storage = file_;
  const int64_t bytes = toolkit::bytes_of(e->dtype);
  t.offset = int64_t(e->begin) + e->offset * bytes;
  const bool aligned = e->begin % uint64_t(bytes) == 0;  // the mapping itself starts at a page
  if (aligned && !e->swapped) return t;
  if (e->storage.empty()) return copied(t, e->swapped);
  // A view of a misaligned storage: the storage is copied, so that strides (0, negative) stay what
  // they are.
  Tensor base = tensor(e->storage);
  return view(base, e->offset, e->shape, e->strides);
}

std::vector<DumpEntry> describe(const std::string& path) { return Dump::open(path).entries(); }

}  // namespace harness
