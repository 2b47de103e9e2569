#include "partition/topology_file.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/atomic_file.h"
#include "base/cache_directory.h"
#include "base/document.h"
#include "base/error.h"
#include "base/log.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kMaximumDevices = 1 << 20;
constexpr double kLeastBytesPerSecond = 1e-3;
constexpr double kLeastSpeed = 1e-6, kMostSpeed = 1e6;

// A number under either of two names, at most `most`; the second one is in plain units, as `most`
// is. 0 when both are missing.
double quantity(const DocumentField& field, std::string_view name, double unit,
                std::string_view plain_name, double most) {
  if (field.has(name) && field.has(plain_name)) {
    field.fail(fmt::format("has both {} and {}; one is enough", name, plain_name));
  }
  if (field.has(name)) return field.at(name).real(0, most / unit) * unit;
  return field.has(plain_name) ? field.at(plain_name).real(0, most) : 0;
}

TopologyLevel level_of(const DocumentField& field) {
  field.allow_only({"name", "count", "gigabytes_per_second", "bytes_per_second",
                    "all_reduce_gigabytes_per_second", "all_reduce_bytes_per_second",
                    "latency_microseconds", "latency_seconds"});
  TopologyLevel level;
  if (field.has("name")) level.name = field.at("name").text();
  level.count = static_cast<int>(field.at("count").integer(1, kMaximumDevices));
  level.bytes_per_second = quantity(field, "gigabytes_per_second", 1e9, "bytes_per_second",
                                    DocumentField::kMostPerSecond);
  level.all_reduce_bytes_per_second =
      quantity(field, "all_reduce_gigabytes_per_second", 1e9, "all_reduce_bytes_per_second",
               DocumentField::kMostPerSecond);
  level.latency_seconds =
      quantity(field, "latency_microseconds", 1e-6, "latency_seconds", DocumentField::kMostSeconds);
  if (level.bytes_per_second < kLeastBytesPerSecond) {
    field.fail("needs gigabytes_per_second (or bytes_per_second) above 0: of one link, one way");
  }
  if (level.all_reduce_bytes_per_second > 0 &&
      level.all_reduce_bytes_per_second < kLeastBytesPerSecond) {
    field.fail(
        "needs an all_reduce_gigabytes_per_second (or all_reduce_bytes_per_second) of at least "
        "0.001 bytes per second; leave it out where gradients are summed as fast as other data is "
        "sent");
  }
  return level;
}

void read_device(const DocumentField& device, Topology& topology) {
  device.allow_only({"memory_gibibytes", "memory_bytes", "teraflops_per_second", "flops_per_second",
                     "memory_gigabytes_per_second", "memory_bytes_per_second", "speed"});
  topology.memory_bytes =
      static_cast<std::size_t>(quantity(device, "memory_gibibytes", 1 << 30, "memory_bytes",
                                        static_cast<double>(DocumentField::kMostBytes)));
  topology.flops_per_second = quantity(device, "teraflops_per_second", 1e12, "flops_per_second",
                                       DocumentField::kMostPerSecond);
  topology.memory_bytes_per_second =
      quantity(device, "memory_gigabytes_per_second", 1e9, "memory_bytes_per_second",
               DocumentField::kMostPerSecond);
  if (!device.has("speed")) return;
  const DocumentField speeds = device.at("speed");
  if (speeds.size() != static_cast<std::size_t>(topology.devices())) {
    speeds.fail(fmt::format("has {} numbers, but the levels make {} devices", speeds.size(),
                            topology.devices()));
  }
  for (std::size_t i = 0; i < speeds.size(); ++i) {
    topology.device_speed.push_back(speeds.item(i).real(kLeastSpeed, kMostSpeed));
  }
}

Topology topology_of(const Document& document) {
  const DocumentField root = document.root();
  root.allow_only({"schema", "name", "source", "levels", "device"});
  Topology out;
  if (root.has("name")) out.name = root.at("name").text();
  if (root.has("source")) root.at("source").text();
  const DocumentField levels = root.at("levels");
  if (levels.size() == 0) levels.fail("lists no level; one device is a level of count 1");
  std::int64_t devices = 1;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    out.levels.push_back(level_of(levels.item(i)));
    devices *= out.levels.back().count;
    if (devices > kMaximumDevices) {
      levels.fail(fmt::format("make more than {} devices", kMaximumDevices));
    }
  }
  if (root.has("device")) read_device(root.at("device"), out);
  return out;
}

