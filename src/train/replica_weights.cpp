#include "train/replica_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/checksum.h"
#include "base/index.h"
#include "optim/update.h"

namespace pipetrain {
namespace {

/// Adds up tensors of the same name, in the order of the parts, into that of the first.
std::span<float> sum_of(std::span<PartGradient* const> parts, NamedTensors PartGradient::*of,
                        const std::string& name) {
  const std::span<float> sum = (parts[0]->*of).at(name).span<float>();
  for (PartGradient* part : parts.subspan(1)) {
    const std::span<float> more = (part->*of).at(name).span<float>();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  }
  return sum;
}

/// Scales tensors of each part by its weight.
void weigh(std::span<PartGradient* const> parts, NamedTensors PartGradient::*of,
           const std::vector<double>& weights) {
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (weights[p] == 1) continue;
    for (auto& [name, tensor] : parts[p]->*of) {
      for (float& x : tensor.span<float>()) x = static_cast<float>(weights[p] * x);
    }
  }
}

/// Divides values by their mean; exactly 1 where all are equal.
std::vector<double> relative(std::vector<double> values) {
  const bool alike = std::ranges::all_of(values, [&](double one) { return one == values[0]; });
  double sum = 0;
  for (const double value : values) sum += value;
  const double mean = sum / static_cast<double>(values.size());
  for (double& value : values) value = alike ? 1 : value / mean;
  return values;
}

std::span<float> state_of(NamedTensors& states, const std::string& name) {
  const auto found = states.find(name);
  return found == states.end() ? std::span<float>() : found->second.span<float>();
}

}  // namespace

std::vector<double> relative_weights(std::span<PartGradient* const> parts) {
  std::vector<double> weights;
  for (const PartGradient* part : parts) weights.push_back(part->weight);
  return relative(std::move(weights));
}

ReplicaWeights::ReplicaWeights(const TrainingGraph& graph, const OptimizationConfig& settings,
                               StageContent start)
    : graph_(graph), settings_(settings), content_(std::move(start)) {
  for (const Parameter& parameter : graph.parameters)
    settings_of_.push_back(settings_of(settings.optimizer, parameter.name));
}

double ReplicaWeights::update(std::span<PartGradient* const> parts, double learning_rate,
                              std::int64_t number) {
  weigh(parts, &PartGradient::gradients, relative_weights(parts));
  std::vector<ParameterUpdate> updates;
  double squares = 0;
  for (std::size_t i = 0; i < graph_.parameters.size(); ++i) {
    const Parameter& parameter = graph_.parameters[i];
    if (!parameter.gradient) continue;
    const std::span<float> gradient = sum_of(parts, &PartGradient::gradients, parameter.name);
    if (settings_.clip_norm > 0) squares += sum_of_squares(std::span<const float>(gradient));
    updates.push_back({&settings_of_[i].settings,
                       learning_rate * settings_of_[i].learning_rate_scale,
                       content_.weights.at(parameter.name).span<float>(), gradient,
                       state_of(content_.states[0], parameter.name),
                       state_of(content_.states[1], parameter.name)});
  }
  const double mean = 1.0 / static_cast<double>(parts.size());
  const double norm = mean * std::sqrt(squares);
  update_all(number, mean * clip_factor(norm, settings_.clip_norm), updates);
  for (auto& [name, average] : content_.averages) {
    update_average(settings_.optimizer.average_decay, number, average.span<float>(),
                   std::span<const float>(content_.weights.at(name).span<float>()));
  }
  update_statistics(parts);
  return norm;
}

void ReplicaWeights::update_statistics(std::span<PartGradient* const> parts) {
  std::vector<double> samples;
  for (const PartGradient* part : parts) samples.push_back(static_cast<double>(part->samples));
  weigh(parts, &PartGradient::statistics, relative(std::move(samples)));
  std::set<std::string> updated;  // nodes that share statistics have merged theirs
  for (const RunningStatistic& statistic : graph_.statistics) {
    for (const ValueId id : {statistic.state_mean, statistic.state_variance}) {
      const std::string& name = graph_.graph[id].name;
      if (!updated.insert(name).second) continue;
      const std::span<float> sum = sum_of(parts, &PartGradient::statistics, name);
      const std::span<float> value = content_.weights.at(name).span<float>();
      for (std::size_t c = 0; c < value.size(); ++c) {
        value[c] = static_cast<float>(statistic.momentum * value[c] +
                                      sum[c] / static_cast<double>(parts.size()));
      }
    }
  }
}

std::string checksum_of(const NamedTensors& tensors) {
  std::uint32_t sum = 0;
  for (const auto& [name, tensor] : tensors) {
    sum = crc32c(std::as_bytes(std::span(name)), sum);
    sum = crc32c({static_cast<const std::byte*>(tensor.view().data), tensor.type().bytes()}, sum);
  }
  return fmt::format("{:08x}", sum);
}

}  // namespace pipetrain
