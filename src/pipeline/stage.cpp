#include "pipeline/stage.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "graph/op.h"
#include "optim/update.h"
#include "pipeline/stage_layout.h"

namespace pipetrain {

/// One kernel with its operands: addresses are filled in at every run, nothing is allocated.
struct StageStep {
  std::unique_ptr<Kernel> kernel;
  std::vector<Tensor> in, out;
  std::vector<Location> in_at, out_at;
  std::vector<int> in_direct,
      out_direct;  // index of the accumulation that a W contribution goes to, or -1
  struct Addition {
    int accumulation;
    Location from;
    std::size_t count;
    bool direct;
  };
  std::vector<Addition> additions;  // into accumulators, after the kernel has run
  std::string name;
};

struct Stage::Compiled {
  const TrainingGraph* training = nullptr;
  const Slices* slices = nullptr;
  const StageSlice* slice = nullptr;
  StageLayout layout;
  std::vector<StageStep> prepare, forward, backward, input_gradient, weight_gradient, finish;
  std::vector<StageStep::Addition> late_additions;  // contributions that no W node computes
  std::vector<std::byte*> constants;  // by value: address of constants and running statistics
  std::vector<std::byte*> prepared;   // by version copy
  std::vector<std::uint64_t> prepared_generation;  // weights that each copy was prepared from
  std::vector<ParameterState*> parameter_states;   // as slice->parameters
  std::vector<StatisticState*> statistic_states;   // as slice->statistics
  std::vector<Location> gradient_at;               // as slice->parameters
  std::size_t table_size = 0;
  bool has_loss = false;
};

struct Stage::ParameterState {
  std::string name;
  TensorType type;
  std::size_t offset = 0;  // in the block of a weight version
  float* state0 = nullptr;
  float* state1 = nullptr;
  bool trained = false;
};

/// Running mean and variance of one BatchNorm, and the moments merged since the last update (Chan
/// et al. 1983).
struct Stage::StatisticState {
  std::string mean_name, variance_name;
  float* mean = nullptr;
  float* variance = nullptr;
  std::size_t channels = 0;
  double momentum = 0.9;
  double count = 0;
  std::vector<double> merged_mean, merged_squares;
};

namespace {

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// Hands out pieces of a block, then of the real memory.
class Bump {
 public:
  std::size_t take(std::size_t bytes) {
    const std::size_t offset = used_;
    used_ += aligned(bytes);
    return offset;
  }
  std::size_t used() const { return used_; }

 private:
  std::size_t used_ = 0;
};

void add_into(float* __restrict to, const float* __restrict from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
}

}  // namespace

/// Builds the compiled variants of a stage.
class StageCompiler {
 public:
  StageCompiler(Stage& stage, Backend backend) : stage_(stage), backend_(backend) {}

  void run(int index, const std::vector<StageVariant>& variants) {
    for (const StageVariant& variant : variants) {
      auto compiled = std::make_unique<Stage::Compiled>();
      compiled->training = variant.training;
      compiled->slices = variant.slices;
      compiled->slice = &variant.slices->stages[static_cast<std::size_t>(index)];
      compiled->layout =
          lay_out_stage(*variant.training, *variant.slices, index, stage_.capacity_.split_backward);
      for (const auto& [id, slot] : compiled->layout.table)
        compiled->table_size = std::max(compiled->table_size, slot + 1);
      stage_.variants_.push_back(std::move(compiled));
    }
    collect_parameters();
    reserve();
    for (auto& compiled : stage_.variants_) {
      resolve_constants(*compiled);
      compile(*compiled);
    }
    const std::size_t workspace = workspace_bytes_;
    workspace_ = Buffer(workspace);
    stage_.memory_.temporaries += workspace;
    stage_.workspace_ = workspace_.data();
    stage_.workspace_memory_ = std::move(workspace_);
  }

 private:
  using Compiled = Stage::Compiled;

