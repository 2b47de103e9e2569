// Topology files: built-in, user-written, and the one that `doctor --measure` writes for this
// machine.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "partition/topology.h"

namespace pipetrain {

inline constexpr std::string_view kTopologySchema = "pipetrain.topology/1";

/// Reads a topology:
///
///   {"schema": "pipetrain.topology/1", "name": "two servers",
///    "source": "where the numbers are from",
///    "levels": [{"name": "NVLink", "count": 8,
///                "gigabytes_per_second": 450, "latency_microseconds": 2},
///               {"name": "network", "count": 2,
///                "gigabytes_per_second": 50, "latency_microseconds": 5}],
///    "device": {"memory_gibibytes": 80, "teraflops_per_second": 600,
///               "memory_gigabytes_per_second": 3350, "speed": [1, 1, …]}}
///
/// Levels are listed innermost first. A level whose links sum gradients faster or slower than they
/// send says so in all_reduce_gigabytes_per_second. Base units are accepted too: bytes_per_second,
/// all_reduce_bytes_per_second, latency_seconds, memory_bytes, flops_per_second,
/// memory_bytes_per_second. "device" and all in it may be missing. An Error (kUsage) names file and
/// field; an unknown field is one.
Topology read_topology(const std::filesystem::path& path);
/// The same from text; `file` is what errors call it.
Topology parse_topology(std::string_view text, const std::string& file);

/// The text of such a file, in plain units, so that reading gives the same numbers.
std::string topology_text(const Topology& topology, std::string_view source = {});
void write_topology(const std::filesystem::path& path, const Topology& topology,
                    std::string_view source = {});

/// The file that --topology means: the path itself, else a file of this name (".json" may be left
/// out) among the topologies that come with the program. An Error (kUsage) lists those.
std::filesystem::path find_topology(const std::string& name);
/// The files of those that come with the program, without their folder.
std::vector<std::string> topology_names();
/// read_topology(find_topology(name)).
Topology named_topology(const std::string& name);

/// The first `devices` devices: groups of a level that are needed in part are not whole any more
/// where one group is enough; else the last group has devices that a plan must leave alone. An
/// Error (kUsage) when there are not as many.
Topology first_devices(const Topology& topology, int devices);

/// Where `doctor --measure` puts what it finds: beside the cache of kernel times. Empty when there
/// is no such folder.
std::filesystem::path measured_topology_path();
/// What it found, if it ever ran here. A file that cannot be read counts as none, with a warning.
std::optional<Topology> measured_topology();

}  // namespace pipetrain
