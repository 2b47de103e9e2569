#include "train/process_agreement.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/checksum.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/index.h"
#include "base/setting.h"
#include "partition/topology_file.h"
#include "processes/process_group.h"
#include "profile/machine.h"
#include "train/fingerprint.h"
#include "train/planned_network.h"

namespace pipetrain {
namespace {

void put_numbers(ByteWriter& writer, const auto& numbers) {
  writer.put(static_cast<std::uint64_t>(numbers.size()));
  for (const auto& number : numbers) writer.put(number);
}

template <class T>
std::vector<T> get_numbers(ByteReader& reader) {
  std::vector<T> numbers(reader.get<std::uint64_t>());
  for (T& number : numbers) number = reader.get<T>();
  return numbers;
}

}  // namespace

/// Neighbours in the pipeline are in one process where they can be.
int process_of(int device, int devices, const ProcessGroup* processes) {
  return processes ? device * processes->size() / devices : 0;
}

int different_gpus(const std::vector<int>& gpu_ids, const ProcessGroup* processes) {
  std::set<std::pair<int, int>> gpus;
  const int devices = static_cast<int>(gpu_ids.size());
  for (int d = 0; d < devices; ++d) gpus.emplace(process_of(d, devices, processes), gpu_ids[at(d)]);
  return static_cast<int>(gpus.size());
}

CoreShare share_cores(const PipelineConfig& config, int devices, ProcessGroup* processes) {
  CoreShare share;
  share.cores = available_cores();
  share.threads = config.threads > 0 ? config.threads : std::max(1, share.cores / devices);
  if (!processes) return share;
  const int count = processes->size();
  PT_CHECK(count <= devices, kUsage,
           "{} processes were started for {} stage{}; give {} {} or more, or start fewer", count,
           devices, devices == 1 ? "" : "s", setting("stages"), count);
  ByteWriter mine;
  mine.put(available_cores());
  const std::string here = machine_id() + " " + cores_text();
  mine.put_text(here);
  std::map<std::string, CoreGroup> sets;
  const std::vector<std::string> all = processes->all_gather(mine.take());
  for (int rank = 0; rank < count; ++rank) {
    ByteReader reader(all[static_cast<std::size_t>(rank)]);
    const int cores_there = reader.get<int>();
    const std::string name(reader.get_text());
    CoreGroup& group = sets[name];
    group.cores = cores_there;
    if (rank == processes->rank()) share.devices_before = static_cast<int>(group.devices.size());
    for (int device = 0; device < devices; ++device) {
      if (process_of(device, devices, processes) == rank) group.devices.push_back(device);
    }
  }
  share.sharing_devices = static_cast<int>(sets[here].devices.size());
  share.cores = 0;
  int threads = 0;
  for (const auto& [name, group] : sets) {
    share.cores += group.cores;
    const int each = std::max(1, group.cores / static_cast<int>(group.devices.size()));
    threads = threads == 0 ? each : std::min(threads, each);
    share.groups.push_back(group);
  }
  if (config.threads == 0) share.threads = threads;
  return share;
}

void check_builds(ProcessGroup& processes, std::string_view build) {
  const std::vector<std::string> builds = processes.all_gather(build);
  for (int rank = 1; rank < processes.size(); ++rank) {
    const std::string& other = builds[static_cast<std::size_t>(rank)];
    PT_CHECK(other == builds[0], kUsage,
             "{} is another build of pipetrain ({}) than process 0 ({}); install the same one on "
             "all hosts",
             processes.name_of(rank), printable(other), printable(builds[0]));
  }
}

void share_profile(ProcessGroup& processes, std::size_t nodes, std::optional<Topology>& topology,
                   Profile& profile) {
  ByteWriter mine;
  mine.put_text(topology ? topology_text(*topology) : "");
  put_numbers(mine, profile.node_seconds);
  put_numbers(mine, profile.workspace_bytes);
  mine.put(profile.accumulate_seconds_per_byte);
  mine.put(profile.update_seconds_per_byte);
  mine.put_text(profile.device);
  mine.put_text(profile.backend);
  mine.put(profile.is_estimate);
  const std::string bytes = processes.broadcast(mine.take());
  if (processes.leads()) return processes.fail_together({});
  ByteReader reader(bytes);
  const std::string_view text = reader.get_text();
  topology.reset();
  if (!text.empty()) topology = parse_topology(text, "the topology of process 0");
  profile.node_seconds = get_numbers<double>(reader);
  profile.workspace_bytes = get_numbers<std::size_t>(reader);
  profile.accumulate_seconds_per_byte = reader.get<double>();
  profile.update_seconds_per_byte = reader.get<double>();
  profile.device = reader.get_text();
  profile.backend = reader.get_text();
  profile.is_estimate = reader.get<bool>();
  std::optional<Error> other;
  if (profile.node_seconds.size() != nodes) {
    other.emplace(
        ErrorKind::kUsage,
        fmt::format("{} has another network than process 0, with {} nodes instead of {}",
                    processes.name_of(processes.rank()), nodes, profile.node_seconds.size()));
  }
  processes.fail_together(other);
}

std::vector<int> share_order(ProcessGroup& processes, const std::vector<int>& order) {
  ByteWriter mine;
  for (const int node : order) mine.put(node);
  const std::string bytes = processes.broadcast(mine.take());
  std::vector<int> chosen;
  for (ByteReader reader(bytes); !reader.at_end();) chosen.push_back(reader.get<int>());
  return chosen;
}

void check_agreement(ProcessGroup& processes, const PlannedNetwork& network,
                     std::span<const Program* const> programs) {
  const OptimizationConfig& optimization = network.config().optimization;
  const auto of_weights = [&] {
    std::uint32_t sum = 0;
    for (const Parameter& parameter : network.graph().parameters) {
      const Tensor value = network.graph().graph[parameter.value].data.view();
      if (value.data) sum = crc32c({static_cast<const std::byte*>(value.data), value.bytes()}, sum);
    }
    return fmt::format("{:08x}", sum);
  };
  const auto of_data = [&](const Dataset* data) {
    if (!data) return std::string();
    if (data == network.data().train.get() && !network.data().shard_samples.empty())
      return network.data().shard_fingerprint;  // each has its own
    return network.data().synthetic ? fingerprint(*data) : content_fingerprint(*data);
  };
  std::string text;
  for (const Program* program : programs) {
    for (const auto& device : program->device) {
      for (const Instruction& instruction : device) text += to_text(*program, instruction) + " ";
    }
  }
  for (const int stage : network.stage_of_forward()) text += fmt::format("{},", stage);
  const std::vector<std::pair<const char*, std::string>> facts = {
      {"another model", fingerprint(network.model().model)},
      {"other weights", of_weights()},
      {"other data", of_data(network.data().train.get())},
      {"other validation data", of_data(network.data().validation.get())},
      {"another plan", sha256(text)},
      {"other options",
       fmt::format("{} {} {} {} {} {} {} {}", network.threads(), network.total_steps(),
                   optimization.seed, optimization.clip_norm, optimization.learning_rate.peak,
                   network.config().pipeline.shard_optimizer,
                   network.config().pipeline.accumulators,
                   network.config().pipeline.bfloat16_sums)}};
  ByteWriter mine;
  for (const auto& [name, fact] : facts) mine.put_text(fact);
  const std::string bytes = processes.broadcast(mine.take());
  ByteReader reader(bytes);
  std::optional<Error> other;
  for (const auto& [name, fact] : facts) {
    if (reader.get_text() == fact || other) continue;
    other.emplace(ErrorKind::kUsage,
                  fmt::format("process {} has {} than process 0; all must be started with the same "
                              "options and see the same files",
                              processes.rank(), name));
  }
  processes.fail_together(other);
}

void put_choice(ByteWriter& writer, const PipelineConfig& pipeline) {
  writer.put_text(pipeline.schedule);
  writer.put(pipeline.devices);
  writer.put(pipeline.chunks);
  writer.put(pipeline.micro_batches);
  writer.put(pipeline.micro_batch_size);
  writer.put(static_cast<int>(pipeline.recompute));
  for (const auto* numbers : {&pipeline.replicas, &pipeline.cuts, &pipeline.order}) {
    writer.put(numbers->size());
    for (const int number : *numbers) writer.put(number);
  }
}

void take_choice(ByteReader& reader, PipelineConfig& pipeline) {
  pipeline.schedule = reader.get_text();
  pipeline.devices = reader.get<int>();
  pipeline.chunks = reader.get<int>();
  pipeline.micro_batches = reader.get<std::int64_t>();
  pipeline.micro_batch_size = reader.get<std::int64_t>();
  pipeline.recompute = static_cast<Recompute>(reader.get<int>());
  for (auto* numbers : {&pipeline.replicas, &pipeline.cuts, &pipeline.order}) {
    numbers->resize(reader.get<std::size_t>());
    for (int& number : *numbers) number = reader.get<int>();
  }
}

}  // namespace pipetrain
