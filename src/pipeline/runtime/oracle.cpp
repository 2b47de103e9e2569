#include "pipeline/runtime/oracle.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/index.h"
#include "graph/op.h"
#include "optim/update.h"
#include "pipeline/program/annotate.h"
#include "pipeline/transport/narrow_floats.h"

namespace pipetrain {
namespace {

HostTensor copy_of(const HostTensor& tensor) {
  HostTensor out(tensor.type());
  std::memcpy(out.view().data, tensor.view().data, tensor.type().bytes());
  return out;
}

void add_to(HostTensor& sum, const HostTensor& tensor) {
  for (std::int64_t e = 0; e < sum.type().count(); ++e)
    sum.view().as<float>()[e] += tensor.view().as<float>()[e];
}

/// Whether a contribution is computed for several micro-batches at once.
bool is_batched(const TrainingGraph& training, int accumulation) {
  const ValueId id = training.accumulations[at(accumulation)].contribution;
  const NodeId producer = training.graph[id].producer;
  return producer && training.graph[producer].part == Part::kBatchGradient;
}

}  // namespace

Oracle::Oracle(std::vector<RuntimeVariant> variants, int stages, const RuntimeOptions& options)
    : options_(options), variants_(std::move(variants)), stages_(at(stages)) {
  loss_scale_.value = options_.loss_scaling.initial;
  for (const RuntimeVariant& variant : variants_) {
    slices_.push_back(slice_stages(*variant.training, variant.stage_of_forward, stages));
    for (const Value& value : variant.training->graph.values) {
      if (value.role == Role::kState && value.data)
        running_.emplace(value.name, copy_of(value.data));
    }
  }
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    stages_[s].weights[0] = {};  // a stage may have none
    for (const int i : slices_[0].stages[s].parameters) {
      const Parameter& parameter = variants_[0].training->parameters[at(i)];
      stages_[s].weights[0][parameter.name] =
          copy_of(variants_[0].training->graph[parameter.value].data);
    }
  }
}

void Oracle::run(const Program& program, MicroBatchSource& source) {
  omp_set_num_threads(options_.threads);  // kernels may give other bits with another number
  micro_batches_.assign(at(program.micro_batches), {});
  stages_left_.assign(at(program.micro_batches), program.stages);
  done_.clear();
  group_version_ = versions_of_groups(program);
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    stages_[s].replicas.resize(program.placement[s].size());
    for (ReplicaState& replica : stages_[s].replicas) replica.accumulating = false;
  }
  std::vector<std::size_t> next(program.device.size(), 0);
  const auto head = [&](std::size_t device) -> const Instruction* {
    const auto& list = program.device[device];
    return next[device] < list.size() ? &list[next[device]] : nullptr;
  };
  bool progress = true;
  while (progress) {
    progress = false;
    for (std::size_t d = 0; d < program.device.size(); ++d) {
      while (const Instruction* instruction = head(d)) {
        if (!is_ready(program, *instruction)) break;
        const bool together =
            instruction->kind == Kind::kGradientSync || instruction->kind == Kind::kReduce;
        if (!together) {
          execute(program, *instruction, static_cast<int>(d), source);
          ++next[d];
          progress = true;
          continue;
        }
        std::vector<std::size_t> members(program.device.size());
        std::iota(members.begin(), members.end(), std::size_t{0});
        if (instruction->kind == Kind::kReduce) {
          const auto& devices = program.placement[at(instruction->stage)];
          members.assign(devices.begin(), devices.end());
        }
        const bool all = std::all_of(members.begin(), members.end(), [&](std::size_t member) {
          return head(member) && *head(member) == *instruction;
        });
        if (!all) break;
        if (instruction->kind == Kind::kReduce) {
          reduce(instruction->stage);
        } else {
          synchronise();
        }
        for (const std::size_t member : members) ++next[member];
        progress = true;
      }
    }
  }
  for (std::size_t d = 0; d < next.size(); ++d) {
    PT_CHECK(next[d] == program.device[d].size(), kInternal, "the program stops at {} on device {}",
             to_text(program, program.device[d][next[d]]), d);
  }
  if (program.gradient_sync)
    loss_scale_ = after_step(loss_scale_, options_.loss_scaling, /*finite=*/!skips_);
  skips_ = false;
  // The next round starts at version 0 again.
  for (StageState& stage : stages_) {
    std::map<std::string, HostTensor> latest = stage.weights.rbegin()->second;
    stage.weights.clear();
    stage.weights[0] = std::move(latest);
  }
}

