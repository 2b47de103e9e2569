#include "profile/cost_cache.h"

#include <atomic>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/document.h"
#include "base/log.h"
#include "base/setting.h"

namespace pipetrain {
namespace {

constexpr std::string_view kSchema = "pipetrain.kernel-times/1";
constexpr std::size_t kMaximumEnvironments = 16;
constexpr std::size_t kMostWorkspaceBytes = std::size_t{1} << 50;

// {"environments": {ENVIRONMENT: {KEY: [seconds, workspace bytes]}}}
Json read_environments(const std::filesystem::path& path) {
  std::error_code code;
  if (path.empty() || !std::filesystem::exists(path, code)) return Json::object();
  try {
    const Document document = Document::read(path, kSchema);
    const auto found = document.json().find("environments");
    if (found != document.json().end() && found->is_object()) return *found;
    log_warning("profile", "ignoring the cache {}: it lists no environments", path.string());
  } catch (const Error& error) {
    log_warning("profile", "ignoring the cache of measurements: {}", error.message());
  }
  return Json::object();
}

std::optional<KernelCost> cost_of(const Json& entry) {
  if (!entry.is_array() || entry.size() != 2 || !entry[0].is_number() ||
      !entry[1].is_number_unsigned()) {
    return std::nullopt;
  }
  const KernelCost cost{entry[0].get<double>(), entry[1].get<std::size_t>()};
  if (!(cost.seconds >= 0 && cost.seconds < 1e6) || cost.workspace_bytes > kMostWorkspaceBytes)
    return std::nullopt;
  return cost;
}

/// Several caches of a command share one file, so that one warning is enough.
void warn_once(std::string_view reason) {
  static std::atomic_flag warned;
  if (warned.test_and_set()) return;
  log_warning("profile",
              "measurements are not kept: {}; set PIPETRAIN_CACHE_DIR to a folder that can be "
              "written, or give {}=false",
              reason, setting("cache"));
}

}  // namespace

CostCache::CostCache(std::filesystem::path directory, std::string environment)
    : environment_(std::move(environment)) {
  if (directory.empty()) return;
  path_ = std::move(directory) / "kernel-times.json";
  const Json environments = read_environments(path_);
  const auto found = environments.find(environment_);
  if (found == environments.end() || !found->is_object()) return;
  for (const auto& [key, entry] : found->items()) {
    if (const auto cost = cost_of(entry)) known_[key] = *cost;
  }
}

std::optional<KernelCost> CostCache::find(const std::string& key) const {
  const auto found = known_.find(key);
  if (found == known_.end()) return std::nullopt;
  return found->second;
}

void CostCache::add(const std::string& key, KernelCost cost) { added_[key] = cost; }

void CostCache::save() {
  if (path_.empty() || added_.empty()) return;
  const std::filesystem::path folder = path_.parent_path();
  std::error_code no_folder;
  std::filesystem::create_directories(folder, no_folder);
  if (no_folder) {
    warn_once(fmt::format("cannot create the folder {}: {}", printable(folder.string()),
                          no_folder.message()));
    return;
  }
  try {
    // Read again: another process may have added something meanwhile.
    Json environments = read_environments(path_);
    Json entries = Json::object();
    const auto found = environments.find(environment_);
    if (found != environments.end() && found->is_object()) entries = *found;
    for (const auto& [key, cost] : added_) entries[key] = {cost.seconds, cost.workspace_bytes};
    // The most recently used environment is last; the oldest are dropped.
    environments.erase(environment_);
    while (environments.size() >= kMaximumEnvironments) environments.erase(environments.begin());
    environments[environment_] = std::move(entries);
    write_document(path_, kSchema, {{"environments", std::move(environments)}});
  } catch (const std::exception& error) {
    warn_once(error.what());
  }
}

}  // namespace pipetrain
