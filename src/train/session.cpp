#include "train/session.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "data/rows/class_labels.h"
#include "onnx_io/reader.h"
#include "onnx_io/writer.h"
#include "ops/conv.h"
#include "passes/fuse_elementwise.h"
#include "passes/fuse_products.h"
#include "passes/gather_gradients.h"
#include "passes/pack_weights.h"
#include "passes/pad_rows.h"
#include "profile/machine.h"
#include "train/export.h"
#include "train/predict.h"

namespace pipetrain {
namespace {

/// Whether the labels of a source are class numbers or measurements.
LabelHint label_hint(const RawData& raw) {
  const RawColumn* label = nullptr;
  for (const RawColumn& column : raw.train.columns) {
    if (holds_labels(column)) label = &column;
  }
  if (!label) return LabelHint::kUnknown;
  if (!is_float(label->values.dtype())) return LabelHint::kInteger;
  const std::vector<double> values = label->values.to_doubles();
  const bool whole = std::all_of(values.begin(), values.end(),
                                 [](double v) { return v == std::floor(v) && v >= 0; });
  return whole && label->sample_shape().rank() == 0 ? LabelHint::kInteger : LabelHint::kFloat;
}

/// The graph; where only the size of the micro-batch is in its way, the model is not to blame.
TrainingGraph build_at_size(const OnnxModel& model, const std::map<std::string, TensorRule>& rules,
                            BuildOptions options) {
  try {
    return build_training_graph(model, rules, options);
  } catch (const Error& error) {
    const std::int64_t samples = options.lower.micro_batch;
    if (error.kind() != ErrorKind::kModel || samples <= 2) throw;
    options.lower.micro_batch = 2;
    try {
      build_training_graph(model, rules, options);
    } catch (const Error&) {
      throw error;
    }
    PT_FAIL(kResource, "micro-batches of {} samples are too large: {}", samples, error.message());
  }
}

}  // namespace

LoadedModel load_model(const ModelConfig& config) {
  LoadedModel loaded;
  loaded.file = read_onnx(config.path);
  loaded.rules = classify_tensors(loaded.file, config.parameters);
  for (auto& [name, rule] : loaded.rules) {
    if (rule.use != TensorUse::kTrained) continue;
    const std::string reason = why_not_writable(loaded.file, name);
    if (!reason.empty()) rule = {TensorUse::kFrozen, reason};
  }
  loaded.model = loaded.file;
  if (config.parameters.untie) loaded.copies = untie_copies(loaded.model, loaded.rules);
  return loaded;
}

Session::Session(const RunConfig& config, SessionMode mode, ProcessGroup* processes)
    : config_(config),
      mode_(mode),
      processes_(processes),
      cores_(available_cores()),
      loss_(config.model.loss) {
  programs_of_run_ = std::make_unique<ProgramMaker>(config_.pipeline);
  threads_ = config_.pipeline.threads > 0
                 ? config_.pipeline.threads
                 : std::max(1, available_cores() / programs_of_run_->devices());
  if (processes_) share_cores();
}

Session::~Session() = default;

void Session::open(const Session* same_data) {
  model_ = same_data ? same_data->model_ : load_model(config_.model);
  set_parameter_rates();
  for (const auto& [name, shape] : config_.model.shapes) {
    const bool known =
        std::any_of(model_.model.inputs.begin(), model_.model.inputs.end(),
                    [&name = name](const OnnxValue& input) { return input.name == name; });
    PT_CHECK(known, kUsage, "--shape: the model has no input \"{}\"", printable(name));
    PT_CHECK(shape.rank() >= 1, kUsage, "--shape {}: give at least the sample axis",
             printable(name));
    sample_shapes_[name] = Shape(std::vector<std::int64_t>(shape.begin() + 1, shape.end()));
  }
  std::optional<RawData> raw;
  if (same_data) {
    data_ = same_data->data_;
    loss_ = same_data->loss_;
    sample_shapes_ = same_data->sample_shapes_;
  } else if (config_.data.path != "synthetic") {
    raw = read_source(config_.data.path, config_.data);
    if (mode_ == SessionMode::kEvaluate) {
      // Other images may lack a class: numbers are those that it was trained with.
      const std::vector<std::string> known = trained_classes(model_.file);
      for (RawSplit* split : {&raw->train, &raw->held_out}) {
        for (RawColumn& column : split->columns) follow_class_names(column, known);
      }
    }
    if (loss_.labels == LabelHint::kUnknown) loss_.labels = label_hint(*raw);
    for (auto& [name, shape] : shapes_of_samples(model_.model, *raw))
      sample_shapes_.emplace(name, shape);
  }
  choose_micro_batch();
  const bool trains = mode_ == SessionMode::kTrain;
  Variant full{micro_batch_, !trains, build(micro_batch_, trains, trains)};
  loss_.loss = std::string(name_of(full.graph->loss.kind));
  (trains ? training_ : evaluations_).push_back(std::move(full));
  bind_data(raw ? &*raw : nullptr);
}

void Session::set_parameter_rates() {
  OptimizationConfig& optimization = config_.optimization;
  std::map<std::string, ParameterRates>& own = optimization.optimizer.own;
  own.clear();
  for (const auto& [name, rule] : model_.rules) {
    if (rule.use == TensorUse::kTrained && !rule.decays &&
        has_decoupled_decay(optimization.optimizer.kind))
      own[name].weight_decay = 0;
  }
  const auto each = [&](const char* option, const auto& rates, const auto& set) {
    for (const auto& [glob, value] : rates) {
      bool used = false;
      for (const auto& [name, rule] : model_.rules) {
        if (!matches_glob(glob, name)) continue;
        used = true;
        if (rule.use == TensorUse::kTrained) set(own[name], value);
      }
      PT_CHECK(used, kUsage,
               "{}: no tensor of the model matches \"{}\"; list them with: pipetrain inspect "
               "--params",
               option, printable(glob));
    }
  };
  each("--lr-scale", optimization.rate_scales,
       [](ParameterRates& rates, double value) { rates.learning_rate_scale = value; });
  each("--weight-decay", optimization.decays,
       [](ParameterRates& rates, double value) { rates.weight_decay = value; });
}

void Session::choose_micro_batch() {
  const std::int64_t batch = config_.optimization.batch_size;
  PT_CHECK(batch >= 1, kUsage, "--batch-size must be at least 1");
  std::int64_t fixed = -1;
  for (const OnnxValue& input : model_.model.inputs) {
    if (!input.dims.empty() && input.dims[0].value > 0) fixed = input.dims[0].value;
  }
  const PipelineConfig& pipeline = config_.pipeline;
  PT_CHECK(!(pipeline.micro_batches && pipeline.micro_batch_size), kUsage,
           "give --micro-batches or --micro-batch-size, not both");
  const bool whole = sends_whole_mini_batches(programs_of_run_->rule());
  if (fixed > 0) {
    PT_CHECK(batch % fixed == 0, kUsage,
             "the model has a fixed batch of {}; --batch-size must be a multiple of it", fixed);
    micro_batch_ = fixed;
    config_.optimization.drop_last = true;
  } else if (whole) {
    PT_CHECK(pipeline.micro_batches <= 1 && pipeline.micro_batch_size == 0, kUsage,
             "--schedule {} sends each mini-batch as one unit; leave out --micro-batches",
             pipeline.schedule);
    micro_batch_ = batch;
  } else if (pipeline.micro_batch_size > 0) {
    micro_batch_ = std::min(pipeline.micro_batch_size, batch);
  } else {
    const std::int64_t automatic =
        programs_of_run_->fixed_units() > 0
            ? programs_of_run_->fixed_units()
            : std::max<std::int64_t>(1, std::min<std::int64_t>(8, batch / 8));
    const std::int64_t wanted = pipeline.micro_batches > 0 ? pipeline.micro_batches : automatic;
    PT_CHECK(wanted <= batch, kUsage, "--micro-batches {} is more than --batch-size {}", wanted,
             batch);
    micro_batch_ = (batch + wanted - 1) / wanted;
  }
  micro_batches_ = (batch + micro_batch_ - 1) / micro_batch_;
  PT_CHECK(!whole || micro_batches_ == 1, kUsage,
           "--schedule {} sends each mini-batch as one unit, but the model has a fixed batch of "
           "{}; use --batch-size {}",
           pipeline.schedule, fixed, fixed);
}

std::unique_ptr<TrainingGraph> Session::build(std::int64_t samples, bool training,
                                              bool with_gradients, bool fuse) const {
  BuildOptions options;
  options.lower.micro_batch = samples;
  options.lower.dims = config_.model.dims;
  options.lower.sample_shapes = sample_shapes_;
  options.lower.output_node = config_.model.output_node;
  options.lower.mode = {training, config_.model.batch_norm, config_.model.dropout};
  options.loss = loss_;
  // What makes training harder is no part of what is measured.
  if (!training) options.loss.label_smoothing = 0;
  if (!training) options.loss.class_weights.clear();
  options.with_gradients = with_gradients;
  options.precision = config_.model.precision;
  const bool on_cpu = config_.pipeline.backend == Backend::kCpu && config_.pipeline.gpu_ids.empty();
  if (on_cpu) options.picture_layout = convolution_layout();
  // Tensor cores, which strict floats do not use, multiply channels that lie together.
  const bool tensor_cores =
      config_.model.precision != DType::kFloat32 || config_.model.tensor_floats;
  if (!config_.pipeline.gpu_ids.empty() && tensor_cores)
    options.picture_layout = Layout::kChannelsLast;
  options.fuse_elementwise = on_cpu && fuse;
  auto graph = std::make_unique<TrainingGraph>(
      build_at_size(model_.model, model_.rules, std::move(options)));
  if (options.fuse_elementwise && with_gradients && micro_batches_ > 1) pack_weights(*graph);
  if (on_cpu && with_gradients && micro_batches_ > 1 && !asynchronous()) {
    if (training_.empty()) {
      gather_gradients(*graph, micro_batches_);
    } else {
      gather_gradients_like(*training_.front().graph, *graph);
    }
  }
  // The kernels of GPUs take narrow types as well.
  if (!config_.pipeline.gpu_ids.empty() && fuse && with_gradients) {
    fold_biases(*graph);
    fuse_elementwise(*graph, FusedTypes::kStored);
    fuse_products(*graph);
    pad_logits(*graph);
    graph->graph.verify();
  }
  return graph;
}

void Session::bind_data(const RawData* raw) {
  const TrainingGraph& graph = this->graph();
  const auto sample_shape = [&](ValueId id) {
    const auto& dims = graph.graph[id].type.shape.dims();
    return Shape(std::vector<std::int64_t>(dims.begin() + 1, dims.end()));
  };
  for (const GraphInput& input : graph.inputs) {
    data_spec_.inputs.push_back({input.name, graph.graph[input.value].type.dtype,
                                 sample_shape(input.value), input.upper_bound});
  }
  const Loss& loss = graph.loss;
  if (loss.label) {
    LabelSpec label;
    label.dtype = graph.graph[loss.label].type.dtype;
    label.sample_shape = sample_shape(loss.label);
    label.classes = loss.classes;
    label.shifted_input = loss.kind == LossKind::kCausalLm;
    label.probability = loss.kind == LossKind::kBinaryCrossEntropy;
    label.ignore_index = loss.ignore_index;
    data_spec_.label = label;
  }
  config_.data.seed = config_.data.bind.image.seed = config_.optimization.seed;
  if (!data_.train) data_ = open_data(config_.data, data_spec_, raw);
  const OptimizationConfig& optimization = config_.optimization;
  const auto samples = static_cast<std::int64_t>(data_.train->size());
  if (mode_ == SessionMode::kTrain) {
    PT_CHECK(samples >= optimization.batch_size || !optimization.drop_last, kData,
             "{} samples do not fill one batch of {}; use a smaller --batch-size", samples,
             optimization.batch_size);
    PT_CHECK(programs_of_run_->fixed_units() == 0 || optimization.drop_last ||
                 samples % optimization.batch_size == 0,
             kUsage,
             "--schedule {} is written for {} micro-batches, and the last batch of {} samples is "
             "shorter; add --drop-last",
             printable(config_.pipeline.schedule), programs_of_run_->fixed_units(), samples);
    batches_per_epoch_ = optimization.drop_last
                             ? samples / optimization.batch_size
                             : (samples + optimization.batch_size - 1) / optimization.batch_size;
    total_steps_ = optimization.max_steps >= 0 ? optimization.max_steps
                                               : optimization.epochs * batches_per_epoch_;
  }
}

std::vector<std::int64_t> Session::training_batch_sizes() const {
  const std::int64_t batch = config_.optimization.batch_size;
  const auto samples = static_cast<std::int64_t>(data_.train->size());
  std::vector<std::int64_t> sizes;
  if (samples >= batch) sizes.push_back(batch);
  if (!config_.optimization.drop_last && samples % batch != 0) sizes.push_back(samples % batch);
  return sizes;
}
void Session::release_initial_weights() {
  for (auto* list : {&training_, &evaluations_}) {
    for (Variant& variant : *list) {
      for (const Parameter& parameter : variant.graph->parameters)
        variant.graph->graph[parameter.value].data = {};
    }
  }
  for (OnnxModel* model : {&model_.file, &model_.model}) {
    for (OnnxInitializer& initializer : model->initializers) initializer.value = {};
  }
}

const TrainingGraph& Session::graph() const {
  return training_.empty() ? *evaluations_.front().graph : *training_.front().graph;
}

const Dataset* Session::evaluation_data() const {
  return mode_ == SessionMode::kEvaluate ? data_.train.get() : data_.validation.get();
}

bool Session::has_fixed_batch() const {
  return std::any_of(
      model_.model.inputs.begin(), model_.model.inputs.end(),
      [](const OnnxValue& input) { return !input.dims.empty() && input.dims[0].value > 0; });
}

std::vector<std::string> Session::export_model(const std::string& path, bool overwrite_input) {
  if (processes_) {
    return export_weights(
        model_, [&](const std::string& name) { return collected_[name]; },
        describe_training(total_steps_ > 0, data_.synthetic, data_.class_names), path,
        overwrite_input);
  }
  const bool averaged = config_.optimization.optimizer.average_decay > 0;
  if (averaged) runtime_->exchange_averages();
  const auto changes = export_weights(
      model_, [&](const std::string& name) { return runtime_->read(name); },
      describe_training(total_steps_ > 0, data_.synthetic, data_.class_names), path,
      overwrite_input);
  if (averaged) runtime_->exchange_averages();
  return changes;
}

}  // namespace pipetrain