  /// Parameters of all variants by name, in one block per version; the first variant that holds one
  /// places it.
  void collect_parameters() {
    std::map<std::string, std::size_t> known;
    Bump block;
    for (auto& compiled : stage_.variants_) {
      for (const int i : compiled->slice->parameters) {
        const Parameter& parameter = compiled->training->parameters[static_cast<std::size_t>(i)];
        const auto [found, added] = known.emplace(parameter.name, stage_.parameters_.size());
        if (added) {
          Stage::ParameterState state;
          state.name = parameter.name;
          state.type = compiled->training->graph[parameter.value].type;
          state.offset = block.take(state.type.bytes());
          stage_.parameters_.push_back(std::move(state));
        }
        Stage::ParameterState& state = stage_.parameters_[found->second];
        state.trained = state.trained || parameter.gradient;
        compiled->layout.location[parameter.value] = {Space::kParameter, state.offset};
      }
    }
    stage_.parameter_block_bytes_ = block.used();
    for (auto& compiled : stage_.variants_) {
      for (const int i : compiled->slice->parameters) {
        const std::string& name = compiled->training->parameters[static_cast<std::size_t>(i)].name;
        compiled->parameter_states.push_back(&stage_.parameters_[known[name]]);
      }
    }
  }

  void reserve() {
    ArenaBytes& memory = stage_.memory_;
    const auto versions = static_cast<std::size_t>(stage_.capacity_.versions);
    const int slots = state_slots(stage_.optimizer_);
    Bump bump;
    const std::size_t parameters = bump.take(stage_.parameter_block_bytes_ * versions);
    memory.parameters = stage_.parameter_block_bytes_ * versions;

    std::vector<std::size_t> accumulators;
    for (const auto& compiled : stage_.variants_) {
      const auto& all = compiled->training->accumulations;
      accumulators.resize(std::max(accumulators.size(), all.size()), SIZE_MAX);
      for (const auto* list :
           {&compiled->slice->accumulations, &compiled->slice->remote_accumulations}) {
        for (const int i : *list) {
          std::size_t& offset = accumulators[static_cast<std::size_t>(i)];
          if (offset != SIZE_MAX) continue;
          const std::size_t bytes =
              compiled->training->graph[all[static_cast<std::size_t>(i)].accumulator].type.bytes();
          offset = bump.take(bytes);
          memory.gradients += aligned(bytes);
        }
      }
    }
    std::vector<std::size_t> states;
    for (const Stage::ParameterState& parameter : stage_.parameters_) {
      const int count = parameter.trained ? slots : 0;
      for (int s = 0; s < 2; ++s) {
        states.push_back(s < count ? bump.take(parameter.type.bytes()) : SIZE_MAX);
        if (s < count) memory.optimizer += aligned(parameter.type.bytes());
      }
    }
    std::vector<std::vector<std::size_t>> prepared;
    std::size_t temporary = 0;
    for (const auto& compiled : stage_.variants_) {
      const StageLayout& layout = compiled->layout;
      stage_.slot_bytes_ = std::max(stage_.slot_bytes_, slot_bytes(layout));
      stage_.forward_out_bytes_ = std::max(stage_.forward_out_bytes_, layout.forward_out_bytes);
      stage_.gradient_out_bytes_ = std::max(stage_.gradient_out_bytes_, layout.gradient_out_bytes);
      temporary = std::max(temporary, layout.temporary_bytes);
      prepared.emplace_back();
      for (std::size_t v = 0; v < versions; ++v)
        prepared.back().push_back(bump.take(layout.prepared_bytes));
      memory.parameters += versions * aligned(layout.prepared_bytes);
    }
    const StageCapacity& capacity = stage_.capacity_;
    const std::size_t slots_at =
        bump.take(stage_.slot_bytes_ * static_cast<std::size_t>(capacity.slots));
    const std::size_t forward_at =
        bump.take(stage_.forward_out_bytes_ * static_cast<std::size_t>(capacity.forward_entries));
    const std::size_t gradient_at =
        bump.take(stage_.gradient_out_bytes_ * static_cast<std::size_t>(capacity.gradient_entries));
    const std::size_t temporary_at = bump.take(temporary);
    memory.activations = stage_.slot_bytes_ * static_cast<std::size_t>(capacity.slots);
    memory.transfers =
        stage_.forward_out_bytes_ * static_cast<std::size_t>(capacity.forward_entries) +
        stage_.gradient_out_bytes_ * static_cast<std::size_t>(capacity.gradient_entries);
    memory.temporaries = temporary;

    stage_.arena_ = Buffer(bump.used());
    std::byte* base = stage_.arena_.data();
    stage_.parameter_block_ = base + parameters;
    for (const std::size_t offset : accumulators)
      stage_.accumulators_.push_back(offset == SIZE_MAX ? nullptr : base + offset);
    for (std::size_t i = 0; i < stage_.parameters_.size(); ++i) {
      const auto state = [&](std::size_t s) {
        return states[2 * i + s] == SIZE_MAX ? nullptr
                                             : reinterpret_cast<float*>(base + states[2 * i + s]);
      };
      stage_.parameters_[i].state0 = state(0);
      stage_.parameters_[i].state1 = state(1);
    }
    for (std::size_t v = 0; v < stage_.variants_.size(); ++v) {
      for (const std::size_t offset : prepared[v])
        stage_.variants_[v]->prepared.push_back(base + offset);
      stage_.variants_[v]->prepared_generation.assign(versions, 0);
    }
    stage_.copy_generation_.assign(versions, 0);
    stage_.slots_ = base + slots_at;
    stage_.forward_out_ = base + forward_at;
    stage_.gradient_out_ = base + gradient_at;
    stage_.temporary_ = base + temporary_at;
  }

