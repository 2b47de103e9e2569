// Replicas that do not wait for each other: what a run with them asks of its other options, and the
// data and network of each.
#pragma once

#include <cstdint>
#include <string>

#include "data/loading/sampler.h"
#include "train/config.h"

namespace pipetrain {

class Network;
enum class RunMode : std::uint8_t;

/// The configuration of a single replica, which has the whole model, where replicas train that do
/// not wait; otherwise the given one. Resolves the numbers of ReplicaUpdates. Error (kUsage) for
/// what such replicas cannot do.
RunConfig config_of_replica(const RunConfig& config, RunMode mode);

/// Replicas [first, first + count) of all.
struct ReplicaRange {
  int first = 0, count = 0;
  bool contains(int replica) const { return replica >= first && replica < first + count; }
};
/// Those of this process, which do not wait for others: one or more.
ReplicaRange replicas_here(const Network& network);
/// RuntimeOptions::first_log of a replica's runtime; that of the run's own one in process 0 is 0.
inline int log_of_replica(int replica) { return replica + 1; }

/// Samples of one gradient: the mini-batch, or with backup workers its share.
std::int64_t samples_of_part(const RunConfig& config);

/// The order in which training takes its samples; its steps are parts where replicas do not wait.
Sampler training_sampler(const Network& network);

/// "async, gradients of weights at most 4 updates old".
std::string words_on(const ReplicaUpdates& updates);

}  // namespace pipetrain
