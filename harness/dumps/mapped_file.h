// SPDX-License-Identifier: Apache-2.0
// A file as memory. Pages are private: writing to them changes neither the file nor another reader.
#pragma once

#include <memory>
#include <string>

#include "harness/tensors/tensor.h"

namespace harness {

class MappedFile final : public Storage {
 public:
  // Throws BadFile where there is no readable regular file. An empty file has no bytes.
  static std::shared_ptr<MappedFile> open(const std::string& path);
  ~MappedFile() override;

 private:
  MappedFile(std::byte* data, size_t bytes) : Storage(data, bytes) {}
};

}  // namespace harness
