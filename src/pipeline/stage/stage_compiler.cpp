// Compiles a stage: kernels at fixed shapes, the location of every operand, and a memory plan.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/index.h"
#include "graph/op.h"
#include "ops/kernel/adding_kernel.h"
#include "pipeline/stage/compiled_stage.h"
#include "pipeline/stage/stage_executor.h"

namespace pipetrain {
namespace {

class StageCompiler {
 public:
  StageCompiler(int index, const StageCapacity& capacity, const UpdateShare& share,
                StageExecutor& executor)
      : index_(index), capacity_(capacity), share_(share), executor_(executor) {}

  CompiledStage run(const std::vector<StageVariant>& variants, const OptimizerSettings& optimizer) {
    std::vector<StageLayout> layouts = lay_out_variants(variants, index_, capacity_);
    for (std::size_t v = 0; v < variants.size(); ++v) {
      CompiledVariant& compiled = out_.variants.emplace_back();
      compiled.training = variants[v].training;
      compiled.slices = variants[v].slices;
      compiled.slice = &variants[v].slices->stages[at(index_)];
      compiled.layout = std::move(layouts[v]);
      for (const auto& [id, slot] : compiled.layout.table)
        compiled.table_size = std::max(compiled.table_size, slot + 1);
    }
    plan_memory(optimizer);
    for (CompiledVariant& compiled : out_.variants) {
      compile(compiled);
      place_outside_values(compiled);
    }
    share_rows();
    OutsideValues most;
    for (const CompiledVariant& compiled : out_.variants) {
      most.input_bytes = std::max(most.input_bytes, compiled.outside.input_bytes);
      most.received_bytes = std::max(most.received_bytes, compiled.outside.received_bytes);
    }
    for (CompiledVariant& compiled : out_.variants) {
      compiled.outside.most_input_bytes = most.input_bytes;
      compiled.outside.most_received_bytes = most.received_bytes;
    }
    order_completion(out_.variants.front());
    const CompiledVariant& first = out_.variants.front();
    out_.owners = update_owners(*first.training, *first.slice, share_.replicas);
    return std::move(out_);
  }

 private:
  void plan_memory(const OptimizerSettings& optimizer) {
    std::vector<ArenaVariant> variants;
    for (const CompiledVariant& compiled : out_.variants)
      variants.push_back({compiled.training, compiled.slice, &compiled.layout});
    out_.arena = plan_arena(variants, capacity_, optimizer, share_);
    std::map<std::string, std::size_t> offsets;
    for (const ParameterPlace& place : out_.arena.parameters) offsets[place.name] = place.offset;
    for (CompiledVariant& compiled : out_.variants) {
      for (const int i : compiled.slice->parameters) {
        const Parameter& parameter = compiled.training->parameters[at(i)];
        compiled.layout.location[parameter.value] = {Space::kParameter, offsets.at(parameter.name)};
      }
    }
  }

  /// The layout of a copy of the values that a micro-batch reads from outside.
  static void place_outside_values(CompiledVariant& compiled) {
    const Graph& graph = compiled.training->graph;
    const StageSlice& slice = *compiled.slice;
    std::set<ValueId> read;
    for (const auto* nodes : {&slice.prepare, &slice.forward, &slice.backward, &slice.finish}) {
      for (const NodeId id : *nodes) {
        for (const ValueId input : graph[id].inputs) {
          if (input) read.insert(compiled.root(input));
        }
      }
    }
    OutsideValues& outside = compiled.outside;
    outside.received.resize(compiled.table_size);
    for (const auto& [id, slot] : compiled.layout.table) {
      const bool is_input = graph[id].role == Role::kInput || graph[id].role == Role::kLabel;
      const std::size_t bytes = is_input && !read.contains(id) ? 0 : graph[id].type.bytes();
      if (is_input) {
        outside.inputs.push_back({slot, outside.input_bytes, bytes});
        outside.input_bytes += aligned(bytes);
      } else {
        outside.received[slot] = {slot, outside.received_bytes, bytes};
        outside.received_bytes += aligned(bytes);
      }
    }
  }