  /// A recompute rewrites the handed-on values into the slot, since their receivers may be reading
  /// the others.
  std::size_t slot_bytes(const StageLayout& layout) const {
    return layout.slot_bytes + (stage_.capacity_.recompute ? layout.forward_out_bytes : 0);
  }

  void resolve_constants(Compiled& compiled) {
    const Graph& graph = compiled.training->graph;
    compiled.constants.assign(graph.values.size(), nullptr);
    for (std::size_t v = 0; v < graph.values.size(); ++v) {
      if (graph.values[v].role == Role::kConstant && graph.values[v].data) {
        compiled.constants[v] = static_cast<std::byte*>(graph.values[v].data.view().data);
      }
    }
    for (const int i : compiled.slice->statistics) {
      const RunningStatistic& statistic =
          compiled.training->statistics[static_cast<std::size_t>(i)];
      const Value& mean = graph[statistic.state_mean];
      const Value& variance = graph[statistic.state_variance];
      Stage::StatisticState& state = stage_.statistics_[mean.name];
      state.mean_name = mean.name;
      state.variance_name = variance.name;
      state.channels = static_cast<std::size_t>(mean.type.count());
      state.momentum = statistic.momentum;
      state.merged_mean.assign(state.channels, 0);
      state.merged_squares.assign(state.channels, 0);
      state.mean = reinterpret_cast<float*>(running_statistic(mean));
      state.variance = reinterpret_cast<float*>(running_statistic(variance));
      compiled.statistic_states.push_back(&state);
    }
    for (const auto* nodes : {&compiled.slice->forward, &compiled.slice->backward}) {
      for (const NodeId id : *nodes) {
        for (const ValueId input : graph[id].inputs) {
          if (!input) continue;
          const ValueId root = root_of(compiled, input);
          if (graph[root].role != Role::kState) continue;
          compiled.constants[static_cast<std::size_t>(root.index)] = running_statistic(graph[root]);
        }
      }
    }
  }

  std::byte* running_statistic(const Value& value) {
    HostTensor& memory = stage_.running_[value.name];
    if (!memory) {
      memory = HostTensor(value.type);
      std::memcpy(memory.view().data, value.data.view().data, value.type.bytes());
    }
    return static_cast<std::byte*>(memory.view().data);
  }

  Location locate(const Compiled& compiled, ValueId id) const {
    if (!id) return {};
    const ValueId root = compiled.slices->root[static_cast<std::size_t>(id.index)];
    const auto found = compiled.layout.location.find(root);
    if (found != compiled.layout.location.end()) return found->second;
    const Value& value = compiled.training->graph[root];
    switch (value.role) {
      case Role::kConstant:
        return {Space::kConstant, static_cast<std::size_t>(root.index)};
      case Role::kState:
        return {Space::kState, static_cast<std::size_t>(root.index)};
      case Role::kLossScale:
        return {Space::kLossScale, 0};
      default:
        break;
    }
    PT_FAIL(kInternal, "stage {} has no place for value {}", stage_.index_, printable(value.name));
  }

