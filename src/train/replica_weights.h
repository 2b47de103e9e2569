// The weights and optimizer state of replicas that do not wait for each other, and how gradients
// update them: a pure function of the initial state and the gradients in their order, so that a
// recorded order reproduces the same bits (train/replay.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "passes/training_graph.h"
#include "pipeline/stage/stage_content.h"
#include "train/config.h"
#include "train/replica_record.h"
#include "train/safetensors.h"

namespace pipetrain {

/// What a replica computes of a part.
struct PartGradient {
  DataPart part;
  std::int64_t samples = 0, counted = 0;  // samples, and labels that count
  double weight = 1;                      // of all labels that count, by weights of classes
  double loss = 0;                        // a mean
  double correct = 0;                     // a count
  NamedTensors gradients;                 // of the loss, by parameter
  /// By running statistic: what the part adds to it, (1 - momentum) times the part's own.
  NamedTensors statistics;
};

/// The weight of each part of an update divided by the mean weight: the mean of gradients multiplied
/// by these is the gradient of the mean loss over all labels. Exactly 1 where all are equal.
std::vector<double> relative_weights(std::span<PartGradient* const> parts);

class ReplicaWeights {
 public:
  /// `graph` and `settings` outlive this. `start`: the state of the only stage of the network.
  ReplicaWeights(const TrainingGraph& graph, const OptimizationConfig& settings,
                 StageContent start);

  const StageContent& content() const { return content_; }
  /// Makes an update with the mean of the gradients of `parts`, by their weights, added up in the
  /// given order; those are overwritten. `number` counts updates from 1. Returns the norm of the
  /// mean gradient if it is limited, otherwise 0.
  double update(std::span<PartGradient* const> parts, double learning_rate, std::int64_t number);

 private:
  void update_statistics(std::span<PartGradient* const> parts);

  const TrainingGraph& graph_;
  const OptimizationConfig& settings_;
  StageContent content_;
  std::vector<SettingsOfParameter> settings_of_;  // as graph_.parameters
};

/// Of all tensors, as hexadecimal digits.
std::string checksum_of(const NamedTensors& tensors);

}  // namespace pipetrain