  /// The location of a value. Also records values outside the arena that the stage reads.
  Location locate(CompiledVariant& compiled, ValueId id) const {
    if (!id) return {};
    const ValueId root = compiled.root(id);
    const auto found = compiled.layout.location.find(root);
    if (found != compiled.layout.location.end()) return found->second;
    const Value& value = compiled.training->graph[root];
    switch (value.role) {
      case Role::kConstant:
        compiled.constants.push_back(root);
        return {Space::kConstant, at(root.index)};
      case Role::kState:
        compiled.running.push_back(root);
        return {Space::kState, at(root.index)};
      case Role::kLossScale:
        compiled.reads_loss_scale = true;
        return {Space::kLossScale, 0};
      default:
        break;
    }
    PT_FAIL(kInternal, "stage {} has no place for value {}", index_, printable(value.name));
  }

  /// Whether the results differ from step to step.
  static bool draws_numbers(const Node& node) {
    return (node.op->flags & kRandom) ||
           node.attributes.text("program", "").find("Dropout") != std::string::npos;
  }

  std::vector<StageStep> compile(CompiledVariant& compiled, const std::vector<NodeId>& nodes,
                                 const std::vector<bool>& is_read) {
    const Graph& graph = compiled.training->graph;
    std::vector<StageStep> steps;
    for (const NodeId id : nodes) {
      const Node& node = graph[id];
      StageStep step;
      step.name = node.name;
      step.node = id;
      const KernelRequest request{node, graph.input_types(node), graph.output_types(node)};
      StageKernel made = executor_.make_kernel(request);
      step.kernel = std::move(made.kernel);
      step.repeatable = made.repeatable && !draws_numbers(node);
      out_.workspace_bytes = std::max(out_.workspace_bytes, step.kernel->workspace_bytes());
      const auto direct_of = [&](ValueId value) {
        if (!value) return -1;
        const auto found = compiled.layout.direct.find(compiled.root(value));
        return found == compiled.layout.direct.end() ? -1 : found->second;
      };
      for (const ValueId value : node.inputs) {
        step.in.push_back({value ? graph[value].type : TensorType{}, nullptr});
        step.in_at.push_back(locate(compiled, value));
        step.in_direct.push_back(direct_of(value));
      }
      for (const ValueId value : node.outputs) {
        step.out.push_back({graph[value].type, nullptr});
        const bool read = is_read[at(value.index)];
        step.out_at.push_back(read ? locate(compiled, value) : Location{});
        step.out_direct.push_back(read ? direct_of(value) : -1);
      }
      steps.push_back(std::move(step));
    }
    return steps;
  }

  /// Attaches every accumulation to the node that computes the contribution.
  void place_additions(CompiledVariant& compiled, const std::vector<NodeId>& nodes,
                       std::vector<StageStep>& steps, std::vector<bool>& placed) {
    const auto& accumulations = compiled.training->accumulations;
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      for (const ValueId output : compiled.training->graph[nodes[n]].outputs) {
        for (std::size_t k = 0; k < compiled.slice->accumulations.size(); ++k) {
          const int i = compiled.slice->accumulations[k];
          if (placed[k] || compiled.root(accumulations[at(i)].contribution) != output) continue;
          steps[n].additions.push_back(addition(compiled, i));
          placed[k] = true;
        }
      }
      let_add(compiled, steps[n]);
    }
  }

