#include "train/process_topology.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/cache_directory.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/index.h"
#include "base/log.h"
#include "partition/topology_file.h"
#include "processes/link_measure.h"
#include "processes/process_group.h"
#include "profile/machine.h"
#include "train/config.h"
#include "train/process_agreement.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// Networks change.
constexpr std::chrono::hours kOldest{24};
/// A device in its own process hands over addresses.
constexpr double kNoCopy = 1e15;

/// The place of the measurements of these hosts, in this order, over this network; empty: none.
fs::path cache_of(ProcessGroup& group, const std::vector<std::vector<int>>& hosts, int devices) {
  const fs::path folder = default_cache_directory();
  if (folder.empty()) return folder;
  std::string key = fmt::format("{} {} devices{}", group.processes().name(), devices,
                                group.hosts_read().value_or(false) ? ", memory is read" : "");
  for (const std::vector<int>& host : hosts)
    key += fmt::format("\n{} {}", group.name_of(host.front()), fmt::join(host, ","));
  key += "\n" + group.processes().host();
  for (const char* variable : {"OMPI_MCA_btl", "OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES",
                               "UCX_TLS", "OMPI_MCA_btl_vader_single_copy_mechanism"}) {
    const char* value = std::getenv(variable);
    key += fmt::format("\n{}={}", variable, value ? value : "");
  }
  return folder / ("links-" + sha256(key).substr(0, 16) + ".json");
}

std::optional<Topology> from_cache(const fs::path& path) {
  std::error_code code;
  const auto written = fs::last_write_time(path, code);
  if (code || fs::file_time_type::clock::now() - written > kOldest) return {};
  try {
    return read_topology(path);
  } catch (const Error& error) {
    log_warning("network", "measuring the links again: {}", error.message());
    return {};
  }
}

/// Whether group g of `groups` holds the g-th `size` of the numbers below `count`.
template <class GroupOf>
bool in_order(int count, int size, const GroupOf& group_of) {
  for (int i = 0; i < count; ++i) {
    if (group_of(i) != i / size) return false;
  }
  return true;
}

TopologyLevel level_of(const char* name, int count, const ProcessLink& link) {
  // A pipeline that is full sends both ways, and so do replicas that sum with messages.
  return {name, count, std::min(link.bytes_per_second, link.both_bytes_per_second / 2),
          link.latency_seconds, link.read_bytes_per_second};
}

Topology measured(ProcessGroup& group, const std::vector<std::vector<int>>& hosts, int devices,
                  const std::optional<Topology>& threads) {
  const ProcessLinks links = measure_process_links(group, machine_id());
  Topology topology;
  topology.name = fmt::format("{} processes on {} host{}", group.size(), hosts.size(),
                              hosts.size() == 1 ? "" : "s");
  const int each = (devices + group.size() - 1) / group.size();
  std::vector<int> host_of(at(group.size()));
  std::size_t most = 0;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    for (const int rank : hosts[h]) host_of[at(rank)] = static_cast<int>(h);
    most = std::max(most, hosts[h].size());
  }
  const bool even =
      in_order(devices, each, [&](int device) { return process_of(device, devices, &group); }) &&
      in_order(group.size(), static_cast<int>(most), [&](int rank) { return host_of[at(rank)]; });
  if (!even) {
    topology.levels = {
        level_of("processes", devices, links.between_hosts ? links.between : links.on_host)};
    return topology;
  }
  TopologyLevel inside{"devices of a process", each, kNoCopy, 0};
  if (threads && !threads->levels.empty()) {
    inside.bytes_per_second = threads->levels.front().bytes_per_second;
    inside.latency_seconds = threads->levels.front().latency_seconds;
  }
  if (each > 1) topology.levels.push_back(inside);
  if (links.on_hosts)
    topology.levels.push_back(
        level_of("processes of a host", static_cast<int>(most), links.on_host));
  if (links.between_hosts)
    topology.levels.push_back(level_of("hosts", static_cast<int>(hosts.size()), links.between));
  return topology;
}

Topology known_or_measured(ProcessGroup& group, int devices, const std::optional<Topology>& threads,
                           bool use_cache) {
  const std::vector<std::vector<int>> hosts = processes_of_hosts(group);
  const fs::path path = cache_of(group, hosts, devices);
  std::optional<Topology> known;
  if (group.leads() && use_cache && !path.empty()) known = from_cache(path);
  const std::string text = group.broadcast(known ? topology_text(*known) : "");
  if (!text.empty()) return parse_topology(text, "the topology of process 0");
  const Topology found = measured(group, hosts, devices, threads);
  if (group.leads() && use_cache && !path.empty()) {
    try {
      write_topology(path, found, "measured between the processes of a run");
    } catch (const Error& error) {
      log_debug("network", "the links are not cached: {}", error.message());
    }
  }
  return found;
}

}  // namespace

Topology topology_of_processes(ProcessGroup& group, int devices,
                               const std::optional<Topology>& threads,
                               const PipelineConfig& config) {
  Topology topology = known_or_measured(group, devices, threads, config.profile_cache);
  // Replicas on GPUs do not read each other's memory.
  for (TopologyLevel& level : topology.levels) {
    if (!config.gpu_ids.empty()) level.all_reduce_bytes_per_second = 0;
  }
  return topology;
}

void forget_links(ProcessGroup& group, int devices) {
  std::error_code ignored;
  fs::remove(cache_of(group, processes_of_hosts(group), devices), ignored);
}

}  // namespace pipetrain
