#include "passes/lower.h"

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "base/name_table.h"
#include "base/read_budget.h"
#include "base/setting.h"
#include "onnx_io/subgraph.h"
#include "ops/registry/registry.h"
#include "passes/control_flow.h"
#include "passes/needed_nodes.h"
#include "passes/sequences.h"
#include "passes/squeezed_shapes.h"

namespace pipetrain {
namespace {

Attributes attributes_of(const OnnxNode& node) {
  std::vector<std::pair<std::string, Attributes::Value>> out;
  for (const OnnxAttribute& attribute : node.attributes) {
    if (attribute.name.starts_with("__")) continue;  // the exporter's own
    const auto add = [&](Attributes::Value value) {
      out.emplace_back(attribute.name, std::move(value));
    };
    using Kind = OnnxAttribute::Kind;
    switch (attribute.kind) {
      case Kind::kFloat:
        add(static_cast<double>(attribute.f));
        break;
      case Kind::kInt:
        add(attribute.i);
        break;
      case Kind::kString:
        add(attribute.s);
        break;
      case Kind::kTensor:
        add(attribute.tensor);
        break;
      case Kind::kFloats:
        add(Reals(attribute.floats.begin(), attribute.floats.end()));
        break;
      case Kind::kInts:
        add(attribute.ints);
        break;
      case Kind::kStrings: {  // activations of recurrent layers: "Sigmoid,Tanh"
        std::string list;
        for (const std::string& item : attribute.strings) {
          list += (list.empty() ? "" : ",") + item;
        }
        add(std::move(list));
        break;
      }
      case Kind::kGraph:
      case Kind::kOther:
        break;
    }
  }
  return Attributes::of(std::move(out));
}

class Lowering {
 public:
  Lowering(const OnnxModel& model, const std::map<std::string, TensorRule>& rules,
           const LowerOptions& options, SqueezedShapes of_two = {})
      : model_(model),
        rules_(rules),
        options_(options),
        of_two_(std::move(of_two)),
        builder_(make_builder(result_.graph)) {}

  TrainingGraph run() {
    result_.micro_batch = options_.micro_batch;
    const std::vector<std::string> targets = targets_of(model_, options_.output_node);
    const Needed needed = find_needed(model_, targets);
    refuse_unsupported(model_, needed);
    values_.reserve(model_.nodes.size());
    names_.reserve(model_.nodes.size());
    for (const OnnxValue& input : model_.inputs) {
      if (needed.values.contains(input.name)) add_input(input);
    }
    for (const OnnxInitializer& initializer : model_.initializers) {
      if (needed.values.contains(initializer.name)) add_initializer(initializer);
    }
    for (std::size_t n = 0; n < model_.nodes.size(); ++n) {
      if (n + kNamesAhead < model_.nodes.size()) expect(model_.nodes[n + kNamesAhead]);
      if (needed.nodes[n]) add_node(model_.nodes[n]);
    }
    for (const std::string& target : targets) {
      PT_CHECK(!lists_.contains(target), kModel,
               "output \"{}\" is a sequence or optional; the results of a model must be tensors",
               printable(target));
      const ValueId* const found = values_.find(target);
      PT_CHECK(found && *found, kModel, "output \"{}\" is never computed", printable(target));
      result_.outputs.push_back(*found);
      result_.output_names.push_back(target);
    }
    collect_statistics();
    return std::move(result_);
  }

  /// After run().
  SqueezedShapes squeezed_shapes() { return std::move(squeezed_); }