bool Oracle::is_ready(const Program& program, const Instruction& instruction) const {
  const bool forward = instruction.kind == Kind::kForward;
  const bool backward =
      instruction.kind == Kind::kBackward || instruction.kind == Kind::kBackwardInput;
  if (!forward && !backward) return true;
  return std::all_of(program.edges.begin(), program.edges.end(), [&](const Edge& edge) {
    if (edge.to_stage != instruction.stage || edge.gradient != backward) return true;
    const auto found = done_.find({edge.from_stage, instruction.micro_batch});
    return found != done_.end() && found->second >= (backward ? 2 : 1);
  });
}

void Oracle::execute(const Program& program, const Instruction& instruction, int device,
                     MicroBatchSource& source) {
  if (instruction.stage < 0) return;
  const int s = instruction.stage;
  StageState& stage = stages_[at(s)];
  ReplicaState& replica = stage.replicas[at(program.replica_on(s, device))];
  switch (instruction.kind) {
    case Kind::kForward:
      run_forward(program, instruction, replica, source);
      if (program.rule != UpdateRule::kNone) return;
      break;
    case Kind::kBackward:
    case Kind::kBackwardInput:
    case Kind::kBackwardWeight:
      run_backward(instruction, replica);
      if (instruction.kind == Kind::kBackwardInput) return;
      break;
    case Kind::kUpdate:
      // The first replica to arrive updates for all.
      if (stage.weights.rbegin()->first < instruction.version)
        run_update(program, instruction, source);
      replica.accumulating = false;
      return;
    default:
      return;
  }
  if (--stages_left_[at(instruction.micro_batch)] == 0) source.release(instruction.micro_batch);
}

void Oracle::run_forward(const Program& program, const Instruction& instruction,
                         ReplicaState& replica, MicroBatchSource& source) {
  const int s = instruction.stage;
  MicroBatchState& micro_batch = micro_batches_[at(instruction.micro_batch)];
  if (!micro_batch.data) micro_batch.data = &source.acquire(instruction.micro_batch);
  const auto variant = at(micro_batch.data->variant);
  Values results;
  run_nodes(s, instruction.version, micro_batch, slices_[variant].stages[at(s)].forward, results);
  micro_batch.values.merge(results);
  if (program.rule != UpdateRule::kNone)
    collect_statistics(
        s, instruction.version, micro_batch,
        options_.accumulators > 0
            ? stages_[at(s)].leaf_moments[instruction.micro_batch % options_.accumulators]
            : replica.moments);
  if (applies_statistics_at_once(program, s)) apply_statistics(replica);
  const Loss& loss = variants_[variant].training->loss;
  if (const auto found = micro_batch.values.find(loss.loss_sum);
      found != micro_batch.values.end()) {
    micro_batch.data->loss_sum = *found->second.view().as<float>();
    if (loss.correct)
      micro_batch.data->correct = *micro_batch.values.at(loss.correct).view().as<float>();
  }
  done_[{s, instruction.micro_batch}] = 1;
}

