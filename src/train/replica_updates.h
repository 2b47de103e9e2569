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

/// Samples of one gradient: the mini-batch, or with backup workers its share.
std::int64_t samples_of_part(const RunConfig& config);

/// The order in which training takes its samples; its steps are parts where replicas do not wait.
Sampler training_sampler(const Network& network);

/// "async, gradients of weights at most 4 updates old".
std::string words_on(const ReplicaUpdates& updates);

}  // namespace pipetrain
