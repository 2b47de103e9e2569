// --data-sharding files: the shards of the replicas, opened where the replicas are, and what all
// processes must agree on before the first step.
#pragma once

#include "data/loading/open_data.h"
#include "data/rows/data_spec.h"
#include "train/config.h"
#include "train/network.h"

namespace pipetrain {

class ProcessGroup;

/// The files of each replica. Error (kUsage) for settings under which replicas cannot have data of
/// their own.
std::vector<std::vector<std::string>> files_of_replicas(const RunConfig& config,
                                                        const RunSchedule& schedule,
                                                        std::int64_t micro_batch,
                                                        ProcessGroup* processes);

/// Whether a process has a replica of a stage, and so reads its shard.
bool has_replica(int replica, int replicas, const RunSchedule& schedule,
                 const ProcessGroup* processes);

/// Opens the shards of the replicas here; `first` is what their first file has. An epoch takes as
/// many samples of each shard as the smallest has. Error (kData) where files differ in what they
/// decide, such as the names of classes.
OpenedData open_shards(const RunConfig& config, const DataSpec& spec, const RawData& first,
                       const std::vector<std::vector<std::string>>& files,
                       const RunSchedule& schedule, ProcessGroup* processes);

/// The counted labels of a training mini-batch and their weight, where each process has those of
/// its replicas. All processes call it together.
struct CountedLabels {
  std::int64_t elements = 1;
  double weight = 1;
};
CountedLabels count_together(const Network& network, const Tensor& labels, std::int64_t samples);

}  // namespace pipetrain
