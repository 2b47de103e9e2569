// Builds a stage: one arena for everything that it holds, kernels at fixed shapes, and for every
// operand where it lies.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "graph/op.h"
#include "ops/adding_kernel.h"
#include "ops/host_kernel.h"
#include "pipeline/stage/stage_arena.h"
#include "pipeline/stage/stage_device.h"
#include "pipeline/stage/stage_state.h"

namespace pipetrain {
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
    reserve();
    for (auto& compiled : stage_.variants_) {
      resolve_constants(*compiled);
      compile(*compiled);
      if (stage_.on_device_) place_received(*compiled);
    }
    share_rows();
    order_completion(*stage_.variants_.front());
    const std::size_t workspace = workspace_bytes_;
    stage_.memory_.temporaries += workspace;
    if (StageDevice* device = stage_.on_device_.get()) {
      device->workspace = device->device().allocate(workspace);
      stage_.workspace_ = device->workspace.data();
      device->synchronize();
      return;
    }
    workspace_ = Buffer(workspace);
    stage_.workspace_ = workspace_.data();
    stage_.workspace_memory_ = std::move(workspace_);
  }

 private:
  using Compiled = Stage::Compiled;

  /// Plans the arena and takes the memory.
  void reserve() {
    std::vector<ArenaVariant> variants;
    for (const auto& compiled : stage_.variants_)
      variants.push_back({compiled->training, compiled->slice, &compiled->layout});
    const StageArena arena = plan_arena(variants, stage_.capacity_, stage_.optimizer_);
    stage_.memory_ = arena.memory;
    std::byte* base = nullptr;
    std::byte* from_slots = nullptr;  // what lies from arena.slots on
    if (StageDevice* device = stage_.on_device_.get()) {
      device->arena = device->device().allocate(arena.bytes);
      base = device->arena.data();
      from_slots = base + arena.slots;
    } else {
      // Products read weights down columns, where small pages cost up to a fifth of their time.
      // Activations are read along rows and are most of the memory: small pages for them come
      // several times faster where the system is a guest.
      stage_.arena_ = Buffer(arena.slots);
      base = stage_.arena_.data();
      PageBlock& activations = stage_.variants_.front()->activations;
      activations = PageBlock(arena.bytes - arena.slots);
      activations.take();
      from_slots = activations.data();
    }
    stage_.parameter_block_ = base + arena.parameter_block;
    stage_.parameter_block_bytes_ = arena.parameter_block_bytes;
    std::map<std::string, std::size_t> index;
    for (const ParameterPlace& place : arena.parameters) {
      const auto state = [&](std::size_t offset) {
        return offset == kNoPlace ? nullptr : reinterpret_cast<float*>(base + offset);
      };
      index[place.name] = stage_.parameters_.size();
      stage_.parameters_.push_back({place.name, place.type, place.offset, state(place.state0),
                                    state(place.state1), state(place.average),
                                    settings_of(stage_.optimizer_, place.name)});
    }
    stage_.gathered_ = base + arena.gathered;
    stage_.gathered_bytes_ = arena.gathered_bytes;
    for (const std::size_t offset : arena.accumulators)
      stage_.accumulators_.push_back(offset == kNoPlace ? nullptr : base + offset);
    for (std::size_t v = 0; v < stage_.variants_.size(); ++v) {
      Compiled& compiled = *stage_.variants_[v];
      for (const int i : compiled.slice->parameters) {
        const Parameter& parameter = compiled.training->parameters[static_cast<std::size_t>(i)];
        compiled.parameter_states.push_back(&stage_.parameters_[index.at(parameter.name)]);
        compiled.layout.location[parameter.value] = {Space::kParameter,
                                                     compiled.parameter_states.back()->offset};
      }
      for (const std::size_t offset : arena.prepared[v]) compiled.prepared.push_back(base + offset);
      compiled.prepared_generation.assign(compiled.prepared.size(), 0);
    }
    stage_.copy_generation_.assign(static_cast<std::size_t>(stage_.capacity_.versions), 0);
    stage_.slot_bytes_ = arena.slot_bytes;
    stage_.forward_out_bytes_ = arena.forward_out_bytes;
    stage_.gradient_out_bytes_ = arena.gradient_out_bytes;
    stage_.slots_ = from_slots;
    stage_.forward_out_ = from_slots + (arena.forward_out - arena.slots);
    stage_.gradient_out_ = from_slots + (arena.gradient_out - arena.slots);
    stage_.temporary_ = from_slots + (arena.temporary - arena.slots);
  }

  void resolve_constants(Compiled& compiled) {
    const Graph& graph = compiled.training->graph;
    compiled.constants.assign(graph.values.size(), nullptr);
    if (stage_.on_device_) {
      place_constants(compiled);
    } else {
      for (std::size_t v = 0; v < graph.values.size(); ++v) {
        if (graph.values[v].role == Role::kConstant && graph.values[v].data) {
          compiled.constants[v] = static_cast<std::byte*>(graph.values[v].data.view().data);
        }
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
      state.of_weights = graph[graph[statistic.batch_mean].producer].part == Part::kPrepare;
      state.moments.reset(state.channels, state.of_weights);
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
          compiled.reads_running = true;
          std::byte* host = running_statistic(graph[root]);
          compiled.constants[static_cast<std::size_t>(root.index)] =
              stage_.on_device_ ? device_statistic(graph[root]) : host;
        }
      }
    }
  }

  /// The constants that this stage reads, on its device.
  void place_constants(Compiled& compiled) {
    const Graph& graph = compiled.training->graph;
    StageDevice& device = *stage_.on_device_;
    for_operands(compiled, [&](ValueId root) {
      std::byte*& at = compiled.constants[static_cast<std::size_t>(root.index)];
      const HostTensor& data = graph[root].data;
      if (graph[root].role == Role::kLossScale) compiled.reads_loss_scale = true;
      if (graph[root].role != Role::kConstant || !data || at) return;
      device.constants.push_back(device.device().allocate(aligned(data.type().bytes())));
      at = device.constants.back().data();
      device.move(at, data.view().data, data.type().bytes());
    });
  }

  /// Calls visit(root) for every operand of the stage's nodes.
  template <class Visit>
  static void for_operands(const Compiled& compiled, const Visit& visit) {
    const StageSlice& slice = *compiled.slice;
    for (const auto* nodes : {&slice.prepare, &slice.forward, &slice.backward, &slice.finish}) {
      for (const NodeId id : *nodes) {
        for (const ValueId input : compiled.training->graph[id].inputs) {
          if (input) visit(root_of(compiled, input));
        }
      }
    }
  }

  std::byte* device_statistic(const Value& value) {
    DeviceMemory& memory = stage_.on_device_->running[value.name];
    if (!memory.data()) memory = stage_.on_device_->device().allocate(value.type.bytes());
    return memory.data();
  }

  /// Where a unit's data lie that come from elsewhere.
  void place_received(const Compiled& compiled) {
    StageDevice& device = *stage_.on_device_;
    const Graph& graph = compiled.training->graph;
    std::set<ValueId> read;
    for_operands(compiled, [&](ValueId root) { read.insert(root); });
    std::vector<StagePlace> inputs, received(compiled.table_size);
    std::size_t input_bytes = 0, received_bytes = 0;
    for (const auto& [id, slot] : compiled.layout.table) {
      const bool is_input = graph[id].role == Role::kInput || graph[id].role == Role::kLabel;
      const std::size_t bytes = is_input && !read.contains(id) ? 0 : graph[id].type.bytes();
      if (is_input) {
        inputs.push_back({slot, input_bytes, bytes});
        input_bytes += aligned(bytes);
      } else {
        received[slot] = {slot, received_bytes, bytes};
        received_bytes += aligned(bytes);
      }
    }
    device.input_places.push_back(std::move(inputs));
    device.received_places.push_back(std::move(received));
    device.input_bytes.push_back(input_bytes);
    device.received_bytes.push_back(received_bytes);
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

  /// Whether other numbers come out at every step.
  static bool draws_numbers(const Node& node) {
    return (node.op->flags & kRandom) ||
           node.attributes.text("program", "").find("Dropout") != std::string::npos;
  }

  std::vector<StageStep> compile(Compiled& compiled, const std::vector<NodeId>& nodes,
                                 const std::vector<bool>& is_read) {
    const Graph& graph = compiled.training->graph;
    std::vector<StageStep> steps;
    for (const NodeId id : nodes) {
      const Node& node = graph[id];
      StageStep step;
      step.name = node.name;
      step.node = id;
      const KernelRequest request{node, graph.input_types(node), graph.output_types(node)};
      if (StageDevice* on = stage_.on_device_.get()) {
        step.kernel = on->device().make_kernel(on->compute(), request);
        step.repeatable = step.kernel && !draws_numbers(node);
        if (!step.kernel) step.kernel = make_host_kernel(on->compute(), request);
      } else {
        step.kernel = make_kernel(backend_, request);
      }
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
      let_add(compiled, steps[n]);
    }
  }

  /// Lets a kernel add its contributions itself if it can and nobody else reads them.
  void let_add(const Compiled& compiled, StageStep& step) const {
    auto* kernel = dynamic_cast<AddingKernel*>(step.kernel.get());
    if (!kernel) return;
    const Graph& graph = compiled.training->graph;
    const auto is_added_only = [&](std::size_t i) {
      if (step.out_at[i].space == Space::kAbsent) return true;
      if (step.out_direct[i] < 0) return false;
      const ValueId id = graph[step.node].outputs[i];
      return std::none_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
        if (node.op->flags & kView) return false;
        return std::any_of(node.inputs.begin(), node.inputs.end(),
                           [&](ValueId input) { return input && root_of(compiled, input) == id; });
      });
    };
    for (std::size_t i = 0; i < step.out.size(); ++i) {
      if (!is_added_only(i)) return;
    }
    step.adding = kernel;
    for (StageStepAddition& addition : step.additions) addition.adds = true;
  }

  /// Lets the kernels that add to a few rows of an accumulator know of each other's rows.
  void share_rows() {
    std::map<int, std::vector<RowAddingKernel*>> kernels;  // by accumulation
    std::map<int, std::size_t> variants;                   // that add to it
    for (const auto& compiled : stage_.variants_) {
      for (const int i : compiled->slice->accumulations) ++variants[i];
      for (auto* steps : {&compiled->backward, &compiled->weight_gradient}) {
        for (StageStep& step : *steps) {
          auto* kernel = dynamic_cast<RowAddingKernel*>(step.adding);
          if (kernel && step.additions.size() == 1)
            kernels[step.additions[0].accumulation].push_back(kernel);
        }
      }
    }
    stage_.touched_rows_.resize(stage_.accumulators_.size());
    for (const auto& [accumulation, sharing] : kernels) {
      const std::int64_t rows = sharing.front()->rows();
      if (rows == 0 || sharing.size() != variants[accumulation] ||
          std::any_of(sharing.begin(), sharing.end(),
                      [&](const RowAddingKernel* kernel) { return kernel->rows() != rows; }))
        continue;
      auto& touched = stage_.touched_rows_[static_cast<std::size_t>(accumulation)];
      touched = std::make_unique<TouchedRows>(rows);
      for (RowAddingKernel* kernel : sharing) kernel->share(*touched);
    }
  }

  /// Memory that a step reads or writes.
  struct Range {
    Space space;
    std::size_t begin, end;
    bool meets(const Range& other) const {
      return space == other.space && begin < other.end && other.begin < end;
    }
  };

  static Range range_of(const Location& at, const TensorType& type) {
    switch (at.space) {
      case Space::kAbsent:
        return {at.space, 0, 0};
      case Space::kConstant:
      case Space::kState:
      case Space::kTable:
      case Space::kAccumulator:
        return {at.space, at.offset, at.offset + 1};  // an index
      default:
        return {at.space, at.offset, at.offset + type.bytes()};
    }
  }

  /// `adding`: what goes into accumulators goes there only.
  static std::vector<Range> ranges(const std::vector<Location>& at, const std::vector<int>& direct,
                                   const std::vector<Tensor>& tensors, bool adding) {
    std::vector<Range> out;
    for (std::size_t i = 0; i < at.size(); ++i) {
      if (direct[i] < 0 || !adding) out.push_back(range_of(at[i], tensors[i].type));
      if (direct[i] >= 0)
        out.push_back(range_of({Space::kAccumulator, static_cast<std::size_t>(direct[i])}, {}));
    }
    return out;
  }

  /// Finds the steps whose operands no other step of the list writes and that write nothing that
  /// another reads or writes: they may run in any order, and behind the others. Of a list that is
  /// put off (`beside_others`) they must not touch what other lists of the stage write meanwhile.
  static void put_independent_last(std::vector<StageStep>& steps, bool beside_others) {
    std::vector<std::vector<Range>> reads, writes;
    for (const StageStep& step : steps) {
      reads.push_back(ranges(step.in_at, step.in_direct, step.in, false));
      writes.push_back(
          ranges(step.out_at, step.out_direct, step.out, /*adding=*/step.adding != nullptr));
      for (const StageStepAddition& addition : step.additions)
        writes.back().push_back(
            range_of({Space::kAccumulator, static_cast<std::size_t>(addition.accumulation)}, {}));
    }
    const auto meet = [](const std::vector<Range>& a, const std::vector<Range>& b) {
      return std::any_of(a.begin(), a.end(), [&](const Range& one) {
        return std::any_of(b.begin(), b.end(), [&](const Range& two) { return one.meets(two); });
      });
    };
    const auto stays = [](const Range& range) {
      return range.space == Space::kAbsent || range.space == Space::kConstant ||
             range.space == Space::kParameter || range.space == Space::kPrepared ||
             range.space == Space::kAccumulator || range.space == Space::kGathered;
    };
    for (std::size_t i = 0; i < steps.size(); ++i) {
      steps[i].independent =
          !beside_others || (std::all_of(reads[i].begin(), reads[i].end(), stays) &&
                             std::all_of(writes[i].begin(), writes[i].end(), stays));
      for (std::size_t j = 0; j < steps.size() && steps[i].independent; ++j) {
        steps[i].independent = i == j || !(meet(writes[i], reads[j]) ||
                                           meet(writes[i], writes[j]) || meet(reads[i], writes[j]));
      }
    }
    std::stable_partition(steps.begin(), steps.end(),
                          [](const StageStep& step) { return !step.independent; });
  }

  void place_gatherings(Compiled& compiled) {
    const TrainingGraph& training = *compiled.training;
    if (compiled.slice->gatherings.empty()) return;
    PT_CHECK(!stage_.on_device_, kInternal, "values are gathered in host memory only");
    const std::int64_t units = training.gathered_micro_batches;
    for (const int i : compiled.slice->gatherings) {
      const Gathering& gathering = training.gatherings[static_cast<std::size_t>(i)];
      compiled.gatherings.push_back(
          {locate(compiled, gathering.value), locate(compiled, gathering.gathered).offset,
           training.graph[gathering.value].type.bytes(),
           training.graph[gathering.gathered].type.bytes() / static_cast<std::size_t>(units)});
    }
    stage_.gathered_of_.reserve(static_cast<std::size_t>(units));
  }

  /// In which order a step completes the gradients.
  void order_completion(const Compiled& compiled) {
    const auto complete = [&](const std::vector<StageStepAddition>& additions) {
      for (const StageStepAddition& addition : additions)
        stage_.completion_.push_back(addition.accumulation);
    };
    for (const auto* steps : {&compiled.backward, &compiled.weight_gradient}) {
      for (const StageStep& step : *steps) complete(step.additions);
    }
    complete(compiled.late_additions);
    for (const StageStep& step : compiled.batch_gradient) complete(step.additions);
    stage_.completed_as_.assign(compiled.training->accumulations.size(), 0);
    for (std::size_t k = 0; k < stage_.completion_.size(); ++k)
      stage_.completed_as_[static_cast<std::size_t>(stage_.completion_[k])] = k;
  }

  StageStepAddition addition(const Compiled& compiled, int i) const {
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
    for (const Gathering& gathering : training.gatherings) read(gathering.value);
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
    compiled.batch_gradient = compile(compiled, slice.batch_gradient, is_read);
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
    place_additions(compiled, slice.batch_gradient, compiled.batch_gradient, placed);
    put_independent_last(compiled.weight_gradient, /*beside_others=*/false);
    for (auto* steps : {&compiled.prepare, &compiled.batch_gradient})
      put_independent_last(*steps, /*beside_others=*/true);
    place_gatherings(compiled);
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

void compile_stage(Stage& stage, int index, const std::vector<StageVariant>& variants,
                   Backend backend) {
  StageCompiler(stage, backend).run(index, variants);
}

}  // namespace pipetrain
