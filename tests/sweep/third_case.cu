// SPDX-License-Identifier: Apache-2.0
// Kernels of qsa.expand that are right for every case but that of three rows, where one writes
// outside all memory, one never ends and one's host side throws. On simt and, built the same way, on a GPU:
//   qsa-verify run expand -a requests=1:5 --isolate --timeout 20 --plugin PLUGIN --impl third-hangs
#include <stdexcept>

#include "qsa/expand.h"
#include "qsa/launches.h"

namespace qsa {
namespace {

DEVICE_KERNEL(device::kWave) writing_kernel(uint32_t* word) {
  if (device::thread() == 0) *word = 0;
}
DEVICE_KERNEL(device::kWave) endless_kernel(uint32_t* word) {
  if (device::thread() == 0)
    while (device::atomic_add(word, 0u) == 0) {  // nobody sets it
    }
}

struct Faults {
  static constexpr const char* implementation = "third-faults";
  static void third(const device::OpCall& call) {
    device::launch(writing_kernel, device::Grid{}, device::kWave, 0, call.stream,
                   reinterpret_cast<uint32_t*>(16));
  }
};
struct Hangs {
  static constexpr const char* implementation = "third-hangs";
  static void third(const device::OpCall& call) {
    auto* word = reinterpret_cast<uint32_t*>(call.workspace);
    device::launch(writing_kernel, device::Grid{}, device::kWave, 0, call.stream, word);
    device::launch(endless_kernel, device::Grid{}, device::kWave, 0, call.stream, word);
  }
};
struct Throws {
  static constexpr const char* implementation = "third-throws";
  static void third(const device::OpCall&) { throw std::runtime_error("thrown for three rows"); }
};

template <class Bad>
struct Expand {
  static constexpr const toolkit::Contract& contract = expand::contract;
  static constexpr const char* implementation = Bad::implementation;
  static uint64_t workspace(const toolkit::Args&) { return 4; }
  static void run(const device::OpCall& call) {
    ExpandParams p{};
    p.blocks = tensor_of<2>(call.tensor("block_indices"));
    p.positions = tensor_of<1>(call.tensor("query_positions"));
    p.lengths = tensor_of<1>(call.tensor("sequence_lengths"));
    p.token_to_req = tensor_of<1>(call.tensor("token_to_req"));
    p.indices = tensor_of<2>(call.tensor("indices"));
    p.ratio = call.args.integer("compress_ratio");
    if (p.indices.size[0] == 3) Bad::third(call);
    launch_expand(p, call.stream);
  }
};
using ExpandThatFaults = Expand<Faults>;
using ExpandThatHangs = Expand<Hangs>;
using ExpandThatThrows = Expand<Throws>;
DEVICE_OP(ExpandThatFaults)
DEVICE_OP(ExpandThatHangs)
DEVICE_OP(ExpandThatThrows)

}  // namespace
}  // namespace qsa
