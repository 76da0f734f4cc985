// SPDX-License-Identifier: Apache-2.0
// A file of named tensors, whatever its format: opened without reading data, tensors as views of the mapped file.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "harness/dumps/mapped_file.h"
#include "harness/tensors/tensor.h"

namespace harness {

// One tensor as the header describes it, checked against the file's size.
struct DumpEntry {
  std::string name;        // "" in an .npy
  tk_dtype dtype = 0;      // 0: a dtype that this program does not know
  std::string dtype_text;  // as the file has it: "BF16", "<f4"
  Shape shape;
  Shape strides;           // elements
  uint64_t begin = 0;      // bytes [begin, end) of the file
  uint64_t end = 0;
  bool swapped = false;    // big-endian elements
  std::string storage;     // of a view: the tensor it looks into
  int64_t offset = 0;      // of a view: elements from that tensor's start
};

class Dump {
 public:
  // Recognises the format by content, not by name. Throws BadFile; .pt and .npz get a "not yet".
  static Dump open(const std::string& path);

  const std::string& path() const { return path_; }
  std::string_view format() const { return format_; }  // "safetensors", "npy"
  const std::vector<DumpEntry>& entries() const { return entries_; }
  const ScalarMap& metadata() const { return metadata_; }
  const DumpEntry* find(std::string_view name) const;
  // Other tensors look into this one as their storage.
  bool is_storage(std::string_view name) const;
  // The tensor's data: in place where it is aligned and in this host's byte order, else a copy. Throws BadFile for a
  // dtype that is not known, and for a name that is not there.
  Tensor tensor(std::string_view name) const;

 private:
  std::string path_;
  std::string_view format_;
  std::shared_ptr<MappedFile> file_;
  std::vector<DumpEntry> entries_;  // in the file's order
  ScalarMap metadata_;
  std::set<std::string, std::less<>> storages_;
};

// What `list FILE` prints; reads the header only.
std::vector<DumpEntry> describe(const std::string& path);

}  // namespace harness