 private:
  void add_input(const OnnxValue& input) {
    PT_CHECK(is_known(input.dtype), kModel, "input \"{}\" has {}, which is not supported",
             printable(input.name), name_of(input.dtype));
    PT_CHECK(input.has_shape && !input.dims.empty(), kModel,
             "input \"{}\" has no shape with a sample axis; export the model with one",
             printable(input.name));
    std::vector<std::int64_t> dims(input.dims.size());
    const auto sample = options_.sample_shapes.find(input.name);
    std::string free, options;
    for (std::size_t axis = 0; axis < dims.size(); ++axis) {
      const OnnxDim& dim = input.dims[axis];
      const bool is_batch =
          axis == 0 || (!dim.symbol.empty() && dim.symbol == input.dims[0].symbol);
      if (is_batch) {
        PT_CHECK(dim.value != 0, kModel,
                 "input \"{}\" has a batch of 0 rows; export the model with a dynamic batch axis",
                 printable(input.name));
        PT_CHECK(dim.value < 0 || dim.value == options_.micro_batch, kUsage,
                 "input \"{}\" has a fixed batch of {}, but micro-batches have {} samples; use "
                 "{} and "
                 "{} {} with {}, or export the model with a dynamic batch axis",
                 printable(input.name), dim.value, options_.micro_batch, setting("batch-size"),
                 setting("micro-batch-size"), dim.value, setting("drop-last"));
        dims[axis] = options_.micro_batch;
      } else if (dim.value >= 0) {
        dims[axis] = dim.value;
      } else if (const auto given = options_.dims.find(dim.symbol); given != options_.dims.end()) {
        dims[axis] = given->second;
      } else if (sample != options_.sample_shapes.end() &&
                 sample->second.rank() + 1 == dims.size()) {
        dims[axis] = sample->second[axis - 1];
      } else {
        free +=
            fmt::format("{}{}", free.empty() ? "" : ", ",
                        dim.symbol.empty() ? fmt::format("axis {}", axis) : printable(dim.symbol));
        if (!dim.symbol.empty())
          options += fmt::format("{} {}=N ", setting("dim"), printable(dim.symbol));
      }
    }
    PT_CHECK(free.empty(), kUsage,
             "input \"{}\" has free dimensions ({}); the first axis is set by {}, give "
             "the others: {}{}{} {}=…",
             printable(input.name), free, setting("batch-size"), options,
             options.empty() ? "" : "or ", setting("shape"), printable(input.name));
    Value value;
    value.name = input.name;
    value.type = {is_float(input.dtype) ? DType::kFloat32 : input.dtype, Shape(std::move(dims))};
    value.role = Role::kInput;
    PT_CHECK(value.type.rounded_bytes() <= kMostBytesOfValue, kModel,
             "input \"{}\" of shape {} takes more than 1 TiB", printable(input.name),
             value.type.shape.text());
    const ValueId id = builder_.add_value(std::move(value));
    name_value(input.name, id);
    result_.inputs.push_back({input.name, id, -1});
  }

  const TensorRule* rule_of(const std::string& name) const {
    const auto found = rules_.find(name);
    return found == rules_.end() ? nullptr : &found->second;
  }

  void add_tensor(const std::string& name, const HostTensor& data) {
    Value value;
    value.data = is_float(data.dtype()) ? to_float32(data) : data;
    value.type = value.data.type();
    add_stored(name, std::move(value));
  }

  /// Adds a stored tensor as parameter, running statistic or constant, whatever its rule says.
  void add_stored(const std::string& name, Value value) {
    const TensorRule* rule = rule_of(name);
    const TensorUse use = rule ? rule->use : TensorUse::kFrozen;
    value.name = name;
    value.role = use == TensorUse::kTrained            ? Role::kParameter
                 : use == TensorUse::kRunningStatistic ? Role::kState
                                                       : Role::kConstant;
    const ValueId id = builder_.add_value(std::move(value));
    name_value(name, id);
    if (use == TensorUse::kTrained) result_.parameters.push_back({name, id, {}});
  }

  void add_initializer(const OnnxInitializer& initializer) {
    PT_CHECK(initializer.unusable.empty(), kModel, "tensor \"{}\" cannot be used: {}",
             printable(initializer.name), initializer.unusable);
    if (initializer.value) {
      add_tensor(initializer.name, initializer.value);
    } else {
      add_unwritten(initializer);
    }
  }

