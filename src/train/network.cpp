#include "train/network.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/index.h"
#include "base/log.h"
#include "base/setting.h"
#include "data/loading/mixed_dataset.h"
#include "data/rows/class_labels.h"
#include "data/rows/element.h"
#include "data/rows/readers.h"
#include "data/rows/synthetic.h"
#include "device/plugin.h"
#include "ops/conv/conv.h"
#include "passes/linearise.h"
#include "processes/process_group.h"
#include "profile/estimate.h"
#include "train/data_shards.h"
#include "train/export.h"
#include "train/given_shapes.h"
#include "train/predict.h"
#include "train/replica_updates.h"
#include "train/sample_weights.h"

namespace pipetrain {
namespace {

/// The column of the labels: the one that --bind names, else by role or name, or named as the
/// output that the loss reads.
const RawColumn* label_column(const RawData& raw, const OnnxModel& model,
                              const BindOptions& options, const LossOptions& loss) {
  const RawColumn* label = nullptr;
  for (const OnnxValue& output : model.outputs) {
    const auto named = std::ranges::find(raw.train.columns, output.name, &RawColumn::name);
    const bool reads = loss.output.empty() ? !label : output.name == loss.output;
    if (reads && named != raw.train.columns.end()) label = &*named;
  }
  const std::vector<RawColumn>& columns = raw.train.columns;
  auto holder = std::ranges::find(columns, LabelSpec{}.name, &RawColumn::name);
  if (holder == columns.end()) holder = std::ranges::find_if(columns, holds_labels);
  if (holder != columns.end()) label = &*holder;
  for (const auto& [target, array] : options.bindings) {
    const auto named = std::ranges::find(raw.train.columns, array, &RawColumn::name);
    if (role_of_name(target) == ColumnRole::kLabel && named != raw.train.columns.end())
      label = &*named;
  }
  return label;
}

/// Whether every row has one 1 and else 0.
bool is_one_hot(const std::vector<double>& values, std::int64_t columns) {
  for (auto row = values.begin(); row != values.end(); row += columns) {
    if (std::count(row, row + columns, 1.0) != 1 ||
        std::count(row, row + columns, 0.0) != columns - 1)
      return false;
  }
  return true;
}

/// Whether a column is the one of an input that takes real numbers: the target of an autoencoder.
bool is_real_input(const RawColumn& column, const RawData& raw, const OnnxModel& model,
                   const BindOptions& options) {
  return std::any_of(model.inputs.begin(), model.inputs.end(), [&](const OnnxValue& input) {
    const std::pair bound(input.name, column.name);
    return is_float(input.dtype) && (input.name == column.name || raw.train.columns.size() == 1 ||
                                     std::ranges::count(options.bindings, bound) > 0);
  });
}

/// Whether the model may take a column of labels as an input: it is called so, or has no other
/// column.
bool may_take_labels(const RawColumn& label, const RawData& raw, const OnnxModel& model,
                     const BindOptions& options) {
  const auto wanted = std::ranges::count_if(model.inputs, [](const OnnxValue& input) {
    ModelInput each;
    each.name = input.name;
    return !known_filling(each);
  });
  return wanted >= std::ranges::ssize(raw.train.columns) ||
         std::ranges::any_of(model.inputs, [&](const OnnxValue& input) {
           const std::pair bound(input.name, label.name);
           return role_of_name(input.name) == ColumnRole::kLabel || input.name == label.name ||
                  std::ranges::count(options.bindings, bound) > 0;
         });
}

/// Whether there are labels, and whether they are 0 or 1, class numbers or real values.
void look_at_labels(const RawData& raw, const OnnxModel& model, const BindOptions& options,
                    LossOptions& loss) {
  const RawColumn* label = label_column(raw, model, options, loss);
  if (!label && raw.train.columns.size() == 1) loss.labels = LabelHint::kNone;
  if (!label || label->source || label->rows() == 0) return;
  const std::int64_t elements = label->sample_shape().count();
  loss.label_elements = elements;
  loss.labels_are_input = may_take_labels(*label, raw, model, options);
  const ValueRange range = range_of(label->values.view().data, label->dtype(),
                                    static_cast<std::size_t>(label->values.type().count()));
  const bool real = is_float(label->dtype());
  const bool small = range.low >= 0 && range.high <= 1;
  loss.labels = real ? LabelHint::kFloat : LabelHint::kInteger;
  if (small || (real && elements == 1)) {
    const std::vector<double> values = label->values.to_doubles();
    // Labels that are no numbers do not come here, or belong to samples that are skipped.
    const bool whole = std::all_of(values.begin(), values.end(), [](double v) {
      return std::isnan(v) || (v == std::floor(v) && v >= 0);
    });
    const bool one_hot = whole && small && elements > 1 && is_one_hot(values, elements);
    if (one_hot) loss.label_elements = 1;
    if (whole) loss.labels = small && !one_hot ? LabelHint::kBinary : LabelHint::kInteger;
  }
  if (loss.labels == LabelHint::kInteger && is_real_input(*label, raw, model, options))
    loss.labels = LabelHint::kFloat;
}

/// The graph. Error (kResource) if only the size of the micro-batch prevents it, not the model.
std::unique_ptr<TrainingGraph> build_at_size(const LoadedModel& model, BuildOptions options) {
  try {
    return std::make_unique<TrainingGraph>(build_training_graph(model.model, model.rules, options));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kModel) throw;
    const std::int64_t samples = options.lower.micro_batch;
    const auto builds = [&](const LowerOptions& lower) {
      options.lower = lower;
      try {
        build_training_graph(model.model, model.rules, options);
      } catch (const Error&) {
        return false;
      }
      return true;
    };
    LowerOptions lower = options.lower;
    lower.micro_batch = std::min<std::int64_t>(samples, 2);
    PT_CHECK(samples <= 2 || !builds(lower), kResource,
             "micro-batches of {} samples are too large: {}", samples, error.message());
    refuse_too_many_tokens(model.model, lower, error, builds);
    throw;
  }
}

/// Learning rates of single tensors, by name. Error (kUsage) for a pattern without a match.
std::map<std::string, ParameterRates> own_rates(const OptimizationConfig& optimization,
                                                const LoadedModel& model) {
  std::map<std::string, ParameterRates> own;
  for (const auto& [name, rule] : model.rules) {
    if (rule.use == TensorUse::kTrained && !rule.decays &&
        has_decoupled_decay(optimization.optimizer.kind))
      own[name].weight_decay = 0;
  }
  const auto each = [&](const std::string& option, const auto& rates, const auto& set) {
    for (const auto& [glob, value] : rates) {
      bool used = false;
      for (const auto& [name, rule] : model.rules) {
        if (!matches_glob(glob, name)) continue;
        used = true;
        if (rule.use == TensorUse::kTrained) set(own[name], value);
      }
      PT_CHECK(used, kUsage,
               "{}: no tensor of the model matches \"{}\"; list them with: pipetrain inspect "
               "{}",
               option, printable(glob), setting("params"));
    }
  };
  each(setting("lr-scale"), optimization.rate_scales,
       [](ParameterRates& rates, double value) { rates.learning_rate_scale = value; });
  each(setting("weight-decay"), optimization.decays,
       [](ParameterRates& rates, double value) { rates.weight_decay = value; });
  return own;
}

/// Shapes of samples that --shape gives, by input.
std::map<std::string, Shape> given_sample_shapes(const ModelConfig& config,
                                                 const OnnxModel& model) {
  check_given_shapes(config, model);
  std::map<std::string, Shape> shapes;
  for (const auto& [name, shape] : config.shapes) {
    shapes[name] = Shape(std::vector<std::int64_t>(shape.begin() + 1, shape.end()));
  }
  return shapes;
}

/// What a graph needs from its data.
DataSpec data_spec_of(const TrainingGraph& graph) {
  DataSpec spec;
  const auto sample_shape = [&](ValueId id) {
    const auto& dims = graph.graph[id].type.shape.dims();
    return Shape(std::vector<std::int64_t>(dims.begin() + 1, dims.end()));
  };
  for (const GraphInput& input : graph.inputs) {
    spec.inputs.push_back({input.name, graph.graph[input.value].type.dtype,
                           sample_shape(input.value), input.upper_bound});
  }
  const Loss& loss = graph.loss;
  if (!loss.label) return spec;
  LabelSpec label;
  // Mixed labels are made of class numbers.
  label.dtype = loss.mixed ? DType::kInt64 : graph.graph[loss.label].type.dtype;
  label.sample_shape = loss.mixed ? Shape{} : sample_shape(loss.label);
  label.output = loss.output;
  label.classes = loss.classes;
  label.shifted_input = loss.kind == LossKind::kCausalLm;
  label.probability = loss.kind == LossKind::kBinaryCrossEntropy;
  label.ignore_index = loss.ignore_index;
  spec.label = label;
  return spec;
}

}  // namespace

