#include "train/replay.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <span>

#include "base/error.h"
#include "base/index.h"
#include "train/part_worker.h"
#include "train/replica_weights.h"
#include "train/resume.h"
#include "train/verify.h"

namespace pipetrain {
namespace {

NamedTensors copy_of(const NamedTensors& tensors) {
  NamedTensors out;
  for (const auto& [name, tensor] : tensors) {
    HostTensor copy(tensor.type());
    std::memcpy(copy.view().data, tensor.view().data, tensor.type().bytes());
    out.emplace(name, std::move(copy));
  }
  return out;
}

/// Checks what every record of a run fulfils, and returns the oldest version that each update and
/// those after it read.
std::vector<std::int64_t> check_record(const ReplicaRecord& record, std::int64_t updates,
                                       std::int64_t gradients) {
  PT_CHECK(std::ssize(record.parts) == updates * gradients && std::ssize(record.rates) == updates,
           kData, "the record has {} gradients and {} learning rates for {} updates of {}",
           record.parts.size(), record.rates.size(), updates, gradients);
  std::set<std::int64_t> used;
  std::vector<std::int64_t> oldest(at(updates));
  for (std::int64_t u = updates - 1; u >= 0; --u) {
    oldest[at(u)] = u + 1 < updates ? oldest[at(u + 1)] : u;
    for (std::int64_t i = u * gradients; i < (u + 1) * gradients; ++i) {
      const DataPart& part = record.parts[at(i)];
      PT_CHECK(part.version >= 0 && part.version <= u && part.number >= 0 &&
                   part.number < record.next_part && used.insert(part.number).second,
               kData, "the record of update {} is damaged: part {} of version {}", u + 1,
               part.number, part.version);
      oldest[at(u)] = std::min(oldest[at(u)], part.version);
    }
  }
  return oldest;
}

void compare_all(const NamedTensors& made, const NamedTensors& expected, Replay& result) {
  for (const auto& [name, tensor] : expected) {
    const auto found = made.find(name);
    ++result.tensors;
    compare(name, found == made.end() ? HostTensor() : found->second, tensor, result.different);
  }
}

}  // namespace

Replay replay(PipelineRun& run, const Checkpoint& checkpoint) {
  const Network& network = run.network();
  PT_CHECK(checkpoint.replicas && !network.replica_updates().waits(), kUsage,
           "the checkpoint has no record to replay: it is of a run whose replicas wait for each "
           "other, which every run with the same options computes again");
  const ReplicaRecord& record = *checkpoint.replicas;
  PT_CHECK(record.changed_at == 0, kUsage,
           "the run was resumed at step {} with other options, so it cannot be computed again from "
           "its start",
           record.changed_at);
  const std::int64_t gradients = network.replica_updates().gradients();
  const std::vector<std::int64_t> oldest = check_record(record, checkpoint.step, gradients);
  ReplicaWeights weights(network.graph(), network.config().optimization, run.runtime().content(0));
  PT_CHECK(checksum_of(weights.content().weights) == record.start, kData,
           "{} has other weights than the run began with", printable(network.config().model.path));
  PartWorker worker(run);
  std::map<std::int64_t, NamedTensors> versions;
  Replay result;
  for (std::int64_t u = 0; u < checkpoint.step; ++u) {
    versions.emplace(u, copy_of(weights.content().weights));
    versions.erase(versions.begin(), versions.lower_bound(oldest[at(u)]));
    result.most_versions = std::max(result.most_versions, std::ssize(versions));
    std::vector<PartGradient> parts;
    for (std::int64_t i = u * gradients; i < (u + 1) * gradients; ++i) {
      const DataPart& part = record.parts[at(i)];
      worker.set_weights(versions.at(part.version));
      parts.push_back(worker.compute(part));
    }
    std::vector<PartGradient*> all;
    for (PartGradient& part : parts) all.push_back(&part);
    weights.update(all, record.rates[at(u)], u + 1);
  }
  result.updates = checkpoint.step;
  const Checkpoint made =
      make_checkpoint(run, {}, checkpoint.step, checkpoint.step, 0, {weights.content()});
  compare_all(made.weights, checkpoint.weights, result);
  compare_all(made.optimizer, checkpoint.optimizer, result);
  return result;
}

}  // namespace pipetrain
