// SPDX-License-Identifier: Apache-2.0
// The devices and implementations of a run, as --device, --plugin, --impl, --wave and --order ask
// for them.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cli/options.h"
#include "harness/ops/card.h"
#include "harness/plugins/device.h"
#include "harness/plugins/registry.h"
#include "harness/report/row.h"

namespace cli {

class Target {
 public:
  // Throws BadRequest, Absent, DeviceError.
  explicit Target(const Options& options);
  const std::vector<harness::Device>& devices() const { return devices_; }
  const std::vector<std::string>& absent() const {
    return absent_;
  }  // backends that `all` left out
  // Those of --impl, or all. With --impl best: in the order in which a caller of the op tries them.
  std::vector<harness::Implementation> implementations(const harness::Device& device,
                                                       std::string_view op);
  // --impl best: the first of these that does not say unsupported serves the case, the others do not run.
  bool only_best() const;
  // Refuses (BadRequest) an --impl that no op has on these devices, and says what a plugin offers
  // in vain.
  void check(const std::vector<const harness::Card*>& ops);
  harness::Registry& registry() { return registry_; }

  // By device name: the rows that measure_roofs wrote; nothing where no roofs were measured.
  std::map<std::string, std::vector<harness::Row>> roofs;

 private:
  const Options& options_;
  harness::Registry registry_;
  std::vector<harness::Device> devices_;
  std::vector<std::string> absent_;
};

}  // namespace cli