void Oracle::run_backward(const Instruction& instruction, ReplicaState& replica) {
  const int s = instruction.stage;
  MicroBatchState& micro_batch = micro_batches_[at(instruction.micro_batch)];
  const auto variant = at(micro_batch.data->variant);
  const StageSlice& slice = slices_[variant].stages[at(s)];
  const auto& nodes = instruction.kind == Kind::kBackward        ? slice.backward
                      : instruction.kind == Kind::kBackwardInput ? slice.input_gradient
                                                                 : slice.weight_gradient;
  Values results;
  run_nodes(s, instruction.version, micro_batch, nodes, results);
  micro_batch.values.merge(results);
  if (instruction.kind != Kind::kBackwardWeight) done_[{s, instruction.micro_batch}] = 2;
  if (instruction.kind == Kind::kBackwardInput) return;
  const auto& all = variants_[variant].training->accumulations;
  Values local;
  for (const int i : slice.accumulations) {
    if (is_batched(*variants_[variant].training, i)) continue;
    const HostTensor contribution =
        content(s, instruction.version, &micro_batch, micro_batch.data->variant,
                all[at(i)].contribution, local);
    if (options_.accumulators > 0) {
      auto& leaf = stages_[at(s)].leaves[instruction.micro_batch % options_.accumulators];
      const auto [sum, is_first] = leaf.try_emplace(i);
      if (is_first) {
        sum->second = copy_of(contribution);
      } else {
        add_to(sum->second, contribution);
      }
      continue;
    }
    HostTensor& sum = replica.accumulators[i];
    if (!replica.accumulating) {
      sum = copy_of(contribution);
      continue;
    }
    add_to(sum, contribution);
  }
  gather(instruction, replica);
  replica.accumulating = true;
}

/// Keeps the values of a micro-batch for batched weight gradients; computes them when the batch is
/// full.
void Oracle::gather(const Instruction& instruction, ReplicaState& replica) {
  const int s = instruction.stage;
  const MicroBatchState& micro_batch = micro_batches_[at(instruction.micro_batch)];
  const auto variant = at(micro_batch.data->variant);
  const TrainingGraph& training = *variants_[variant].training;
  const std::vector<int>& batched_values = slices_[variant].stages[at(s)].batched_values;
  if (batched_values.empty()) return;
  const auto micro_batches = at(training.batched_micro_batches);
  Values local;
  for (const int i : batched_values) {
    const BatchedValue& batched = training.batched_values[at(i)];
    HostTensor& all = replica.batched[i];
    if (!all) {
      all = HostTensor(training.graph[batched.batched].type);
      std::memset(all.view().data, 0, all.type().bytes());
    }
    const HostTensor one = content(s, instruction.version, &micro_batch, micro_batch.data->variant,
                                   batched.value, local);
    std::memcpy(static_cast<std::byte*>(all.view().data) +
                    at(replica.batched_micro_batches) * (all.type().bytes() / micro_batches),
                one.view().data, one.type().bytes());
  }
  if (at(++replica.batched_micro_batches) == micro_batches) add_batched(s, replica);
}

/// Computes the batched weight gradients; missing micro-batches count as zeros.
void Oracle::add_batched(int s, ReplicaState& replica) {
  const TrainingGraph& training = *variants_[0].training;
  const StageSlice& slice = slices_[0].stages[at(s)];
  Values values;
  for (const auto& [i, tensor] : replica.batched)
    values[training.batched_values[at(i)].batched] = tensor;
  MicroBatchState none;
  run_nodes(s, 0, none, slice.batch_gradient, values);
  for (const int i : slice.accumulations) {
    if (!is_batched(training, i)) continue;
    const HostTensor& part = values.at(training.accumulations[at(i)].contribution);
    if (replica.has_batch_sums) {
      add_to(replica.accumulators[i], part);
    } else {
      replica.accumulators[i] = copy_of(part);
    }
  }
  replica.has_batch_sums = true;
  replica.batched.clear();
  replica.batched_micro_batches = 0;
}

/// Below a node of the tree of sums lie the leaves leaf, leaf + stride, leaf + 2 stride, …: every
/// other one on either side. Their sum goes to the first.
void Oracle::join_leaves(StageState& stage, int leaf, int stride) {
  if (stride == options_.accumulators) return;
  const int other = leaf + stride;
  join_leaves(stage, leaf, 2 * stride);
  join_leaves(stage, other, 2 * stride);
  if (stage.leaves.contains(other)) {
    for (auto& [i, tensor] : stage.leaves[other]) add_to(stage.leaves[leaf].at(i), tensor);
  }
  for (auto& [name, moments] : stage.leaf_moments[other]) {
    const auto [sum, added] = stage.leaf_moments[leaf].try_emplace(name, moments);
    if (!added) sum->second.merge(moments);
  }
}

