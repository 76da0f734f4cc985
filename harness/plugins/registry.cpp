// SPDX-License-Identifier: Apache-2.0
#include "harness/plugins/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "harness/plugins/errors.h"

namespace harness {

namespace {
constexpr std::array<std::string_view, 3> kShipped{"cuda", "hip", "simt"};  // GPUs first

bool is_shipped(std::string_view backend) {
  return std::ranges::find(kShipped, backend) != kShipped.end();
}
}  // namespace

Registry::Registry(std::vector<std::filesystem::path> folders, int wave)
    : folders_(std::move(folders)), wave_(wave) {}

std::vector<std::filesystem::path> Registry::default_folders() {
  std::vector<std::filesystem::path> folders;
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) folders.push_back(self.parent_path());
  if (const char* more = std::getenv("TOOLKIT_PLUGIN_DIR"); more && *more)
    folders.emplace_back(more);
  return folders;
}

void Registry::add(const std::filesystem::path& file) {
  auto plugin = std::make_unique<Plugin>(file);
  if (plugin->runtime() && is_shipped(plugin->name()))
    throw BadRequest(
        fmt::format("{}: its backend is called '{}' like a shipped one; expected another name, or "
                    "runs_on = \"{}\" without a runtime",
                    file.string(), plugin->name(), plugin->name()));
  for (const auto& other : added_)
    if (other->name() == plugin->name())
      throw BadRequest(fmt::format("{}: a plugin '{}' was already loaded from {}", file.string(),
                                   plugin->name(), other->file().string()));
  const bool known = plugin->runtime() || is_shipped(plugin->backend()) ||
                     std::ranges::any_of(added_, [&](auto& p) {
                       return p->runtime() && p->name() == plugin->backend();
                     });
  if (!known)
    throw BadRequest(fmt::format(
        "{}: runs on backend '{}', which nobody brings; expected cuda, hip, simt or the name "
        "of an earlier --plugin with a runtime",
        file.string(), plugin->backend()));
  added_.push_back(std::move(plugin));
}

Registry::Entry& Registry::entry(std::string_view backend) {
  if (const auto it = shipped_.find(backend); it != shipped_.end()) return it->second;
  Entry& made = shipped_[std::string(backend)];
  const std::string file =
      fmt::format("kernels-{}{}.so", backend, backend == "simt" && wave_ == 64 ? "-w64" : "");
  std::string looked_in;
  for (const auto& folder : folders_) {
    if (std::error_code error; !std::filesystem::exists(folder / file, error)) {
      looked_in += (looked_in.empty() ? "" : " and ") + folder.string();
      continue;
    }
    try {
      auto plugin = std::make_unique<Plugin>(folder / file);
      if (!plugin->runtime() || plugin->name() != backend)
        made.absent =
            fmt::format("{} is not the plugin of backend {}", (folder / file).string(), backend);
      else
        made.plugin = std::move(plugin);
    } catch (const BadRequest& e) {
      made.absent = e.what();
    }
    break;
  }
  if (!made.plugin && made.absent.empty())
    made.absent = fmt::format("{} is not in {} (this build did not make it)", file,
                              looked_in.empty() ? "the executable's folder" : looked_in);
  if (!made.plugin) return made;
  int32_t count = 0;
  const tk_runtime& runtime = *made.plugin->runtime();
  if (runtime.device_count(&count) != TK_OK) {
    const char* why = runtime.last_error();
    made.absent = why && *why ? why : "its runtime does not say why";
  } else if (count == 0) {
    made.absent = "its runtime finds no device";
  }
  return made;
}

const Plugin* Registry::shipped(std::string_view backend) {
  const Entry& e = entry(backend);
  return e.absent.empty() ? e.plugin.get() : nullptr;
}

std::string Registry::why_absent(std::string_view backend) {
  return is_shipped(backend) ? entry(backend).absent : std::string();
}

std::vector<std::string> Registry::backends() const {
  std::vector<std::string> names(kShipped.begin(), kShipped.end());
  for (const auto& p : added_)
    if (p->runtime()) names.emplace_back(p->name());
  return names;
}

const tk_runtime& Registry::runtime(std::string_view backend) {
  for (const auto& p : added_)
    if (p->runtime() && p->name() == backend) return *p->runtime();
  if (!is_shipped(backend)) throw BadRequest(fmt::format("no backend '{}'", backend));
  Entry& e = entry(backend);
  if (!e.absent.empty()) throw Absent(fmt::format("{} is absent, because {}", backend, e.absent));
  return *e.plugin->runtime();
}

std::vector<Implementation> Registry::implementations(std::string_view backend,
                                                      std::string_view op) {
  if (is_shipped(backend) && !shipped(backend)) return of_added(backend, op);
  return built(backend, op);
}

std::vector<Implementation> Registry::built(std::string_view backend, std::string_view op) {
  std::vector<Implementation> found;
  if (is_shipped(backend))
    if (const Plugin* p = entry(backend).plugin.get())
      for (const tk_op* o : p->ops(op)) found.push_back({o->implementation, o});
  for (auto& i : of_added(backend, op)) found.push_back(std::move(i));
  return found;
}

std::vector<Implementation> Registry::of_added(std::string_view backend,
                                               std::string_view op) const {
  std::vector<Implementation> found;
  for (const auto& p : added_)
    if (p->backend() == backend)
      for (const tk_op* o : p->ops(op))
        found.push_back({fmt::format("{}/{}", p->name(), o->implementation), o});
  return found;
}

}  // namespace harness