  std::vector<StageStep> compile(Compiled& compiled, const std::vector<NodeId>& nodes,
                                 const std::vector<bool>& is_read) {
    const Graph& graph = compiled.training->graph;
    std::vector<StageStep> steps;
    for (const NodeId id : nodes) {
      const Node& node = graph[id];
      StageStep step;
      step.name = node.name;
      step.kernel =
          make_kernel(backend_, {node, graph.input_types(node), graph.output_types(node)});
      workspace_bytes_ = std::max(workspace_bytes_, step.kernel->workspace_bytes());
      const auto direct_of = [&](ValueId value) {
        if (!value) return -1;
        const auto found = compiled.layout.direct.find(
            compiled.slices->root[static_cast<std::size_t>(value.index)]);
        return found == compiled.layout.direct.end() ? -1 : found->second;
      };
      for (const ValueId value : node.inputs) {
        step.in.push_back({value ? graph[value].type : TensorType{}, nullptr});
        step.in_at.push_back(locate(compiled, value));
        step.in_direct.push_back(direct_of(value));
      }
      for (const ValueId value : node.outputs) {
        step.out.push_back({graph[value].type, nullptr});
        const bool read = is_read[static_cast<std::size_t>(value.index)];
        step.out_at.push_back(read ? locate(compiled, value) : Location{});
        step.out_direct.push_back(read ? direct_of(value) : -1);
      }
      steps.push_back(std::move(step));
    }
    return steps;
  }

  /// Puts every addition into an accumulator behind the node that computes the contribution.
  void place_additions(Compiled& compiled, const std::vector<NodeId>& nodes,
                       std::vector<StageStep>& steps, std::vector<bool>& placed) {
    const auto& accumulations = compiled.training->accumulations;
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      for (const ValueId output : compiled.training->graph[nodes[n]].outputs) {
        for (std::size_t k = 0; k < compiled.slice->accumulations.size(); ++k) {
          const int i = compiled.slice->accumulations[k];
          if (placed[k] ||
              root_of(compiled, accumulations[static_cast<std::size_t>(i)].contribution) != output)
            continue;
          steps[n].additions.push_back(addition(compiled, i));
          placed[k] = true;
        }
      }
    }
  }

  StageStep::Addition addition(const Compiled& compiled, int i) const {
    const Accumulation& accumulation =
        compiled.training->accumulations[static_cast<std::size_t>(i)];
    const ValueId root = root_of(compiled, accumulation.contribution);
    const bool direct = compiled.layout.direct.contains(root);
    return {
        i, locate(compiled, accumulation.contribution),
        static_cast<std::size_t>(compiled.training->graph[accumulation.accumulator].type.count()),
        direct};
  }

  static ValueId root_of(const Compiled& compiled, ValueId id) {
    return compiled.slices->root[static_cast<std::size_t>(id.index)];
  }

  void compile(Compiled& compiled) {
    const TrainingGraph& training = *compiled.training;
    std::vector<bool> is_read(training.graph.values.size(), false);
    const auto read = [&](ValueId id) {
      if (id)
        is_read[static_cast<std::size_t>(id.index)] =
            is_read[static_cast<std::size_t>(root_of(compiled, id).index)] = true;
    };
    for (const Node& node : training.graph.nodes) {
      for (const ValueId id : node.inputs) read(id);
    }
    for (const Accumulation& accumulation : training.accumulations) read(accumulation.contribution);
    for (const Parameter& parameter : training.parameters) read(parameter.gradient);
    for (const RunningStatistic& statistic : training.statistics) {
      read(statistic.batch_mean);
      read(statistic.batch_variance);
    }
    read(training.loss.loss_sum);
    read(training.loss.correct);

    const StageSlice& slice = *compiled.slice;
    compiled.prepare = compile(compiled, slice.prepare, is_read);
    compiled.forward = compile(compiled, slice.forward, is_read);
    compiled.finish = compile(compiled, slice.finish, is_read);
    std::vector<bool> placed(slice.accumulations.size(), false);
    if (stage_.capacity_.split_backward) {
      compiled.input_gradient = compile(compiled, slice.input_gradient, is_read);
      compiled.weight_gradient = compile(compiled, slice.weight_gradient, is_read);
      place_additions(compiled, slice.weight_gradient, compiled.weight_gradient, placed);
    } else {
      compiled.backward = compile(compiled, slice.backward, is_read);
      place_additions(compiled, slice.backward, compiled.backward, placed);
    }
    for (std::size_t k = 0; k < placed.size(); ++k) {
      if (!placed[k]) compiled.late_additions.push_back(addition(compiled, slice.accumulations[k]));
    }
    for (const int i : slice.parameters) {
      compiled.gradient_at.push_back(
          locate(compiled, training.parameters[static_cast<std::size_t>(i)].gradient));
    }
    const NodeId loss_node = training.graph[root_of(compiled, training.loss.loss_sum)].producer;
    compiled.has_loss =
        compiled.slices->stage_of_node[static_cast<std::size_t>(loss_node.index)] == stage_.index_;
  }