Network::Network(const RunConfig& config, RunMode mode, ProcessGroup* processes,
                 const Network* same_data)
    : config_(config_of_replica(config, mode)),
      mode_(mode),
      processes_(config_.pipeline.replica_updates.waits() ? processes : nullptr),
      replica_processes_(processes_ ? nullptr : processes),
      schedule_(config_.pipeline),
      cores_(share_cores(config_.pipeline,
                         std::max(schedule_.devices(), config_.pipeline.replica_updates.replicas),
                         processes)),
      model_(same_data ? same_data->model_ : load_model(config.model, config.optimization.seed)),
      loss_(config.model.loss) {
  config_.optimization.optimizer.own = own_rates(config_.optimization, model_);
  sample_shapes_ = given_sample_shapes(config_.model, model_.model);
  open_data_and_graph(same_data);
  // What is measured must not decide it: another number of threads may change bits.
  if (config.pipeline.threads == 0 && config.pipeline.backend == Backend::kCpu)
    cores_.threads = useful_threads(*graph_, cores_.threads);
  if (mode_ == RunMode::kTrain) count_steps();
}

/// A source is read before the graph is built, which may depend on its shapes, and bound to it
/// afterwards.
void Network::open_data_and_graph(const Network* same_data) {
  std::optional<RawData> raw;
  std::vector<std::vector<std::string>> shard_files;  // by replica; empty: all read all data
  config_.data.seed = config_.data.bind.image.seed = config_.optimization.seed;
  choose_micro_batch();
  if (config_.data.shard_files && !same_data) {
    shard_files = files_of_replicas(config_, schedule_, micro_batch_, processes_);
    config_.optimization.drop_last = true;
  }
  if (same_data) {
    data_ = same_data->data_;
    loss_ = same_data->loss_;
    sample_shapes_ = same_data->sample_shapes_;
  } else if (config_.data.path != "synthetic") {
    if (mode_ == RunMode::kEvaluate) {
      if (const std::string taken = follow_training(model_.file.metadata, config_); !taken.empty())
        log_info("eval", "note     {}", taken);
      loss_ = config_.model.loss;
    }
    constexpr int kWhite = 255;  // of masks: a class, unless such pixels are ignored
    config_.data.masks_are_drawings &= config_.model.loss.ignore_index != kWhite;
    config_.data.text.ignored_label = config_.model.loss.ignore_index;
    take_token_lengths(model_.model, config_.model, config_.data.text);
    config_.data.text.one_label_per_text =
        !model_.model.outputs.empty() && model_.model.outputs[0].dims.size() == 2;
    raw = read_source(shard_files.empty() ? config_.data.path : first_file_here(shard_files),
                      config_.data);
    if (mode_ == RunMode::kEvaluate) {
      if (!raw->validation.empty())
        log_info("eval",
                 "note     the training part of the data is evaluated, not the validation part");
      // Other data may lack a class: class numbers are those of training.
      const std::vector<std::string> known = trained_classes(model_.file);
      for (RawSplit* split : {&raw->train, &raw->validation}) {
        for (RawColumn& column : split->columns) follow_class_names(column, known);
      }
    }
    loss_.has_data = true;
    if (loss_.labels == LabelHint::kUnknown)
      look_at_labels(*raw, model_.model, config_.data.bind, loss_);
    for (auto& [name, shape] :
         shapes_of_samples(model_.model, *raw, config_.model.output_node,
                           config_.model.image_shapes, config_.data.bind.bindings))
      sample_shapes_.emplace(name, shape);
  } else if (loss_.labels == LabelHint::kUnknown) {
    loss_.labels = LabelHint::kGenerated;
  }
  graph_ = build_at_size(model_, build_options(micro_batch_, mode_ == RunMode::kEvaluate));
  loss_.loss = std::string(name_of(graph_->loss.kind));
  if (!shard_files.empty()) {
    data_ = open_shards(config_, data_spec_of(*graph_), *raw, shard_files, schedule_, processes_);
  } else if (!data_.train) {
    data_ = open_data(config_.data, data_spec_of(*graph_), raw ? &*raw : nullptr);
  }
  if (!loss_.balanced_classes || mode_ == RunMode::kEvaluate) return;
  loss_.class_weights =
      balanced_class_weights(*data_.train, graph_->loss.classes, graph_->loss.ignore_index);
  config_.model.loss.class_weights = loss_.class_weights;
  graph_ = build_at_size(model_, build_options(micro_batch_, /*evaluation=*/false));
}

