#include "train/predict.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"
#include "data/rows/synthetic.h"
#include "ops/registry/registry.h"
#include "passes/bound_inputs.h"
#include "passes/execute.h"
#include "passes/lower.h"
#include "passes/needed_nodes.h"
#include "passes/patterns.h"
#include "passes/squeezed_shapes.h"
#include "train/given_shapes.h"

namespace pipetrain {
namespace {

/// Gives outputs of one sample its axis, which a Squeeze may have removed.
void add_sample_axes(TrainingGraph& graph) {
  GraphBuilder builder = make_builder(graph.graph);
  builder.set_origin("sample", Part::kForward);
  for (ValueId& output : graph.outputs)
    output = builder.reshape(output, with_sample_axis(graph.graph, output));
}

TrainingGraph forward_graph(const ModelConfig& config, std::int64_t batch,
                            const std::map<std::string, Shape>& sample_shapes) {
  const LoadedModel model = load_model(config);
  LowerOptions options;
  options.micro_batch = model.has_fixed_batch() ? model.fixed_batch() : batch;
  options.dims = config.dims;
  options.sample_shapes = sample_shapes;
  for (const auto& [name, shape] : config.shapes)
    options.sample_shapes[name] = Shape(std::vector<std::int64_t>(shape.begin() + 1, shape.end()));
  options.output_node = config.output_node;
  options.mode = {/*training=*/false, config.batch_norm, config.dropout};
  const auto build = [&](const LowerOptions& how) {
    TrainingGraph graph = lower(model.model, model.rules, how);
    bound_inputs(graph);
    if (model.fixed_batch() == 1) add_sample_axes(graph);
    graph.graph.verify();
    return graph;
  };
  try {
    return build(options);
  } catch (const Error& error) {
    refuse_too_many_tokens(model.model, options, error, [&](const LowerOptions& how) {
      try {
        build(how);
      } catch (const Error&) {
        return false;
      }
      return true;
    });
    throw;
  }
}

Shape without_batch(const Shape& shape) {
  return Shape(std::vector<std::int64_t>(shape.begin() + 1, shape.end()));
}

bool are_channels(std::int64_t count) { return count == 1 || count == 3 || count == 4; }

/// The shape of a column's samples, with the channels of decoded images where the input has them.
Shape sample_shape_for(const OnnxValue& input, const RawColumn& column,
                       const std::map<std::string, Shape>& of_images) {
  const Shape shape = column.sample_shape();
  const bool has_images = column.source && column.dtype() == DType::kUint8;
  if (!has_images || input.dims.size() != 4) return shape;
  if (const auto known = of_images.find(input.name); known != of_images.end()) return known->second;
  const std::int64_t last = input.dims[3].value;
  if (!are_channels(last) || are_channels(input.dims[1].value)) return shape;
  return {shape[1], shape[2], last};
}

bool takes_tokens(const OnnxValue& input) {
  return !is_float(input.dtype) && input.dims.size() == 2;
}

bool is_filled(const OnnxValue& input) {
  ModelInput named;
  named.name = input.name;
  return known_filling(named).has_value();
}

/// Of a sample; 0: any number.
std::size_t tokens_of(const OnnxValue& input, const ModelConfig& config) {
  std::int64_t length = input.dims[1].value;
  if (const auto dim = config.dims.find(input.dims[1].symbol);
      length <= 0 && dim != config.dims.end())
    length = dim->second;
  if (const auto shape = config.shapes.find(input.name);
      shape != config.shapes.end() && shape->second.rank() == 2)
    length = shape->second[1];
  return length > 0 ? static_cast<std::size_t>(length) : 0;
}

}  // namespace

bool holds_labels(const RawColumn& column) {
  static const std::set<std::string> names = {"y",      "label",   "labels",
                                              "target", "targets", "y_train"};
  return column.role == ColumnRole::kLabel || names.contains(column.name);
}

std::map<std::string, Shape> shapes_of_samples(
    const OnnxModel& model, const RawData& raw, const std::string& output_node,
    const std::map<std::string, Shape>& of_images,
    std::span<const std::pair<std::string, std::string>> bindings) {
  std::map<std::string, Shape> out;
  const std::vector<OnnxValue> inputs = needed_inputs(model, output_node);
  for (const OnnxValue& input : inputs) {
    if (raw.train.window > 0 && !is_float(input.dtype) && input.dims.size() == 2)
      out[input.name] = Shape{static_cast<std::int64_t>(raw.train.window)};
  }
  std::vector<const RawColumn*> arrays, free;
  for (const RawColumn& column : raw.train.columns) {
    if (!holds_labels(column)) arrays.push_back(&column);
  }
  free = arrays;
  std::set<std::string> bound;
  const auto take = [&](const OnnxValue& input, const RawColumn& column) {
    out[input.name] = sample_shape_for(input, column, of_images);
    std::erase(free, &column);
  };
  for (const auto& [target, array] : bindings) {
    const auto input = std::ranges::find(inputs, target, &OnnxValue::name);
    const auto column = std::ranges::find(raw.train.columns, array, &RawColumn::name);
    if (column == raw.train.columns.end()) continue;
    if (input != inputs.end()) {
      take(*input, *column);
      bound.insert(target);
    } else {  // labels, which are an input too if there is no other array
      std::ranges::stable_partition(free, [&](const auto* each) { return each != &*column; });
    }
  }
  for (const OnnxValue& input : inputs) {
    const auto named = std::ranges::find(arrays, input.name, &RawColumn::name);
    if (named != arrays.end() && !bound.contains(input.name)) take(input, **named);
  }
  // Masks and the like come last: there need be none.
  for (const bool filled : {false, true}) {
    for (const OnnxValue& input : inputs) {
      if (!out.contains(input.name) && !free.empty() && is_filled(input) == filled)
        take(input, *free.front());
    }
  }
  return out;
}

std::size_t token_length(const OnnxModel& model, const ModelConfig& config) {
  const auto first = std::ranges::find_if(model.inputs, takes_tokens);
  return first == model.inputs.end() ? 0 : tokens_of(*first, config);
}

void take_token_lengths(const OnnxModel& model, const ModelConfig& config, TextOptions& text) {
  text.model_length = token_length(model, config);
  text.other_rows.clear();
  bool is_first = true;
  for (const OnnxValue& input : model.inputs) {
    if (!takes_tokens(input) || std::exchange(is_first, false)) continue;
    if (const std::size_t length = tokens_of(input, config)) text.other_rows[input.name] = length;
  }
}

Predictor::Predictor(const ModelConfig& model, Backend backend, std::int64_t batch,
                     const std::map<std::string, Shape>& sample_shapes)
    : backend_(backend), graph_(forward_graph(model, batch, sample_shapes)) {}

DataSpec Predictor::data_spec() const {
  DataSpec spec;
  spec.is_prediction = true;
  for (const GraphInput& input : graph_.inputs) {
    const TensorType& type = graph_.graph[input.value].type;
    spec.inputs.push_back({input.name, type.dtype, without_batch(type.shape), input.upper_bound});
  }
  return spec;
}

void Predictor::set_weights(const std::map<std::string, HostTensor>& weights) {
  for (Value& value : graph_.graph.values) {
    const auto found = weights.find(value.name);
    const bool remembered = value.role == Role::kParameter || value.role == Role::kState;
    if (remembered && found != weights.end() && found->second.type() == value.type)
      value.data = found->second;
  }
}

std::vector<HostTensor> Predictor::run(const Dataset& data, std::size_t first,
                                       std::size_t samples) const {
  const auto batch = static_cast<std::size_t>(graph_.micro_batch);
  PT_CHECK(samples > 0 && samples <= batch, kInternal, "{} samples in a batch of {}", samples,
           batch);
  // A smaller batch is padded with its last sample.
  std::vector<std::size_t> indices(batch, first + samples - 1);
  std::iota(indices.begin(), indices.begin() + static_cast<std::ptrdiff_t>(samples), first);
  std::map<ValueId, HostTensor> feeds;
  for (std::size_t c = 0; c < graph_.inputs.size(); ++c) {
    HostTensor values(data.columns()[c].batch_type(batch));
    data.gather(indices, c, values.view());
    feeds[graph_.inputs[c].value] = std::move(values);
  }
  std::vector<HostTensor> out = execute(graph_.graph, backend_, feeds, graph_.outputs);
  if (samples == batch) return out;
  for (HostTensor& value : out) {
    const Shape& shape = value.type().shape;
    if (shape.rank() == 0 || shape[0] != graph_.micro_batch) continue;
    std::vector<std::int64_t> dims = shape.dims();
    dims[0] = static_cast<std::int64_t>(samples);
    HostTensor part(TensorType{value.type().dtype, Shape(dims)});
    std::memcpy(part.view().data, value.view().data, part.type().bytes());
    value = std::move(part);
  }
  return out;
}

}  // namespace pipetrain
