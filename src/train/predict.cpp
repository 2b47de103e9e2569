#include "train/predict.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/setting.h"
#include "passes/execute.h"
#include "passes/lower.h"
#include "passes/patterns.h"

namespace pipetrain {
namespace {

TrainingGraph forward_graph(const ModelConfig& config, std::int64_t batch,
                            const std::map<std::string, Shape>& sample_shapes) {
  const LoadedModel model = load_model(config);
  LowerOptions options;
  options.micro_batch = batch;
  for (const OnnxValue& input : model.model.inputs) {
    if (!input.dims.empty() && input.dims[0].value > 0) options.micro_batch = input.dims[0].value;
  }
  options.dims = config.dims;
  options.sample_shapes = sample_shapes;
  for (const auto& [name, shape] : config.shapes)
    options.sample_shapes[name] = Shape(std::vector<std::int64_t>(shape.begin() + 1, shape.end()));
  options.output_node = config.output_node;
  options.mode = {/*training=*/false, config.batch_norm, config.dropout};
  TrainingGraph graph = lower(model.model, model.rules, options);
  graph.graph.verify();
  return graph;
}

Shape without_batch(const Shape& shape) {
  return Shape(std::vector<std::int64_t>(shape.begin() + 1, shape.end()));
}

}  // namespace

bool holds_labels(const RawColumn& column) {
  static const std::set<std::string> names = {"y",      "label",   "labels",
                                              "target", "targets", "y_train"};
  return column.role == ColumnRole::kLabel || names.contains(column.name);
}

std::map<std::string, Shape> shapes_of_samples(const OnnxModel& model, const RawData& raw) {
  std::map<std::string, Shape> out;
  std::vector<const RawColumn*> unnamed;
  for (const RawColumn& column : raw.train.columns) {
    if (!holds_labels(column)) unnamed.push_back(&column);
  }
  for (std::size_t i = 0; i < model.inputs.size(); ++i) {
    const std::string& name = model.inputs[i].name;
    for (const RawColumn* column : unnamed) {
      if (column->name == name) out[name] = column->sample_shape();
    }
    if (!out.contains(name) && i < unnamed.size()) out[name] = unnamed[i]->sample_shape();
  }
  return out;
}

Predictor::Predictor(const ModelConfig& model, Backend backend, std::int64_t batch,
                     const std::map<std::string, Shape>& sample_shapes)
    : backend_(backend), graph_(forward_graph(model, batch, sample_shapes)) {}

DataSpec Predictor::data_spec() const {
  DataSpec spec;
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

Confusion confuse(const Predictor& predictor, const Dataset& data, const std::string& output,
                  std::int64_t ignore_index, int k) {
  const TrainingGraph& graph = predictor.graph();
  const auto named = std::find(graph.output_names.begin(), graph.output_names.end(), output);
  const std::size_t at = named == graph.output_names.end()
                             ? 0
                             : static_cast<std::size_t>(named - graph.output_names.begin());
  const Shape shape = graph.graph[graph.outputs[at]].type.shape;
  const Column& labels = data.columns()[data.columns().size() - 1];
  PT_CHECK(shape.rank() >= 2 && labels.dtype == DType::kInt64, kUsage,
           "\"{}\" of shape {} is not the output of a classifier: it has no top-k accuracy and no "
           "confusion matrix",
           printable(output), shape.text());
  // As the loss reads it: classes are last in (N, C) and (N, T, C), and second in (N, C, H, W).
  const bool last = shape.rank() <= 3;
  Confusion out;
  out.classes = last ? shape[shape.rank() - 1] : shape[1];
  PT_CHECK(k >= 1 && k <= out.classes, kUsage, "{} {}: the model has {} classes", setting("top-k"),
           k, out.classes);
  PT_CHECK(out.classes <= 65536 && out.classes * out.classes < (std::int64_t{1} << 28), kUsage,
           "{} classes are too many for a confusion matrix", out.classes);
  out.counts.resize(static_cast<std::size_t>(out.classes * out.classes));
  const auto classes = static_cast<std::size_t>(out.classes);
  const std::size_t batch = static_cast<std::size_t>(predictor.batch());
  for (std::size_t first = 0; first < data.size(); first += batch) {
    const std::size_t samples = std::min(batch, data.size() - first);
    const HostTensor scores = predictor.run(data, first, samples)[at];
    std::vector<std::size_t> indices(samples);
    std::iota(indices.begin(), indices.end(), first);
    HostTensor truth(labels.batch_type(samples));
    data.gather(indices, data.columns().size() - 1, truth.view());
    const auto x = scores.span<float>();
    const auto y = truth.span<std::int64_t>();
    const std::size_t positions = y.size() / samples;  // of each sample
    const std::size_t step = last ? 1 : positions;
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (y[i] == ignore_index) continue;
      const std::size_t sample = i / positions, position = i % positions;
      const float* row =
          x.data() + sample * positions * classes + (last ? position * classes : position);
      const auto label = static_cast<std::size_t>(y[i]);
      std::size_t best = 0;
      int before = 0;  // classes with a higher score than the label
      for (std::size_t c = 0; c < classes; ++c) {
        if (row[c * step] > row[best * step]) best = c;
        if (row[c * step] > row[label * step] || (row[c * step] == row[label * step] && c < label))
          ++before;
      }
      ++out.counts[label * classes + best];
      ++out.counted;
      if (before < k) ++out.in_top_k;
    }
  }
  return out;
}

}  // namespace pipetrain