  Stage& stage_;
  Backend backend_;
  std::size_t workspace_bytes_ = 0;
  Buffer workspace_;
};

Stage::Stage(int index, std::vector<StageVariant> variants, Backend backend,
             const StageCapacity& capacity, const OptimizerSettings& optimizer)
    : index_(index), capacity_(capacity), optimizer_(optimizer) {
  StageCompiler(*this, backend).run(index, variants);
  for (const StageVariant& variant : variants) {
    for (const Parameter& parameter : variant.training->parameters) {
      write(parameter.name, variant.training->graph[parameter.value].data);
    }
  }
}

Stage::~Stage() = default;

std::size_t Stage::table_size(int variant) const {
  return variants_[static_cast<std::size_t>(variant)]->table_size;
}
bool Stage::has_loss(int variant) const {
  return variants_[static_cast<std::size_t>(variant)]->has_loss;
}

void Stage::bind_received(int variant, const ValueEdge& edge, const Stage& sender,
                          const std::byte* base, StageUnit& unit) const {
  const StageLayout& here = variants_[static_cast<std::size_t>(variant)]->layout;
  const StageLayout& there = sender.variants_[static_cast<std::size_t>(variant)]->layout;
  for (const ValueId id : edge.values)
    unit.table[here.table.at(id)] = base + there.location.at(id).offset;
}

namespace {

/// Base addresses for one run of a list of steps.
struct Bases {
  const std::vector<std::byte*>* constants;
  const std::vector<std::byte*>* accumulators;
  const StageUnit* unit;
  std::byte* parameter;
  std::byte* prepared;
  std::byte* slot;
  std::byte* forward_out;
  std::byte* gradient_out;
  std::byte* temporary;
  float* loss_scale;

  void* address(const Location& at) const {
    switch (at.space) {
      case Space::kAbsent:
        return nullptr;
      case Space::kConstant:
      case Space::kState:
        return (*constants)[at.offset];
      case Space::kParameter:
        return parameter + at.offset;
      case Space::kPrepared:
        return prepared + at.offset;
      case Space::kLossScale:
        return loss_scale;
      case Space::kTable:
        return const_cast<std::byte*>(unit->table[at.offset]);
      case Space::kSlot:
        return slot + at.offset;
      case Space::kForwardOut:
        return forward_out + at.offset;
      case Space::kGradientOut:
        return gradient_out + at.offset;
      case Space::kTemporary:
        return temporary + at.offset;
      case Space::kAccumulator:
        return (*accumulators)[at.offset];
    }
    return nullptr;
  }
};

void add(const StageStep::Addition& addition, const Bases& bases, bool first) {
  if (addition.direct && first) return;  // the kernel has written into the accumulator
  auto* to = reinterpret_cast<float*>(
      (*bases.accumulators)[static_cast<std::size_t>(addition.accumulation)]);
  const auto* from = static_cast<const float*>(bases.address(addition.from));
  if (first) {
    std::memcpy(to, from, addition.count * sizeof(float));
  } else {
    add_into(to, from, addition.count);
  }
}

void run_steps(std::vector<StageStep>& steps, const Bases& bases, const RunContext& context,
               bool first) {
  const auto address = [&](const Location& at, int direct) -> void* {
    if (first && direct >= 0) return (*bases.accumulators)[static_cast<std::size_t>(direct)];
    return bases.address(at);
  };
  for (StageStep& step : steps) {
    for (std::size_t i = 0; i < step.in.size(); ++i)
      step.in[i].data = address(step.in_at[i], step.in_direct[i]);
    for (std::size_t i = 0; i < step.out.size(); ++i)
      step.out[i].data = address(step.out_at[i], step.out_direct[i]);
    with_context([&] { return "running node " + printable(step.name); },
                 [&] { step.kernel->run(step.in, step.out, context); });
    for (const StageStep::Addition& addition : step.additions) add(addition, bases, first);
  }
}

RunContext context_of(const TrainingGraph& training, const StageUnit& unit, std::byte* workspace) {
  RunContext context;
  context.workspace = workspace;
  context.seed = unit.seed;
  context.step = unit.step;
  context.first_sample = unit.first_sample;
  context.samples = training.micro_batch;
  return context;
}

}  // namespace