/// At the end of a step, on every replica.
void Oracle::complete_gradients(int s) {
  StageState& stage = stages_[at(s)];
  if (!stage.leaves.empty()) {
    join_leaves(stage, 0, 1);
    ReplicaState& first = stage.replicas.front();
    first.accumulators = std::move(stage.leaves[0]);
    first.moments = std::move(stage.leaf_moments[0]);
    stage.leaves.clear();
    stage.leaf_moments.clear();
  }
  for (ReplicaState& replica : stages_[at(s)].replicas) {
    if (replica.batched_micro_batches > 0) add_batched(s, replica);
    replica.has_batch_sums = false;
  }
}

/// Sums the replicas' accumulators, in their order, into those of the first.
void Oracle::reduce(int s) {
  complete_gradients(s);
  StageState& stage = stages_[at(s)];
  ReplicaState& first = stage.replicas.front();
  bool started = first.accumulating;
  const bool narrow = options_.bfloat16_sums && stage.replicas.size() > 1;
  const auto round = [&](ReplicaState& replica) {
    for (auto& [i, tensor] : replica.accumulators)
      round_to_bfloat16({tensor.view().as<float>(), at(tensor.type().count())});
  };
  for (ReplicaState& replica : stage.replicas) {
    if (narrow && replica.accumulating) round(replica);
  }
  for (std::size_t r = 1; r < stage.replicas.size(); ++r) {
    ReplicaState& other = stage.replicas[r];
    if (other.accumulating) {
      for (auto& [i, tensor] : other.accumulators) {
        if (started) {
          add_to(first.accumulators[i], tensor);
        } else {
          first.accumulators[i] = copy_of(tensor);
        }
      }
      started = true;
    }
    for (auto& [name, moments] : other.moments) {
      const auto [sum, added] = first.moments.try_emplace(name, moments);
      if (!added) sum->second.merge(moments);
    }
    other.moments.clear();
  }
  if (narrow) round(first);
}

void Oracle::run_update(const Program& program, const Instruction& instruction,
                        MicroBatchSource& source) {
  const int s = instruction.stage;
  StageState& stage = stages_[at(s)];
  const int micro_batch = std::max(instruction.micro_batch, 0);
  const int group = micro_batch / program.group_size(s);
  const int from = stage.weights.rbegin()->first;
  complete_gradients(s);
  if (!program.gradient_sync) finish(s, group_version_[at(s)][at(group)]);
  if (skips_) {
    stage.replicas.front().moments.clear();
    return;
  }
  ++stage.updates;
  const std::int64_t number = is_asynchronous(program.rule)
                                  ? stage.updates
                                  : source.updates_before() + 1 - loss_scale_.skipped;
  auto next = stage.weights.at(from);
  const TrainingGraph& training = *variants_[0].training;
  for (auto& [i, gradient] : stage.gradients) {
    const std::string& name = training.parameters[at(i)].name;
    HostTensor weight = copy_of(next.at(name));
    auto& [state0, state1] = stage.optimizer[name];
    const int slots = state_slots(options_.optimizer);
    if (slots > 0 && !state0) state0 = HostTensor(weight.type());
    if (slots > 1 && !state1) state1 = HostTensor(weight.type());
    const SettingsOfParameter own = settings_of(options_.optimizer, name);
    update(own.settings, source.learning_rate(micro_batch) * own.learning_rate_scale, number,
           (program.gradient_sync ? gradient_scale_ : 1.0) / loss_scale_.value,
           weight.span<float>(), std::span<const float>(gradient.span<float>()),
           state0 ? state0.span<float>() : std::span<float>(),
           state1 ? state1.span<float>() : std::span<float>());
    next[name] = weight;
  }
  stage.weights[from + 1] = std::move(next);
  if (!applies_statistics_at_once(program, s)) apply_statistics(stage.replicas.front());
}