  // A trained tensor without values is enough for planning; others may be folded.
  void add_unwritten(const OnnxInitializer& initializer) {
    const TensorRule* rule = rule_of(initializer.name);
    PT_CHECK(rule && rule->use == TensorUse::kTrained, kModel,
             "tensor \"{}\" was never written to its data file, so it cannot be used as a constant",
             printable(initializer.name));
    Value value;
    value.type = {DType::kFloat32, initializer.shape};
    add_stored(initializer.name, std::move(value));
  }

  /// Its names are added soon.
  void expect(const OnnxNode& node) const {
    names_.expect(node.name);
    for (const std::string& output : node.outputs) values_.expect(output);
  }

  void add_node(const OnnxNode& node) {
    with_context([&] { return "importing " + node.label(); },
                 [&] {
                   check_attributes(node);
                   if (node.op_type == "Constant" && rule_of(node.outputs[0]) &&
                       rule_of(node.outputs[0])->use != TensorUse::kFrozen) {
                     add_tensor(node.outputs[0], constant_value(node));
                     return;
                   }
                   if (takes_lists(node)) return add_sequence(node);
                   if (has_subgraphs(node)) return add_control_flow(node);
                   std::vector<ValueId> inputs;
                   for (const std::string& name : node.inputs) inputs.push_back(value_of(name));
                   const std::string name = unique_name(node);
                   builder_.set_origin(name, Part::kForward);
                   const std::size_t before = result_.graph.nodes.size();
                   const Attributes attributes = attributes_of(node);
                   ImportContext context(builder_, node.op_type, node.opset, attributes,
                                         std::move(inputs), node.outputs.size(), options_.mode);
                   import_node(node, name, context);
                   const bool repeats = is_left_out(name, before);
                   for (std::size_t i = 0; i < node.outputs.size(); ++i) {
                     const ValueId output = context.outputs()[i];
                     set_value(node.outputs[i], repeats ? repeated(output) : output);
                   }
                 });
  }

  /// A Squeeze without axes leaves a single sample its axis.
  void import_node(const OnnxNode& node, const std::string& name, ImportContext& context) {
    if (!squeezes_all(node) || !context.has_input(0))
      return find_import(node.op_type)->import(context);
    const Shape shape = context.type(0).shape;
    squeezed_.insert_or_assign(name, shape);
    const auto larger = of_two_.find(name);
    const Shape* const like = larger == of_two_.end() ? nullptr : &larger->second;
    context.set_output(0, builder_.reshape(context.input(0), squeezed(shape, like)));
  }

  /// Whether a node that repeats a weight for each sample of larger micro-batches has added nothing
  /// but views to those `before`, since there is one sample.
  bool is_left_out(const std::string& name, std::size_t before) const {
    const std::vector<Node>& nodes = result_.graph.nodes;
    return options_.repeating && names_node(*options_.repeating, name) &&
           std::all_of(nodes.begin() + static_cast<std::ptrdiff_t>(before), nodes.end(),
                       [](const Node& node) { return (node.op->flags & kView) != 0; });
  }

  /// As a node of its own, as with more samples: cuts and accumulators are the same.
  ValueId repeated(ValueId id) {
    if (!id) return id;
    return builder_.add("Expand", {id}, {{"shape", builder_.shape(id).dims()}});
  }

  /// The value of this name; absent for the empty name.
  ValueId value_of(const std::string& name) const {
    if (name.empty()) return {};
    PT_CHECK(!lists_.contains(name), kModel,
             "\"{}\" is a sequence or optional, which only the operators for those take here",
             printable(name));
    const ValueId* const found = values_.find(name);
    PT_CHECK(found && *found, kModel, "value \"{}\" has no type here", printable(name));
    return *found;
  }