std::string Network::first_file_here(const std::vector<std::vector<std::string>>& files) const {
  const int replicas = static_cast<int>(files.size());
  int mine = 0;
  while (!has_replica(mine, replicas, schedule_, processes_)) ++mine;
  return files[at(mine)].front();
}

BuildOptions Network::build_options(std::int64_t samples, bool evaluation) const {
  BuildOptions options;
  options.lower.micro_batch = samples;
  options.lower.dims = config_.model.dims;
  options.lower.sample_shapes = sample_shapes_;
  options.lower.output_node = config_.model.output_node;
  options.lower.mode = {!evaluation, config_.model.batch_norm, config_.model.dropout};
  options.loss = loss_;
  // Label smoothing and the like are not part of evaluation.
  if (evaluation) options.loss.label_smoothing = 0;
  if (evaluation) options.loss.class_weights.clear();
  options.loss.mixed_labels = !evaluation && config_.data.bind.image.augmentation.mixing().any();
  options.with_gradients = !evaluation;
  options.precision = config_.model.precision;
  const bool on_gpu = !config_.pipeline.gpu_ids.empty();
  const bool on_cpu = config_.pipeline.backend == Backend::kCpu && !on_gpu;
  if (on_cpu) options.feature_map_layout = convolution_layout();
  // Tensor cores, which strict float32 does not use, need the channels-last layout.
  const bool tensor_cores =
      config_.model.precision != DType::kFloat32 || config_.model.tensor_floats;
  if (on_gpu && tensor_cores) options.feature_map_layout = Layout::kChannelsLast;
  if (on_cpu) {
    const std::int64_t most = most_micro_batches_of_replica();
    options.pack_weights = most > 1;
    // A product for several micro-batches would belong to several leaves of a tree of sums.
    const bool apart = asynchronous() || config_.pipeline.accumulators > 0;
    options.micro_batches_of_step = apart || most == 1 ? 1 : micro_batches_;
  }
  options.expand_for_gpus = on_gpu;
  options.fusion = on_gpu ? FusionTarget::kGpu : on_cpu ? FusionTarget::kCpu : FusionTarget::kNone;
  return options;
}

