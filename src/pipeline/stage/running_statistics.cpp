#include "pipeline/stage/running_statistics.h"

#include <cstring>
#include <utility>

#include "base/error.h"
#include "pipeline/stage/stage_parameters.h"
#include "pipeline/transport/replica_group.h"

namespace pipetrain {

RunningStatistics::RunningStatistics(const CompiledStage& compiled, StageExecutor& executor,
                                     StageMemory& memory)
    : executor_(executor) {
  for (std::size_t v = 0; v < compiled.variants.size(); ++v) {
    const CompiledVariant& variant = compiled.variants[v];
    const Graph& graph = variant.training->graph;
    std::vector<Statistic*>& statistics = of_variant_.emplace_back();
    for (const int i : variant.slice->statistics) {
      const RunningStatistic& statistic = variant.training->statistics[at(i)];
      const Value& mean = graph[statistic.state_mean];
      Statistic& state = statistics_[mean.name];
      state.channels = static_cast<std::size_t>(mean.type.count());
      state.momentum = statistic.momentum;
      state.of_weights = graph[graph[statistic.batch_mean].producer].part == Part::kPrepare;
      state.moments.resize(memory.leaves());
      for (Moments& moments : state.moments) moments.reset(state.channels, state.of_weights);
      state.mean = static_cast<float*>(value_of(mean).view().data);
      state.variance = static_cast<float*>(value_of(graph[statistic.state_variance]).view().data);
      statistics.push_back(&state);
    }
    for (const ValueId id : variant.running) {
      memory.constants(static_cast<int>(v))[at(id.index)] =
          executor.place_running(graph[id].name, value_of(graph[id]));
    }
  }
}

HostTensor& RunningStatistics::value_of(const Value& value) {
  HostTensor& memory = values_[value.name];
  if (!memory) {
    memory = HostTensor(value.type);
    std::memcpy(memory.view().data, value.data.view().data, value.type.bytes());
  }
  return memory;
}

/// Training changes them with every update; they are read by evaluation.
void RunningStatistics::upload(const CompiledVariant& variant) {
  if (!variant.running.empty() && std::exchange(changed_, false)) executor_.upload_running();
}

void RunningStatistics::collect(int variant, const CompiledVariant& compiled,
                                const StageAddresses& addresses) {
  collected_.clear();
  for (std::size_t k = 0; k < compiled.slice->statistics.size(); ++k) {
    const RunningStatistic& statistic =
        compiled.training->statistics[at(compiled.slice->statistics[k])];
    Statistic& state = *of_variant_[at(variant)][k];
    collected_.push_back(
        {&state.moments[at(addresses.micro_batch->leaf)],
         addresses.floats_of(compiled.layout.location.at(statistic.batch_mean)),
         addresses.floats_of(compiled.layout.location.at(statistic.batch_variance)), state.channels,
         static_cast<double>(statistic.elements_per_channel)});
  }
  executor_.collect_moments(collected_);
}

void RunningStatistics::flush() {
  executor_.synchronize();
  executor_.merge_moments();
  join_leaves();
}

void RunningStatistics::join_leaves() {
  for (auto& [name, state] : statistics_) {
    if (state.moments.size() == 1) continue;
    std::vector<Moments*> leaves;
    for (Moments& moments : state.moments) leaves.push_back(&moments);
    Moments::join(leaves);
  }
}

void RunningStatistics::apply() {
  if (empty()) return;
  flush();
  for (auto& [name, state] : statistics_) {
    state.moments.front().apply(state.momentum, {state.mean, state.channels},
                                {state.variance, state.channels});
  }
  changed_ = true;
}

void RunningStatistics::forget() {
  if (empty()) return;
  flush();
  for (auto& [name, state] : statistics_) {
    for (Moments& moments : state.moments) moments.reset(state.channels, state.of_weights);
  }
}

void RunningStatistics::reduce(ReplicaGroup& group, int replica,
                               std::span<const RunningStatistics* const> all) {
  if (group.in_streams()) group.meet();
  // All replicas have arrived, so none collects; all merge before any applies.
  std::map<std::string, Moments> merged;
  for (const auto& [name, state] : statistics_) {
    std::vector<Moments> parts;
    if (group.is_remote()) {
      const std::vector<double> mine = state.moments.front().numbers();
      for (const std::string& bytes : group.gather(
               replica,
               {reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(double)})) {
        std::vector<double> numbers(bytes.size() / sizeof(double));
        bytes.copy(reinterpret_cast<char*>(numbers.data()), bytes.size());
        parts.push_back(Moments::of(numbers, state.of_weights));
      }
    } else {
      for (const RunningStatistics* other : all)
        parts.push_back(other->statistics_.at(name).moments.front());
    }
    Moments& moments = merged[name];
    if (group.sums_as_tree()) {
      std::vector<Moments*> leaves;
      for (Moments& part : parts) leaves.push_back(&part);
      Moments::join(leaves);
      moments = std::move(parts.front());
      continue;
    }
    moments.reset(state.channels, state.of_weights);
    for (const Moments& part : parts) moments.merge(part);
  }
  group.meet();
  for (auto& [name, state] : statistics_) state.moments.front() = merged[name];
}

bool RunningStatistics::read(const std::string& name, HostTensor& out) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return false;
  out = HostTensor(found->second.type());
  std::memcpy(out.view().data, found->second.view().data, out.type().bytes());
  return true;
}

bool RunningStatistics::write(const std::string& name, const HostTensor& value) {
  const auto found = values_.find(name);
  if (found == values_.end()) return false;
  std::memcpy(found->second.view().data, value.view().data, found->second.type().bytes());
  changed_ = true;
  return true;
}

void RunningStatistics::add_to(StageContent& content) const {
  for (const auto& [name, value] : values_) read(name, content.weights[name]);
}

void RunningStatistics::take_from(const StageContent& content) {
  for (auto& [name, value] : values_) {
    const void* found = content_for(value.type(), content.weights, name);
    PT_CHECK(found != nullptr, kUsage, "the checkpoint has no \"{}\"", printable(name));
    std::memcpy(value.view().data, found, value.type().bytes());
  }
  changed_ = true;
}

}  // namespace pipetrain