  void set_value(const std::string& name, ValueId id) {
    if (!id || name.empty()) return;
    name_value(name, id);
    if (result_.graph[id].role != Role::kActivation) return;
    renamed_.resize(result_.graph.values.size());
    if (!renamed_[static_cast<std::size_t>(id.index)]) builder_.rename(id, name);
    renamed_[static_cast<std::size_t>(id.index)] = true;
  }

  bool takes_lists(const OnnxNode& node) const {
    return is_sequence_operator(node) || (node.op_type == "Identity" && node.domain.empty() &&
                                          node.has_input(0) && lists_.contains(node.inputs[0]));
  }

  void add_sequence(const OnnxNode& node) {
    std::vector<ValueId> inputs;
    for (const std::string& name : node.inputs)
      inputs.push_back(lists_.contains(name) ? ValueId{} : value_of(name));
    builder_.set_origin(unique_name(node), Part::kForward);
    const std::vector<ValueId> outputs = expand_sequence(node, inputs, lists_, builder_);
    for (std::size_t i = 0; i < node.outputs.size() && i < outputs.size(); ++i)
      set_value(node.outputs[i], outputs[i]);
  }

  TensorOrList tensor_or_list(const std::string& name) const {
    const auto list = lists_.find(name);
    if (list != lists_.end()) return list->second;
    return value_of(name);
  }

  /// Gives a name what it stands for within this graph.
  void stand_for(const std::string& name, const TensorOrList& value) {
    lists_.erase(name);
    if (value.list) {
      keep_list(lists_, name, *value.list);
    } else {
      name_value(name, value.tensor);
    }
  }

  /// Names a value, within a sub-graph until that ends.
  void name_value(const std::string& name, ValueId id) {
    if (subgraphs_ == 0) {
      *values_.add(name).first = id;
      return;
    }
    ValueId* named = values_.find(name);
    if (!named) named = values_.add(kept(name)).first;
    hidden_.emplace_back(name, *named);
    *named = id;
  }

  /// A name for the tables: that of the model, or a copy of one that a sub-graph takes with it.
  std::string_view kept(const std::string& name) {
    return subgraphs_ > 0 ? inner_names_.emplace_back(name) : name;
  }

  void add_control_flow(const OnnxNode& node) {
    std::vector<TensorOrList> inputs;
    for (const std::string& name : node.inputs) inputs.push_back(tensor_or_list(name));
    builder_.set_origin(unique_name(node), Part::kForward);
    const auto add = [&](const OnnxSubgraph& graph, const std::vector<TensorOrList>& arguments) {
      return add_subgraph(graph, arguments);
    };
    const std::vector<TensorOrList> outputs = expand_control_flow(node, inputs, builder_, add);
    for (std::size_t i = 0; i < node.outputs.size() && i < outputs.size(); ++i) {
      if (outputs[i].list) {
        keep_list(lists_, node.outputs[i], *outputs[i].list);
      } else {
        set_value(node.outputs[i], outputs[i].tensor);
      }
    }
  }

  /// Adds the nodes of a sub-graph. Its names end with it.
  std::vector<TensorOrList> add_subgraph(const OnnxSubgraph& graph,
                                         const std::vector<TensorOrList>& arguments) {
    const std::size_t hidden_outside = hidden_.size();
    const ValueLists lists_outside = lists_;
    std::uint64_t bytes = 0;
    for (const auto& [name, list] : lists_)
      bytes += sizeof(ValueLists::value_type) + sizeof(ValueId) * list.values.size();
    ReadBudget::charge(bytes);
    ++subgraphs_;
    for (std::size_t i = 0; i < graph.inputs.size() && i < arguments.size(); ++i) {
      stand_for(graph.inputs[i], arguments[i]);
    }
    for (const OnnxInitializer& initializer : graph.initializers) add_initializer(initializer);
    for (const OnnxNode& node : graph.nodes) {
      if (!node.outputs.empty()) add_node(node);
    }
    std::vector<TensorOrList> outputs;
    for (const std::string& name : graph.outputs) outputs.push_back(tensor_or_list(name));
    for (; hidden_.size() > hidden_outside; hidden_.pop_back())
      *values_.find(hidden_.back().first) = hidden_.back().second;
    --subgraphs_;
    lists_ = lists_outside;
    return outputs;
  }