void Stage::run(Compiled& variant, std::vector<StageStep>& steps, StageUnit& unit,
                std::byte* forward_base, std::byte* gradient_base, bool first) {
  loss_scale_ = unit.loss_scale;
  const auto copy = static_cast<std::size_t>(unit.version_copy);
  const Bases bases{&variant.constants,
                    &accumulators_,
                    &unit,
                    parameter_block_ + copy * parameter_block_bytes_,
                    variant.prepared[copy],
                    slots_ + static_cast<std::size_t>(unit.slot) * slot_bytes_,
                    forward_base,
                    gradient_base,
                    temporary_,
                    &loss_scale_};
  run_steps(steps, bases, context_of(*variant.training, unit, workspace_), first);
  if (&steps == &variant.backward || &steps == &variant.weight_gradient) {
    for (const StageStep::Addition& addition : variant.late_additions) add(addition, bases, first);
  }
  if (&steps == &variant.forward && variant.has_loss) {
    const Loss& loss = variant.training->loss;
    const auto scalar = [&](ValueId id) {
      const ValueId root = variant.slices->root[static_cast<std::size_t>(id.index)];
      return static_cast<double>(
          *static_cast<const float*>(bases.address(variant.layout.location.at(root))));
    };
    loss_sum_ = scalar(loss.loss_sum);
    correct_ = loss.correct ? scalar(loss.correct) : 0;
  }
}

void Stage::prepare(Compiled& variant, int version_copy) {
  const auto copy = static_cast<std::size_t>(version_copy);
  if (variant.prepare.empty() || variant.prepared_generation[copy] == copy_generation_[copy])
    return;
  StageUnit unit;
  unit.version_copy = version_copy;
  run(variant, variant.prepare, unit, nullptr, nullptr, false);
  variant.prepared_generation[copy] = copy_generation_[copy];
}

std::byte* Stage::forward(StageUnit& unit, int entry, bool count_statistics) {
  Compiled& variant = *variants_[static_cast<std::size_t>(unit.variant)];
  prepare(variant, unit.version_copy);
  unit.forward_out = forward_out_ + static_cast<std::size_t>(entry) * forward_out_bytes_;
  run(variant, variant.forward, unit, unit.forward_out, nullptr, false);
  if (count_statistics) collect_statistics(variant, unit, unit.forward_out);
  return unit.forward_out;
}

void Stage::recompute(StageUnit& unit) {
  Compiled& variant = *variants_[static_cast<std::size_t>(unit.variant)];
  prepare(variant, unit.version_copy);
  unit.forward_out =
      slots_ + static_cast<std::size_t>(unit.slot) * slot_bytes_ + variant.layout.slot_bytes;
  run(variant, variant.forward, unit, unit.forward_out, nullptr, false);
}