// Next to the program, in the install tree, and in the source tree.
std::vector<std::filesystem::path> shipped_folders() {
  std::vector<std::filesystem::path> out;
  std::error_code code;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", code);
  if (!code) {
    const std::filesystem::path folder = program.parent_path();
    out.push_back(folder / "topologies");
    out.push_back(folder.parent_path() / "share/pipetrain/topologies");
  }
  out.emplace_back(PIPETRAIN_TOPOLOGIES);
  return out;
}

}  // namespace

std::vector<std::string> topology_names() {
  std::vector<std::string> names;
  for (const std::filesystem::path& folder : shipped_folders()) {
    std::error_code code;
    for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
      if (entry.path().extension() == ".json") names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

Topology read_topology(const std::filesystem::path& path) {
  return topology_of(Document::read(path, kTopologySchema));
}

Topology parse_topology(std::string_view text, const std::string& file) {
  return topology_of(Document::parse(text, file, kTopologySchema));
}

std::string topology_text(const Topology& topology, std::string_view source) {
  Json levels = Json::array();
  for (const TopologyLevel& level : topology.levels) {
    levels.push_back({{"name", level.name},
                      {"count", level.count},
                      {"bytes_per_second", level.bytes_per_second},
                      {"latency_seconds", level.latency_seconds}});
    if (level.all_reduce_bytes_per_second > 0)
      levels.back()["all_reduce_bytes_per_second"] = level.all_reduce_bytes_per_second;
  }
  Json device = {{"memory_bytes", topology.memory_bytes},
                 {"flops_per_second", topology.flops_per_second},
                 {"memory_bytes_per_second", topology.memory_bytes_per_second}};
  if (!topology.device_speed.empty()) device["speed"] = topology.device_speed;
  Json body = {{"name", topology.name}};
  if (!source.empty()) body["source"] = source;
  body["levels"] = std::move(levels);
  body["device"] = std::move(device);
  return document_text(kTopologySchema, body);
}

void write_topology(const std::filesystem::path& path, const Topology& topology,
                    std::string_view source) {
  write_file(path, topology_text(topology, source));
}

std::filesystem::path find_topology(const std::string& name) {
  std::error_code code;
  if (std::filesystem::is_regular_file(name, code)) return name;
  const std::filesystem::path given(name);
  // A path is a file; a bare name may be a built-in topology.
  if (!given.has_parent_path()) {
    for (const std::filesystem::path& folder : shipped_folders()) {
      for (const std::string& file : {name, name + ".json"}) {
        if (std::filesystem::is_regular_file(folder / file, code)) return folder / file;
      }
    }
  }
  const std::vector<std::string> known = topology_names();
  PT_FAIL(kUsage, "no topology \"{}\": give a file or one of {}", printable(name),
          known.empty() ? "the named topologies (their folder was not found)"
                        : fmt::format("{}", fmt::join(known, ", ")));
}

Topology named_topology(const std::string& name) { return read_topology(find_topology(name)); }

Topology first_devices(const Topology& topology, int devices) {
  PT_CHECK(devices >= 1 && devices <= topology.devices(), kUsage,
           "{} devices asked for, but the topology \"{}\" has {}", devices,
           printable(topology.name), topology.devices());
  Topology out = topology;
  int inner = 1;  // devices in a group of the level below
  for (TopologyLevel& level : out.levels) {
    const int needed = (devices + inner - 1) / inner;
    inner *= level.count;
    level.count = std::min(level.count, needed);
  }
  if (!out.device_speed.empty()) {
    // The devices that are left keep their places, since outer levels are only cut short where the
    // inner ones are whole.
    out.device_speed.resize(static_cast<std::size_t>(out.devices()));
  }
  return out;
}

std::filesystem::path measured_topology_path() {
  const std::filesystem::path folder = default_cache_directory();
  return folder.empty() ? folder : folder / "topology.json";
}

std::optional<Topology> measured_topology() {
  const std::filesystem::path path = measured_topology_path();
  std::error_code code;
  if (path.empty() || !std::filesystem::exists(path, code)) return std::nullopt;
  try {
    return read_topology(path);
  } catch (const Error& error) {
    log_warning("partition", "ignoring the measured topology: {}", error.message());
    return std::nullopt;
  }
}

}  // namespace pipetrain