void Oracle::finish(int s, int version) {
  StageState& stage = stages_[at(s)];
  const StageSlice& slice = slices_[0].stages[at(s)];
  const TrainingGraph& training = *variants_[0].training;
  Values values;
  for (const auto* list : {&slice.accumulations, &slice.remote_accumulations}) {
    for (const int i : *list) {
      for (StageState& holder : stages_) {
        const auto& accumulators = holder.replicas.front().accumulators;
        const auto found = accumulators.find(i);
        if (found != accumulators.end())
          values[training.accumulations[at(i)].accumulator] = found->second;
      }
    }
  }
  MicroBatchState none;
  run_nodes(s, version, none, slice.finish, values);
  stage.gradients.clear();
  for (const int i : slice.parameters) {
    const ValueId gradient = training.parameters[at(i)].gradient;
    if (!gradient) continue;
    Values local = values;
    stage.gradients[i] = content(s, version, nullptr, 0, gradient, local);
  }
}

void Oracle::synchronise() {
  const TrainingGraph& training = *variants_[0].training;
  std::vector<double> squares(training.parameters.size(), 0);
  for (std::size_t s = 0; s < stages_.size(); ++s) complete_gradients(static_cast<int>(s));
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    finish(static_cast<int>(s), stages_[s].weights.rbegin()->first);
    for (const auto& [i, gradient] : stages_[s].gradients) {
      if (slices_[0].owner[at(i)] == static_cast<int>(s)) {
        squares[at(i)] = sum_of_squares(std::span<const float>(gradient.span<float>()));
      }
    }
  }
  const double norm = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
  skips_ = options_.loss_scaling.skips && !std::isfinite(norm);
  gradient_scale_ = clip_factor(norm / loss_scale_.value, options_.clip_norm);
}

void Oracle::collect_statistics(int s, int version, MicroBatchState& micro_batch,
                                std::map<std::string, Moments>& all) {
  const auto variant = at(micro_batch.data->variant);
  const TrainingGraph& training = *variants_[variant].training;
  const Graph& graph = training.graph;
  const std::vector<StageSlice>& stages = slices_[variant].stages;
  Values local;
  for (const int i : stages[at(s)].statistics) {
    // There is one copy for all stages that prepare the same weights: the first stage merges it.
    const bool first =
        std::none_of(stages.begin(), stages.begin() + s, [&](const StageSlice& each) {
          return std::find(each.statistics.begin(), each.statistics.end(), i) !=
                 each.statistics.end();
        });
    if (!first) continue;
    const RunningStatistic& statistic = training.statistics[at(i)];
    const auto read = [&](ValueId id) {
      return content(s, version, &micro_batch, micro_batch.data->variant, id, local);
    };
    HostTensor mean = read(statistic.batch_mean), variance = read(statistic.batch_variance);
    const auto [moments, added] = all.try_emplace(graph[statistic.state_mean].name);
    if (added) {
      moments->second.reset(at(mean.type().count()),
                            graph[graph[statistic.batch_mean].producer].part == Part::kPrepare);
    }
    moments->second.merge(mean.span<float>(), variance.span<float>(),
                          static_cast<double>(statistic.elements_per_channel));
  }
}

void Oracle::apply_statistics(ReplicaState& replica) {
  const TrainingGraph& training = *variants_[0].training;
  auto& all = replica.moments;
  for (const RunningStatistic& statistic : training.statistics) {
    const auto moments = all.find(training.graph[statistic.state_mean].name);
    if (moments == all.end()) continue;
    moments->second.apply(statistic.momentum,
                          running_.at(training.graph[statistic.state_mean].name).span<float>(),
                          running_.at(training.graph[statistic.state_variance].name).span<float>());
  }
}

HostTensor Oracle::read(const std::string& name) const {
  for (const StageState& stage : stages_) {
    const auto& latest = stage.weights.empty() ? std::map<std::string, HostTensor>()
                                               : stage.weights.rbegin()->second;
    if (const auto found = latest.find(name); found != latest.end()) return copy_of(found->second);
  }
  const auto found = running_.find(name);
  return found == running_.end() ? HostTensor() : copy_of(found->second);
}

HostTensor Oracle::read_gradient(const std::string& name) const {
  for (const StageState& stage : stages_) {
    for (const auto& [i, gradient] : stage.gradients) {
      if (variants_[0].training->parameters[at(i)].name == name) return copy_of(gradient);
    }
  }
  return {};
}

}  // namespace pipetrain
