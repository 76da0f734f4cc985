// SPDX-License-Identifier: Apache-2.0
#include "cli/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>

#include "harness/measure/roofs.h"
#include "harness/ops/names.h"
#include "harness/plugins/errors.h"

namespace cli {

using harness::BadRequest;

namespace {

// Ours -> the backend's option text.
std::string order_option(const std::string& order) {
  if (order == "fwd") return "forward";
  if (order == "rev") return "reverse";
  uint64_t seed = 0;
  const std::string_view text = std::string_view(order).substr(std::min<size_t>(5, order.size()));
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (!order.starts_with("seed:") || text.empty() || error != std::errc{} ||
      end != text.data() + text.size())
    throw BadRequest(fmt::format("order '{}': expected fwd, rev or seed:N", order));
  return order;
}

constexpr std::string_view kBest = "best";

// sm_90 before sm_80 before portable, as select and step choose (kernels/qsa/launches.h).
int rank_of(const std::string& label) {
  return label.starts_with("sm_") ? std::atoi(label.c_str() + 3) : 0;
}

std::vector<std::string> device_words(harness::Registry& registry) {
  std::vector<std::string> words{"all"};
  for (const auto& backend : registry.backends()) {
    words.push_back(backend);
    if (backend != "simt") words.push_back(backend + ":0");
  }
  return words;
}

}  // namespace

Target::Target(const Options& options)
    : options_(options),
      registry_(harness::Registry::default_folders(), options.wave ? options.wave : 32) {
  const std::string order = options.order.empty() ? "" : order_option(options.order);
  for (const auto& file : options.plugins) registry_.add(file);
  for (const auto& name : options.devices) {
    const auto known = registry_.backends();
    const std::string backend = name.substr(0, name.find(':'));
    if (name == "all" || std::ranges::find(known, backend) != known.end()) continue;
    throw BadRequest(
        fmt::format("unknown device '{}'{}; expected {}, with an index as in cuda:0, or all", name,
                    harness::nearest_hint(name, device_words(registry_)), fmt::join(known, ", ")));
  }
  devices_ = harness::find_devices(registry_, options.devices, absent_);
  const bool simt =
      std::ranges::any_of(devices_, [](const auto& d) { return d.backend() == "simt"; });
  if (!simt && (options.wave || !order.empty()))
    throw BadRequest(fmt::format("{} is an option of simt, but the device is {}",
                                 options.wave ? "--wave" : "--order", devices_.front().name()));
  for (const auto& device : devices_)
    if (device.backend() == "simt" && !order.empty()) device.set_option("order", order);
}

bool Target::only_best() const {
  return std::ranges::find(options_.implementations, kBest) != options_.implementations.end();
}

std::vector<harness::Implementation> Target::implementations(const harness::Device& device,
                                                             std::string_view op) {
  auto all = registry_.implementations(device.backend(), op);
  if (options_.implementations.empty()) return all;
  if (only_best()) {
    // A shipped backend's own kernels; those of --plugin are named.
    const auto own = [](const auto& i) { return i.label.find('/') == std::string::npos; };
    if (std::ranges::any_of(all, own)) std::erase_if(all, std::not_fn(own));
    std::ranges::stable_sort(all, std::greater<>(), [](const auto& i) { return rank_of(i.label); });
    return all;
  }
  std::erase_if(all, [&](const harness::Implementation& i) {
    const std::string bare = i.label.substr(i.label.find('/') + 1);
    return std::ranges::none_of(options_.implementations,
                                [&](const auto& w) { return w == i.label || w == bare; });
  });
  return all;
}

void Target::check(const std::vector<const harness::Card*>& ops) {
  std::vector<std::string> names, op_names;
  for (const auto* card : harness::cards()) op_names.emplace_back(card->op());
  for (const auto& device : devices_)
    for (const auto* card : ops)
      for (const auto& i : registry_.implementations(device.backend(), card->op())) {
        names.push_back(i.label);
        names.push_back(i.label.substr(i.label.find('/') + 1));
      }
  if (only_best() && options_.implementations.size() > 1)
    throw BadRequest("--impl best chooses by itself: expected no other implementation beside it");
  for (const auto& word : options_.implementations)
    if (word != kBest && std::ranges::find(names, word) == names.end()) {
      std::ranges::sort(names);
      names.erase(std::unique(names.begin(), names.end()), names.end());
      throw BadRequest(
          fmt::format("unknown implementation '{}'{}; these ops have {} here", word,
                      harness::nearest_hint(word, names),
                      names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
    }
  for (const auto& plugin : registry_.added()) {
    const auto offered = plugin->op_names();
    for (const auto& op : offered)
      if (!harness::find_card(op) && !harness::is_probe(op))
        throw BadRequest(fmt::format("{}: implements an op '{}' that does not exist{}",
                                     plugin->file().string(), op,
                                     harness::nearest_hint(op, op_names)));
    // Said, or a kernel that was never called would seem to have passed.
    if (!offered.empty() && std::ranges::none_of(ops, [&](const auto* card) {
          return std::ranges::find(offered, card->op()) != offered.end();
        })) {
      std::vector<std::string_view> asked;
      for (const auto* card : ops) asked.push_back(card->op());
      fmt::print(stderr, "note: {} has no kernel of {}; it has {}\n", plugin->file().string(),
                 fmt::join(asked, ", "), fmt::join(offered, ", "));
    }
  }
}

}  // namespace cli