std::byte* Stage::backward(StageUnit& unit, int entry, Pass pass, bool first) {
  Compiled& variant = *variants_[static_cast<std::size_t>(unit.variant)];
  prepare(variant, unit.version_copy);
  std::byte* out = gradient_out_ + static_cast<std::size_t>(entry) * gradient_out_bytes_;
  auto& steps = pass == Pass::kFull    ? variant.backward
                : pass == Pass::kInput ? variant.input_gradient
                                       : variant.weight_gradient;
  run(variant, steps, unit, unit.forward_out, out, first);
  return out;
}

void Stage::fetch_remote(int variant, std::span<const std::unique_ptr<Stage>> stages) {
  const Compiled& compiled = *variants_[static_cast<std::size_t>(variant)];
  for (const int i : compiled.slice->remote_accumulations) {
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const auto& local = compiled.slices->stages[s].accumulations;
      if (std::find(local.begin(), local.end(), i) == local.end()) continue;
      const ValueId id = compiled.training->accumulations[static_cast<std::size_t>(i)].accumulator;
      std::memcpy(accumulators_[static_cast<std::size_t>(i)],
                  stages[s]->accumulators_[static_cast<std::size_t>(i)],
                  compiled.training->graph[id].type.bytes());
    }
  }
}

void Stage::finish_gradients(int variant, int version_copy) {
  Compiled& compiled = *variants_[static_cast<std::size_t>(variant)];
  StageUnit unit;
  unit.version_copy = version_copy;
  run(compiled, compiled.finish, unit, nullptr, nullptr, false);
}

namespace {

std::span<float> floats(std::byte* data, const TensorType& type) {
  return {reinterpret_cast<float*>(data), static_cast<std::size_t>(type.count())};
}

}  // namespace

/// Where the gradient of a held parameter lies after finish_gradients(); null when it has none.
std::byte* Stage::gradient_address(const Compiled& variant, std::size_t k) const {
  const Location& at = variant.gradient_at[k];
  if (at.space == Space::kAccumulator) return accumulators_[at.offset];
  if (at.space == Space::kTemporary) return temporary_ + at.offset;
  PT_CHECK(at.space == Space::kAbsent, kInternal, "a gradient in an unexpected place");
  return nullptr;
}

void Stage::squared_norms(int variant, std::span<double> out) const {
  const Compiled& compiled = *variants_[static_cast<std::size_t>(variant)];
  for (std::size_t k = 0; k < compiled.slice->parameters.size(); ++k) {
    std::byte* gradient = gradient_address(compiled, k);
    const auto owner =
        compiled.slices->owner[static_cast<std::size_t>(compiled.slice->parameters[k])];
    if (!gradient || owner != index_) continue;
    out[static_cast<std::size_t>(compiled.slice->parameters[k])] =
        sum_of_squares(floats(gradient, compiled.parameter_states[k]->type));
  }
}

void Stage::update(int variant, int from, int to, double learning_rate, std::int64_t step,
                   double gradient_scale) {
  Compiled& compiled = *variants_[static_cast<std::size_t>(variant)];
  std::byte* source = parameter_block_ + static_cast<std::size_t>(from) * parameter_block_bytes_;
  std::byte* target = parameter_block_ + static_cast<std::size_t>(to) * parameter_block_bytes_;
  if (from != to) std::memcpy(target, source, parameter_block_bytes_);
  for (std::size_t k = 0; k < compiled.slice->parameters.size(); ++k) {
    const ParameterState& parameter = *compiled.parameter_states[k];
    std::byte* gradient = gradient_address(compiled, k);
    if (!gradient) continue;
    const auto count = static_cast<std::size_t>(parameter.type.count());
    const auto state = [&](float* data) {
      return data ? std::span<float>(data, count) : std::span<float>();
    };
    pipetrain::update(optimizer_, learning_rate, step, gradient_scale,
                      floats(target + parameter.offset, parameter.type),
                      std::span<const float>(floats(gradient, parameter.type)),
                      state(parameter.state0), state(parameter.state1));
  }
  copy_generation_[static_cast<std::size_t>(to)] = ++weight_generation_;
}