  /// The node's name, or that of its first output where it has none or it is not unique. Plans
  /// refer to stages by this name.
  std::string unique_name(const OnnxNode& node) {
    if (!node.name.empty() && is_new(node.name)) return node.name;
    const std::string& first = node.outputs.at(0);
    if (is_new(first)) return first;
    return fmt::format("{}#{}", first, ++repeated_);  // an iteration of a loop
  }

  bool is_new(const std::string& name) {
    if (subgraphs_ == 0) return names_.insert(name);
    return !names_.contains(name) && names_.insert(kept(name));
  }

  void collect_statistics() {
    for (const Node& node : result_.graph.nodes) {
      if (node.op->name != "BatchNorm") continue;
      RunningStatistic statistic;
      statistic.state_mean = {static_cast<int>(node.attributes.integer("running_mean"))};
      statistic.state_variance = {static_cast<int>(node.attributes.integer("running_variance"))};
      // For norms without running statistics, exporters write the batch statistics here.
      const auto& values = result_.graph;
      if (values[statistic.state_mean].role != Role::kState ||
          values[statistic.state_variance].role != Role::kState)
        continue;
      statistic.batch_mean = node.outputs[1];
      statistic.batch_variance = node.outputs[2];
      const Shape& shape = builder_.shape(node.inputs[0]);
      statistic.elements_per_channel = shape.count() / std::max<std::int64_t>(1, shape[1]);
      statistic.momentum = node.attributes.real("momentum", 0.9);
      result_.statistics.push_back(statistic);
    }
  }

  const OnnxModel& model_;
  const std::map<std::string, TensorRule>& rules_;
  const LowerOptions& options_;
  const SqueezedShapes of_two_;  // of micro-batches of two samples
  SqueezedShapes squeezed_;
  TrainingGraph result_;
  GraphBuilder builder_;
  NameTable<ValueId> values_;  // absent: of a sub-graph that has ended
  ValueLists lists_;
  int subgraphs_ = 0;                                    // that are being added
  std::vector<std::pair<std::string, ValueId>> hidden_;  // what their names stood for before
  std::vector<bool> renamed_;                            // by value
  NameSet names_;
  std::deque<std::string> inner_names_;  // in the two tables, but not in the model
  std::size_t repeated_ = 0;
};

std::uint64_t budget_of(const OnnxModel& model) {
  std::uint64_t bytes = model.file_bytes;
  for (const OnnxInitializer& initializer : model.initializers) {
    if (initializer.external && initializer.value) bytes += initializer.value.type().bytes();
  }
  return bytes;
}

/// For micro-batches of one sample: what the same Squeeze nodes read with two. Empty where the
/// model does not take two.
SqueezedShapes shapes_of_two(const OnnxModel& model, const std::map<std::string, TensorRule>& rules,
                             LowerOptions options) {
  if (options.micro_batch != 1) return {};
  options.micro_batch = 2;
  try {
    const ReadBudget budget(budget_of(model));
    if (!has_squeeze_of_all(model)) return {};
    Lowering lowering(model, rules, options);
    lowering.run();
    return lowering.squeezed_shapes();
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

TrainingGraph lower(const OnnxModel& model, const std::map<std::string, TensorRule>& rules,
                    const LowerOptions& options) {
  SqueezedShapes of_two = shapes_of_two(model, rules, options);
  const ReadBudget budget(budget_of(model));
  return with_context([&] { return "reading " + printable(model.path.string()); },
                      [&] { return Lowering(model, rules, options, std::move(of_two)).run(); });
}

}  // namespace pipetrain