  /// Lets a kernel accumulate its contributions itself if it can and nothing else reads them.
  void let_add(const CompiledVariant& compiled, StageStep& step) const {
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
                           [&](ValueId input) { return input && compiled.root(input) == id; });
      });
    };
    for (std::size_t i = 0; i < step.out.size(); ++i) {
      if (!is_added_only(i)) return;
    }
    step.adding = kernel;
    for (StageStepAddition& addition : step.additions) addition.adds = true;
  }

  /// Shares the set of touched rows between kernels that add to a few rows of an accumulator.
  void share_rows() {
    out_.touched_rows.resize(out_.arena.accumulators.size());
    if (capacity_.accumulator_sets > 1) return;            // every leaf has rows of its own
    std::map<int, std::vector<RowAddingKernel*>> kernels;  // by accumulation
    std::map<int, std::size_t> variants;                   // that add to it
    for (CompiledVariant& compiled : out_.variants) {
      for (const int i : compiled.slice->accumulations) ++variants[i];
      for (auto* steps : {&compiled.backward, &compiled.weight_gradient}) {
        for (StageStep& step : *steps) {
          auto* kernel = dynamic_cast<RowAddingKernel*>(step.adding);
          if (kernel && step.additions.size() == 1)
            kernels[step.additions[0].accumulation].push_back(kernel);
        }
      }
    }
    for (const auto& [accumulation, sharing] : kernels) {
      const std::int64_t rows = sharing.front()->rows();
      // Activations overwrite rows that are not touched.
      const bool in_slot = out_.arena.accumulators[at(accumulation)] >= out_.arena.slots;
      if (rows == 0 || in_slot || sharing.size() != variants[accumulation] ||
          std::any_of(sharing.begin(), sharing.end(),
                      [&](const RowAddingKernel* kernel) { return kernel->rows() != rows; }))
        continue;
      auto& touched = out_.touched_rows[at(accumulation)];
      touched = std::make_unique<TouchedRows>(rows);
      for (RowAddingKernel* kernel : sharing) kernel->share(*touched);
    }
  }

  void place_gatherings(CompiledVariant& compiled) {
    const TrainingGraph& training = *compiled.training;
    if (compiled.slice->batched_values.empty()) return;
    PT_CHECK(!executor_.is_asynchronous(), kInternal, "values are gathered in host memory only");
    const std::int64_t micro_batches = training.batched_micro_batches;
    for (const int i : compiled.slice->batched_values) {
      const BatchedValue& batched = training.batched_values[at(i)];
      compiled.batched_values.push_back(
          {locate(compiled, batched.value), locate(compiled, batched.batched).offset,
           training.graph[batched.value].type.bytes(),
           training.graph[batched.batched].type.bytes() / static_cast<std::size_t>(micro_batches)});
    }
  }

  /// The order in which a step completes the gradients.
  void order_completion(const CompiledVariant& compiled) {
    const auto complete = [&](const std::vector<StageStepAddition>& additions) {
      for (const StageStepAddition& addition : additions)
        out_.completion.push_back(addition.accumulation);
    };
    for (const auto* steps : {&compiled.backward, &compiled.weight_gradient}) {
      for (const StageStep& step : *steps) complete(step.additions);
    }
    complete(compiled.late_additions);
    for (const StageStep& step : compiled.batch_gradient) complete(step.additions);
    out_.completed_as.assign(compiled.training->accumulations.size(), 0);
    for (std::size_t k = 0; k < out_.completion.size(); ++k)
      out_.completed_as[at(out_.completion[k])] = k;
  }

  StageStepAddition addition(CompiledVariant& compiled, int i) const {
    const Accumulation& accumulation = compiled.training->accumulations[at(i)];
    const ValueId root = compiled.root(accumulation.contribution);
    const bool direct = compiled.layout.direct.contains(root);
    return {
        i, locate(compiled, accumulation.contribution),
        static_cast<std::size_t>(compiled.training->graph[accumulation.accumulator].type.count()),
        direct};
  }

  void compile(CompiledVariant& compiled) {
    const TrainingGraph& training = *compiled.training;
    std::vector<bool> is_read(training.graph.values.size(), false);
    const auto read = [&](ValueId id) {
      if (id)
        is_read[at(id.index)] = is_read[static_cast<std::size_t>(compiled.root(id).index)] = true;
    };
    for (const Node& node : training.graph.nodes) {
      for (const ValueId id : node.inputs) read(id);
    }
    for (const Accumulation& accumulation : training.accumulations) read(accumulation.contribution);
    for (const BatchedValue& batched : training.batched_values) read(batched.value);
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
    if (capacity_.split_backward) {
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
      compiled.gradient_at.push_back(locate(compiled, training.parameters[at(i)].gradient));
    }
    const NodeId loss_node = training.graph[compiled.root(training.loss.loss_sum)].producer;
    compiled.has_loss = compiled.slices->stage_of_node[at(loss_node.index)] == index_;
  }

  int index_;
  const StageCapacity& capacity_;
  const UpdateShare share_;
  StageExecutor& executor_;
  CompiledStage out_;
};

}  // namespace

CompiledStage compile_stage(int index, const std::vector<StageVariant>& variants,
                            const StageCapacity& capacity, const OptimizerSettings& optimizer,
                            const UpdateShare& share, StageExecutor& executor) {
  return StageCompiler(index, capacity, share, executor).run(variants, optimizer);
}

}  // namespace pipetrain