std::unique_ptr<TrainingGraph> Network::graph_of(std::int64_t samples, bool evaluation) const {
  BuildOptions options = build_options(samples, evaluation);
  options.first = graph_.get();
  const auto size = [&] {
    return fmt::format("building the network for a micro-batch of {} instead of {} (see {})",
                       samples, graph_->micro_batch, setting("drop-last"));
  };
  auto graph = evaluation ? build_at_size(model_, options)
                          : with_context(size, [&] { return build_at_size(model_, options); });
  if (evaluation || has_same_nodes(*graph, *graph_)) return graph;
  // Other weights may pay to be packed.
  options.pack_weights = false;
  graph = build_at_size(model_, options);
  if (has_same_groups(*graph, *graph_)) return graph;
  // Shapes may fuse differently (one sample broadcasts); a cut must not go through a fused node.
  options.fusion = FusionTarget::kNone;
  return build_at_size(model_, options);
}

void Network::count_steps() {
  const OptimizationConfig& optimization = config_.optimization;
  const std::int64_t samples = epoch_samples();
  PT_CHECK(samples >= optimization.batch_size || !optimization.drop_last, kData,
           "{} samples do not fill one batch of {}; use a smaller {}", samples,
           optimization.batch_size, setting("batch-size"));
  PT_CHECK(schedule_.fixed_units() == 0 || optimization.drop_last ||
               samples % optimization.batch_size == 0,
           kUsage,
           "{} {} is written for {} micro-batches, and the last batch of {} samples is "
           "smaller; add {}",
           setting("schedule"), printable(config_.pipeline.schedule), schedule_.fixed_units(),
           samples, setting("drop-last"));
  batches_per_epoch_ = optimization.drop_last
                           ? samples / optimization.batch_size
                           : (samples + optimization.batch_size - 1) / optimization.batch_size;
  total_steps_ = optimization.max_steps;
  PT_CHECK(optimization.max_steps >= 0 ||
               !__builtin_mul_overflow(optimization.epochs, batches_per_epoch_, &total_steps_),
           kUsage, "{} {} of {} steps are more than a number can count; give fewer",
           setting("epochs"), optimization.epochs, batches_per_epoch_);
}

std::int64_t Network::epoch_samples() const {
  const std::vector<std::size_t>& shards = data_.shard_samples;
  if (shards.empty()) return static_cast<std::int64_t>(data_.train->size());
  return static_cast<std::int64_t>(*std::ranges::min_element(shards) * shards.size());
}

