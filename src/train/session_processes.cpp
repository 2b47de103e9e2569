// A session of several processes: which has which devices, what they share, and that they agree.
#include <algorithm>
#include <map>

#include "base/checksum.h"
#include "base/error.h"
#include "partition/topology_file.h"
#include "processes/process_group.h"
#include "profile/machine.h"
#include "train/fingerprint.h"
#include "train/session.h"

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

bool Session::leads() const { return !processes_ || processes_->leads(); }

/// Neighbours in the pipeline are in one process where they can be.
int Session::process_of(int device) const {
  return processes_ ? device * processes_->size() / programs_of_run_->devices() : 0;
}

/// Processes of a machine that may use the same cores divide them among their devices; all stages
/// get as many threads, which decide bits.
void Session::share_cores() {
  const int devices = programs_of_run_->devices();
  const int processes = processes_->size();
  PT_CHECK(processes <= devices, kUsage,
           "{} processes were started for {} stage{}; give --stages {} or more, or start fewer",
           processes, devices, devices == 1 ? "" : "s", processes);
  PT_CHECK(!is_asynchronous(programs_of_run_->rule()), kUsage,
           "--schedule {} updates stages while others compute, which several processes cannot do "
           "yet; use 1f1b, gpipe or a zero-bubble schedule, or one process",
           printable(config_.pipeline.schedule));
  ByteWriter mine;
  mine.put(available_cores());
  mine.put_text(processes_->processes().host() + " " + cores_text());
  struct Cores {
    int count = 0, devices = 0;
  };
  std::map<std::string, Cores> sets;
  const std::vector<std::string> all = processes_->all_gather(mine.take());
  for (int rank = 0; rank < processes; ++rank) {
    ByteReader reader(all[static_cast<std::size_t>(rank)]);
    const int count = reader.get<int>();
    const std::string name(reader.get_text());
    Cores& cores = sets[name];
    cores.count = count;
    if (rank == processes_->rank()) devices_before_ = cores.devices;
    for (int device = 0; device < devices; ++device)
      cores.devices += process_of(device) == rank ? 1 : 0;
  }
  sharing_devices_ = sets[processes_->processes().host() + " " + cores_text()].devices;
  cores_ = 0;
  int threads = 0;
  for (const auto& [name, cores] : sets) {
    cores_ += cores.count;
    const int each = std::max(1, cores.count / cores.devices);
    threads = threads == 0 ? each : std::min(threads, each);
  }
  if (config_.pipeline.threads == 0) threads_ = threads;
}

/// Everybody plans with what process 0 has measured.
void Session::share_profile() {
  ByteWriter mine;
  mine.put_text(topology_ ? topology_text(*topology_) : "");
  put_numbers(mine, profile_.node_seconds);
  put_numbers(mine, profile_.workspace_bytes);
  mine.put(profile_.accumulate_seconds_per_byte);
  mine.put(profile_.update_seconds_per_byte);
  mine.put_text(profile_.device);
  mine.put_text(profile_.backend);
  mine.put(profile_.is_estimate);
  const std::string bytes = processes_->broadcast(mine.take());
  if (leads()) return;
  ByteReader reader(bytes);
  const std::string_view topology = reader.get_text();
  topology_.reset();
  if (!topology.empty()) topology_ = parse_topology(topology, "the topology of process 0");
  profile_.node_seconds = get_numbers<double>(reader);
  profile_.workspace_bytes = get_numbers<std::size_t>(reader);
  profile_.accumulate_seconds_per_byte = reader.get<double>();
  profile_.update_seconds_per_byte = reader.get<double>();
  profile_.device = reader.get_text();
  profile_.backend = reader.get_text();
  profile_.is_estimate = reader.get<bool>();
  PT_CHECK(profile_.node_seconds.size() == graph().graph.nodes.size(), kUsage,
           "{} has read another network than process 0, of {} nodes instead of {}",
           processes_->name_of(processes_->rank()), graph().graph.nodes.size(),
           profile_.node_seconds.size());
}

/// What the processes must agree on, or their messages would not fit together.
void Session::check_agreement() {
  const auto of_weights = [&] {
    std::uint32_t sum = 0;
    for (const Parameter& parameter : graph().parameters) {
      const Tensor value = graph().graph[parameter.value].data.view();
      if (value.data) sum = crc32c({static_cast<const std::byte*>(value.data), value.bytes()}, sum);
    }
    return fmt::format("{:08x}", sum);
  };
  std::string programs;
  for (const auto* list : {&programs_, &evaluation_programs_}) {
    for (const auto& program : *list) {
      for (const auto& device : program->device) {
        for (const Instruction& instruction : device)
          programs += to_text(*program, instruction) + " ";
      }
    }
  }
  for (const int stage : stage_of_forward_) programs += fmt::format("{},", stage);
  const std::vector<std::pair<const char*, std::string>> facts = {
      {"another build of pipetrain", PIPETRAIN_VERSION},
      {"another model", fingerprint(model_.model)},
      {"other weights", of_weights()},
      {"other data", fingerprint(*data_.train)},
      {"another plan", sha256(programs)},
      {"other options",
       fmt::format("{} {} {} {} {}", threads_, total_steps_, config_.optimization.seed,
                   config_.optimization.clip_norm, config_.optimization.learning_rate.peak)}};
  ByteWriter mine;
  for (const auto& [name, fact] : facts) mine.put_text(fact);
  const std::string bytes = processes_->broadcast(mine.take());
  ByteReader reader(bytes);
  for (const auto& [name, fact] : facts) {
    PT_CHECK(reader.get_text() == fact, kUsage,
             "process {} has {} than process 0; all must be started with the same options and see "
             "the same files",
             processes_->rank(), name);
  }
}

void Session::collect_weights() {
  if (!processes_) return;
  const bool averaged = config_.optimization.optimizer.average_decay > 0;
  if (averaged) runtime_->exchange_averages();
  collected_.clear();
  for (const StageContent& content : runtime_->contents())
    collected_.insert(content.weights.begin(), content.weights.end());
  if (averaged) runtime_->exchange_averages();
}

std::vector<StageContent> Session::trained_contents() const {
  if (!processes_) return runtime_->contents();
  std::vector<StageContent> contents(1);
  contents[0].weights.insert(collected_.begin(), collected_.end());
  return contents;
}

}  // namespace pipetrain