void Stage::collect_statistics(Compiled& variant, const StageUnit& unit, std::byte* forward_base) {
  const Bases bases{&variant.constants,
                    &accumulators_,
                    &unit,
                    nullptr,
                    nullptr,
                    slots_ + static_cast<std::size_t>(unit.slot) * slot_bytes_,
                    forward_base,
                    nullptr,
                    temporary_,
                    nullptr};
  for (std::size_t k = 0; k < variant.slice->statistics.size(); ++k) {
    const RunningStatistic& statistic =
        variant.training->statistics[static_cast<std::size_t>(variant.slice->statistics[k])];
    StatisticState& state = *variant.statistic_states[k];
    const auto* mean =
        static_cast<const float*>(bases.address(variant.layout.location.at(statistic.batch_mean)));
    const auto* variance = static_cast<const float*>(
        bases.address(variant.layout.location.at(statistic.batch_variance)));
    const auto count = static_cast<double>(statistic.elements_per_channel);
    const double total = state.count + count;
    for (std::size_t c = 0; c < state.channels; ++c) {
      const double delta = mean[c] - state.merged_mean[c];
      state.merged_squares[c] += variance[c] * count + delta * delta * state.count * count / total;
      state.merged_mean[c] += delta * count / total;
    }
    state.count = total;
  }
}

void Stage::apply_statistics() {
  for (auto& [name, state] : statistics_) {
    if (state.count == 0) continue;
    const double keep = state.momentum;
    for (std::size_t c = 0; c < state.channels; ++c) {
      // PyTorch's convention: the running variance is the unbiased one.
      const double variance = state.merged_squares[c] / std::max(1.0, state.count - 1);
      state.mean[c] = static_cast<float>(keep * state.mean[c] + (1 - keep) * state.merged_mean[c]);
      state.variance[c] = static_cast<float>(keep * state.variance[c] + (1 - keep) * variance);
    }
    state.count = 0;
    std::fill(state.merged_mean.begin(), state.merged_mean.end(), 0.0);
    std::fill(state.merged_squares.begin(), state.merged_squares.end(), 0.0);
  }
}

bool Stage::read(const std::string& name, int version_copy, HostTensor& out) const {
  for (const ParameterState& parameter : parameters_) {
    if (parameter.name != name) continue;
    out = HostTensor(parameter.type);
    std::memcpy(out.view().data,
                parameter_block_ + static_cast<std::size_t>(version_copy) * parameter_block_bytes_ +
                    parameter.offset,
                parameter.type.bytes());
    return true;
  }
  const auto found = running_.find(name);
  if (found == running_.end()) return false;
  out = HostTensor(found->second.type());
  std::memcpy(out.view().data, found->second.view().data, out.type().bytes());
  return true;
}

bool Stage::write(const std::string& name, const HostTensor& value) {
  for (const ParameterState& parameter : parameters_) {
    if (parameter.name != name) continue;
    PT_CHECK(value.type() == parameter.type, kInternal, "{} is {}, not {}", printable(name),
             parameter.type.text(), value.type().text());
    for (int copy = 0; copy < capacity_.versions; ++copy) {
      std::memcpy(parameter_block_ + static_cast<std::size_t>(copy) * parameter_block_bytes_ +
                      parameter.offset,
                  value.view().data, parameter.type.bytes());
      copy_generation_[static_cast<std::size_t>(copy)] = ++weight_generation_;
    }
    return true;
  }
  const auto found = running_.find(name);
  if (found == running_.end()) return false;
  std::memcpy(found->second.view().data, value.view().data, found->second.type().bytes());
  return true;
}

std::string Stage::first_nonfinite(int version_copy) const {
  const auto finite = [](std::span<const float> values) {
    return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  };
  for (const ParameterState& parameter : parameters_) {
    std::byte* data = parameter_block_ +
                      static_cast<std::size_t>(version_copy) * parameter_block_bytes_ +
                      parameter.offset;
    if (!finite(floats(data, parameter.type)))
      return fmt::format("weight \"{}\"", printable(parameter.name));
  }
  for (const auto& variant : variants_) {
    const auto& all = variant->training->accumulations;
    for (const int i : variant->slice->accumulations) {
      const Value& value = variant->training->graph[all[static_cast<std::size_t>(i)].accumulator];
      if (!finite(floats(accumulators_[static_cast<std::size_t>(i)], value.type)))
        return printable(value.name);
    }
  }
  return {};
}

}  // namespace pipetrain