std::vector<std::int64_t> Network::batch_sizes() const {
  const std::int64_t batch = samples_of_part(config_);
  const std::int64_t samples = epoch_samples();
  std::vector<std::int64_t> sizes;
  if (samples >= batch) sizes.push_back(batch);
  if (!config_.optimization.drop_last && samples % batch != 0) sizes.push_back(samples % batch);
  return sizes;
}

std::multimap<std::string, HostTensor*> Network::initial_weights() {
  std::multimap<std::string, HostTensor*> out;
  for (const Parameter& parameter : graph_->parameters)
    out.emplace(parameter.name, &graph_->graph[parameter.value].data);
  const std::set<std::string> exported = initial_values_in_export(model_, graph_->graph);
  for (OnnxModel* model : {&model_.file, &model_.model}) {
    for (OnnxInitializer& initializer : model->initializers) {
      if (!exported.contains(initializer.name)) out.emplace(initializer.name, &initializer.value);
    }
  }
  return out;
}

std::shared_ptr<const Dataset> Network::training_data() const {
  const Mixing& mixing = config_.data.bind.image.augmentation.mixing();
  if (!mixing.any()) return data_.train;
  const Loss& loss = graph_->loss;
  return std::make_shared<MixedDataset>(
      data_.train, mixing, config_.optimization.seed,
      MixedLabels{loss.classes, loss.classes < 0 ? 0 : config_.model.loss.label_smoothing,
                  loss.ignore_index});
}

const Dataset* Network::evaluation_data() const {
  return mode_ == RunMode::kEvaluate ? data_.train.get() : data_.validation.get();
}

bool Network::leads() const { return !all_processes() || all_processes()->leads(); }

int Network::process_of(int device) const {
  return pipetrain::process_of(device, schedule_.devices(), processes_);
}

bool Network::is_here(int device) const {
  return !processes_ || process_of(device) == processes_->rank();
}

int Network::units_of(std::int64_t samples) const {
  return static_cast<int>((samples + micro_batch_ - 1) / micro_batch_);
}

std::int64_t Network::most_micro_batches_of_replica() const {
  const std::vector<int>& replicas = config_.pipeline.replicas;
  // With accumulators, bits must not depend on the number of replicas.
  if (replicas.empty() || config_.pipeline.accumulators > 0) return micro_batches_;
  const std::int64_t least = std::ranges::min(replicas);
  return (micro_batches_ + least - 1) / least;
}

std::int64_t Network::round_batches(std::int64_t first_step) const {
  return std::min(batches_per_epoch_ - first_step % batches_per_epoch_, total_steps_ - first_step);
}

std::int64_t Network::samples_of_step(std::int64_t step) const {
  const std::vector<std::int64_t> sizes = batch_sizes();
  return (step + 1) % batches_per_epoch_ == 0 ? sizes.back() : sizes.front();
}

int Network::round_units(std::int64_t first_step) const {
  const std::int64_t before = round_batches(first_step) - 1;
  return static_cast<int>(before * micro_batches_) + units_of(samples_of_step(first_step + before));
}

TakeMemory Network::batch_memory() const {
  if (config_.pipeline.gpu_ids.empty()) return {};
  std::size_t mine = 0;  // of this process's GPUs the first
  while (!is_here(static_cast<int>(mine))) ++mine;
  return [&gpu = cuda_plugin().open(config_.pipeline.gpu_ids[mine])](std::size_t bytes) {
    auto memory = std::make_shared<DeviceMemory>(gpu.allocate_on_host(bytes));
    return std::shared_ptr<std::byte>(memory, memory->data());
  };
}

LossScaling Network::loss_scaling() const {
  const bool half = config_.model.precision == DType::kFloat16;
  if (half && config_.optimization.loss_scale == 0) return adapting_loss_scale();
  LossScaling fixed;
  if (half) fixed.initial = config_.optimization.loss_scale;
  fixed.skips = config_.optimization.on_nonfinite == OnNonfinite::kSkip;
  return fixed;
}

std::int64_t evaluation_units(const Network& network) {
  if (!network.evaluation_data()) return 0;
  const auto samples = static_cast<std::int64_t>(network.evaluation_data()->size());
  const std::int64_t units = network.model().has_fixed_batch() ? samples / network.micro_batch()
                                                               : network.units_of(samples);
  PT_CHECK(units > 0, kData, "{} samples are fewer than the model's fixed batch of {}", samples,
           network.micro_batch());
  return units;
}

}  // namespace pipetrain
