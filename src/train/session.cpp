#include "train/session.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/units.h"
#include "device/plugin.h"
#include "onnx_io/reader.h"
#include "onnx_io/writer.h"
#include "ops/conv.h"
#include "partition/order_text.h"
#include "partition/plan_file.h"
#include "partition/topology_file.h"
#include "passes/linearise.h"
#include "passes/written_weights.h"
#include "pipeline/plan_costs.h"
#include "profile/estimate.h"
#include "profile/machine.h"
#include "profile/measure.h"
#include "profile/profile.h"
#include "train/export.h"
#include "train/model_order.h"
#include "train/predict.h"

namespace pipetrain {
namespace {

bool is_label_name(const std::string& name) {
  static const std::set<std::string> names = {"y",      "label",   "labels",
                                              "target", "targets", "y_train"};
  return names.contains(name);
}

/// Whether the labels of a source are class numbers or measurements.
LabelHint label_hint(const RawData& raw) {
  const RawColumn* label = nullptr;
  for (const RawColumn& column : raw.train.columns) {
    if (column.role == ColumnRole::kLabel || is_label_name(column.name)) label = &column;
  }
  if (!label) return LabelHint::kUnknown;
  if (!is_float(label->values.dtype())) return LabelHint::kInteger;
  const std::vector<double> values = label->values.to_doubles();
  const bool whole = std::all_of(values.begin(), values.end(),
                                 [](double v) { return v == std::floor(v) && v >= 0; });
  return whole && label->sample_shape().rank() == 0 ? LabelHint::kInteger : LabelHint::kFloat;
}

/// Whether two graphs have the same operators in the same order.
bool has_same_nodes(const TrainingGraph& one, const TrainingGraph& other) {
  return std::equal(one.graph.nodes.begin(), one.graph.nodes.end(), other.graph.nodes.begin(),
                    other.graph.nodes.end(), [](const Node& a, const Node& b) {
                      return a.op == b.op && a.name == b.name &&
                             a.attributes.text("members", "") == b.attributes.text("members", "");
                    });
}

}  // namespace

std::map<std::string, Shape> shapes_of_samples(const OnnxModel& model, const RawData& raw) {
  std::map<std::string, Shape> out;
  std::vector<const RawColumn*> unnamed;
  for (const RawColumn& column : raw.train.columns) {
    if (column.role != ColumnRole::kLabel && !is_label_name(column.name))
      unnamed.push_back(&column);
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

Session::Session(const RunConfig& config, SessionMode mode)
    : config_(config), mode_(mode), loss_(config.model.loss) {
  programs_of_run_ = std::make_unique<ProgramMaker>(config_.pipeline);
  threads_ = config_.pipeline.threads > 0
                 ? config_.pipeline.threads
                 : std::max(1, available_cores() / programs_of_run_->devices());
}

Session::~Session() = default;

int Session::units_of(std::int64_t samples) const {
  return static_cast<int>((samples + micro_batch_ - 1) / micro_batch_);
}

int Session::batches_in_flight() const {
  const Program& program = *programs_.front();
  const int held = program.replicas(0) * (program.slots_per_stage[0] + 1);
  return (held + static_cast<int>(micro_batches_) - 1) / static_cast<int>(micro_batches_) + 1;
}

void Session::open() {
  model_ = load_model(config_.model);
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
  if (config_.data.path != "synthetic") {
    raw = read_source(config_.data.path, config_.data);
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
  const UpdateRule rule = programs_of_run_->rule();
  const bool whole = rule == UpdateRule::kStash || rule == UpdateRule::kVertical;
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
  // On GPUs everything is row-major so far, and nothing is fused.
  const bool on_cpu = config_.pipeline.backend == Backend::kCpu && config_.pipeline.gpu_ids.empty();
  if (on_cpu) options.picture_layout = convolution_layout();
  options.fuse_elementwise = on_cpu && fuse;
  return std::make_unique<TrainingGraph>(build_training_graph(model_.model, model_.rules, options));
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
  data_ = open_data(config_.data, data_spec_, raw);
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

/// Kernels are not yet measured on GPUs. Cuts depend on ratios: those of a data-centre GPU.
const DeviceSpeed kSomeGpu = {
    .name = "a GPU", .flops_per_second = 40e12, .bytes_per_second = 1.5e12};

void Session::measure() {
  const TrainingGraph& graph = this->graph();
  topology_ = config_.pipeline.topology.empty()
                  ? measured_topology()
                  : std::optional(named_topology(config_.pipeline.topology));
  chain_ = linearise(graph);
  ProfileOptions options;
  options.use_cache = config_.pipeline.profile_cache;
  options.optimizer = config_.optimization.optimizer;
  options.busy_threads =
      std::min(programs_of_run_->devices(), std::max(1, available_cores() / threads_));
  options.brief = config_.pipeline.brief_profile && programs_of_run_->devices() == 1 &&
                  programs_of_run_->stages() == 1 && config_.pipeline.memory_limit_bytes == 0;
  estimated_ = config_.pipeline.profile_path.empty() && config_.pipeline.estimate && topology_ &&
               topology_->flops_per_second > 0 && topology_->memory_bytes_per_second > 0;
  if (estimated_ && config_.pipeline.memory_limit_bytes == 0)
    config_.pipeline.memory_limit_bytes = topology_->memory_bytes;
  if (estimated_) {
    profile_ = estimate_profile(graph, {.name = topology_->name,
                                        .flops_per_second = topology_->flops_per_second,
                                        .bytes_per_second = topology_->memory_bytes_per_second});
  } else if (!config_.pipeline.profile_path.empty()) {
    profile_ = read_profile(config_.pipeline.profile_path, graph);
  } else if (!config_.pipeline.gpu_ids.empty()) {
    profile_ = estimate_profile(graph, kSomeGpu);
  } else {
    profile_ = measure_profile(graph, config_.pipeline.backend, threads_, options);
  }
  costs_ = chain_costs(graph, chain_, profile_);
  choose_order();
}

void Session::take_measured(const KernelTimes& times, double update_seconds) {
  PT_CHECK(stages() == 1, kInternal, "the cut of {} stages may depend on their profile", stages());
  if (times.units == 0 || times.seconds.size() != profile_.node_seconds.size()) return;
  std::size_t bytes = 0;
  for (const Parameter& parameter : graph().parameters) {
    if (parameter.gradient) bytes += graph().graph[parameter.value].type.bytes();
  }
  for (std::size_t n = 0; n < times.seconds.size(); ++n) {
    const Part part = graph().graph.nodes[n].part;
    const bool once = part == Part::kPrepare || part == Part::kFinish;
    profile_.node_seconds[n] = times.seconds[n] / (once ? 1 : static_cast<double>(times.units));
  }
  // Adding to the accumulators is in the kernels' seconds.
  profile_.accumulate_seconds_per_byte = 0;
  profile_.update_seconds_per_byte = bytes ? update_seconds / static_cast<double>(bytes) : 0;
  profile_.is_estimate = false;
  costs_ = chain_costs(graph(), chain_, profile_);
  cut_into_stages();
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

/// Puts the nodes into the order of the plan that is followed, or into one that is better cut. No
/// number that is trained depends on it.
void Session::choose_order() {
  const PipelineConfig& pipeline = config_.pipeline;
  order_.clear();
  if (!pipeline.plan_path.empty()) {
    const std::string order = read_plan_outline(pipeline.plan_path).order;
    if (order.empty()) return;
    with_context([&] { return "following " + printable(pipeline.plan_path); },
                 [&] { take_order(parse_order(order, static_cast<int>(chain_.order.size()))); });
  } else if (!pipeline.order.empty()) {
    take_order(pipeline.order);
  } else if (pipeline.split.empty() && pipeline.cuts.empty() && mode_ == SessionMode::kTrain) {
    PlanRequest request;
    request.stages = programs_of_run_->stages();
    if (!can_reorder(costs_, request.stages)) return;
    request.micro_batches = static_cast<int>(micro_batches_);
    request.optimizer_bytes_per_parameter_byte = kept_slots(config_.optimization.optimizer);
    request.loads = programs_of_run_->loads(request.micro_batches);
    request.recompute = pipeline.recompute;
    if (topology_ && !topology_->levels.empty()) {
      request.transfer = {topology_->levels.front().latency_seconds,
                          topology_->levels.front().bytes_per_second};
    }
    take_order(better_order(graph(), profile_, chain_, costs_, request));
  }
}

void Session::add_notes() {
  if (!config_.pipeline.gpu_ids.empty() && config_.pipeline.profile_path.empty())
    plan_.notes.emplace_back(
        "what the nodes cost on a GPU is estimated from operations and bytes, not measured");
  if (!order_.empty())
    plan_.notes.emplace_back(
        "the nodes are cut in another order than the file's, which is in the plan");
  if (config_.pipeline.topology.empty() && topology_ &&
      std::any_of(plan_.stages.begin(), plan_.stages.end(),
                  [](const StagePlan& stage) { return stage.replicas > 1; })) {
    plan_.notes.emplace_back(
        "sums of gradients over replicas are priced at the speed at which two threads copy; while "
        "all are busy they take longer (doctor --measure tells both)");
  }
}

void Session::take_order(std::vector<int> order) {
  if (order.empty() || order == order_of(graph(), chain_)) return;
  chain_ = chain_in_order(graph(), order);
  costs_ = chain_costs(graph(), chain_, profile_);
  order_ = std::move(order);
}

void Session::plan() {
  if (costs_.elements.empty()) measure();
  const PipelineConfig& pipeline = config_.pipeline;
  // The planner sums up its elements; what the devices really hold is known when it is laid out. If
  // that is too much, the planner gets so much less.
  planner_limit_ = pipeline.memory_limit_bytes;
  const bool planned = pipeline.plan_path.empty() && pipeline.split.empty();
  cut_into_stages();
  for (int attempt = 0; planned && attempt < 8 && memory_excess() > 0; ++attempt) {
    const std::size_t excess = memory_excess() + planner_limit_ / 64;
    if (excess >= planner_limit_) break;
    planner_limit_ -= excess;
    config_.pipeline.cuts.clear();
    try {
      cut_into_stages();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kResource) throw;
      break;  // what was laid out last says it better
    }
  }
  PT_CHECK(memory_excess() == 0, kResource,
           "a device would hold {} more than --gpu-memory, which is {}; try more stages, "
           "--recompute all, smaller micro-batches or a higher limit",
           bytes_text(memory_excess()), bytes_text(pipeline.memory_limit_bytes));
}

void Session::cut_into_stages() {
  const TrainingGraph& graph = this->graph();
  plan_stages_of_chain();
  add_notes();

  std::vector<int> starts = {0};
  for (const int cut : plan_.cuts()) starts.push_back(cut);
  stage_of_forward_ = stages_of_chain(graph, chain_, starts);
  const Slices slices = slice_stages(graph, stage_of_forward_, stages());
  std::vector<Edge> edges;
  for (const ValueEdge& edge : slices.edges) {
    edges.push_back({edge.from, edge.to, static_cast<std::int64_t>(edge.bytes), edge.gradient});
  }
  const bool gradient_sync = slices.has_tied_stages || config_.optimization.clip_norm > 0;
  PT_CHECK(
      !asynchronous() || !gradient_sync || stages() == 1, kUsage,
      "--schedule {} updates each stage on its own, which {} does not allow; use 1f1b or gpipe",
      config_.pipeline.schedule,
      slices.has_tied_stages ? "a weight shared by several stages" : "--clip-norm");

  simulated_costs_ = costs_of_plan(plan_, costs_, static_cast<int>(micro_batches_));
  if (topology_ && !topology_->levels.empty())
    simulated_costs_.link.latency_seconds = topology_->levels.front().latency_seconds;
  programs_of_run_->set_plan(plan_, std::move(edges), simulated_costs_, gradient_sync,
                             static_cast<int>(micro_batches_));
  // An asynchronous round is long: some of it, with the pipeline full, tells the rate.
  const int mini_batches = asynchronous() ? std::max(4 * stages(), 16) : 1;
  predicted_program_ = programs_of_run_->training(mini_batches * static_cast<int>(micro_batches_));
  if (estimated_) set_links();
  prediction_ = simulate(predicted_program_, simulated_costs_);
  const std::vector<StageCapacity> capacity = stage_capacities({&predicted_program_});
  predicted_memory_.clear();
  for (int s = 0; s < stages(); ++s) {
    predicted_memory_.push_back(
        predict_arena(graph, slices, s, capacity[static_cast<std::size_t>(s)],
                      config_.optimization.optimizer, profile_.workspace_bytes));
  }
}

/// Gives every edge the link between its devices. (In one process values stay where they are: there
/// only the hand-over takes time.)
void Session::set_links() {
  for (const Edge& edge : predicted_program_.edges) {
    // Of replicas the two that are farthest apart.
    int level = -1;
    for (const int from : predicted_program_.placement[static_cast<std::size_t>(edge.from_stage)]) {
      for (const int to : predicted_program_.placement[static_cast<std::size_t>(edge.to_stage)])
        level = std::max(level, topology_->common_level(from, to));
    }
    if (level < 0) {
      simulated_costs_.edge_link.emplace_back();
      continue;
    }
    const TopologyLevel& link = topology_->levels[static_cast<std::size_t>(level)];
    simulated_costs_.edge_link.push_back({link.latency_seconds, link.bytes_per_second});
  }
}

/// Bytes by which the fullest device is over the limit.
std::size_t Session::memory_excess() const {
  const std::size_t limit = config_.pipeline.memory_limit_bytes;
  if (limit == 0 || estimated_) return 0;  // what is not here is not laid out
  std::vector<std::size_t> bytes(static_cast<std::size_t>(devices()), 0);
  for (int s = 0; s < stages(); ++s) {
    for (const int device : predicted_program_.placement[static_cast<std::size_t>(s)])
      bytes[static_cast<std::size_t>(device)] += predicted_memory(s).total();
  }
  const std::size_t most = *std::max_element(bytes.begin(), bytes.end());
  return most > limit ? most - limit : 0;
}

void Session::plan_stages_of_chain() {
  PlanRequest& request = plan_request_;
  request.stages = programs_of_run_->stages();
  request.micro_batches = static_cast<int>(micro_batches_);
  request.schedule = config_.pipeline.schedule;
  request.memory_limit_bytes =
      planner_limit_ * static_cast<std::size_t>(programs_of_run_->devices()) /
      static_cast<std::size_t>(std::max(request.stages, programs_of_run_->devices()));
  request.optimizer_bytes_per_parameter_byte = kept_slots(config_.optimization.optimizer);
  request.recompute = config_.pipeline.recompute;
  if (topology_ && !topology_->levels.empty()) {
    request.transfer = {topology_->levels.front().latency_seconds,
                        topology_->levels.front().bytes_per_second};
  }
  const std::vector<int>& replicas = config_.pipeline.replicas;
  if (!config_.pipeline.plan_path.empty()) {
    plan_ = plan_of_choice(costs_, request,
                           read_plan(config_.pipeline.plan_path, element_names(costs_)));
    return;
  }
  if (config_.pipeline.plan_replicas) {
    request.stages = 0;
    request.devices = config_.pipeline.devices;
    if (topology_) request.topology = first_devices(*topology_, request.devices);
    plan_ = plan_devices(costs_, request);
    return;
  }
  request.loads = programs_of_run_->loads(request.micro_batches);
  std::vector<int> cuts = config_.pipeline.cuts;
  if (!config_.pipeline.split.empty()) {
    const std::vector<std::string> names = element_names(costs_);
    for (const std::string& name : config_.pipeline.split)
      cuts.push_back(find_element(names, name));
  } else if (cuts.empty()) {
    // A stage of r devices gets r times the work.
    request.topology.device_speed.assign(replicas.begin(), replicas.end());
    plan_ = plan_stages(costs_, request);
    request.topology.device_speed.clear();
    if (replicas.empty()) return;
    cuts = plan_.cuts();
  }
  std::vector<DeviceRange> places;
  for (const int count : replicas)
    places.push_back({places.empty() ? 0 : places.back().first + places.back().count, count});
  // The closed forms know of replicas, what one program holds does not.
  if (!places.empty()) request.loads.clear();
  plan_ = plan_with_cuts(costs_, request, cuts, {}, places);
}

int Session::processors() const {
  return estimated_ ? 0 : std::max(1, available_cores() / threads_);
}

bool Session::shares_cores() const {
  return !estimated_ && devices() * threads_ > available_cores();
}

double Session::predicted_step_seconds() const {
  const double simulated = asynchronous()
                               ? prediction_.unit_period * static_cast<double>(micro_batches_)
                               : prediction_.makespan;
  if (!shares_cores()) return simulated;
  double work = 0;
  for (const StagePlan& stage : plan_.stages) {
    const double backward = stage.backward_seconds + (stage.recompute ? stage.forward_seconds : 0);
    work += (stage.forward_seconds + backward + stage.step_seconds) *
            static_cast<double>(micro_batches_);
  }
  return std::max(simulated, work * threads_ / available_cores());
}

void Session::add_variant(std::vector<Variant>& variants, std::int64_t samples, bool evaluation) {
  if (samples <= 0) return;
  for (const Variant& variant : variants) {
    if (variant.samples == samples) return;
  }
  auto graph = build(samples, !evaluation, !evaluation);
  // Shapes may fuse differently (one sample broadcasts); a cut must not go through a fused node.
  if (!evaluation && !has_same_nodes(*graph, this->graph()))
    graph = build(samples, true, true, /*fuse=*/false);
  variants.push_back({samples, evaluation, std::move(graph)});
}

void Session::add_training_programs(std::int64_t first_step) {
  std::set<int> units;
  for (const std::int64_t size : training_batch_sizes()) {
    if (size >= micro_batch_) add_variant(training_, micro_batch_, false);
    add_variant(training_, size % micro_batch_, false);
    units.insert(units_of(size));
  }
  if (asynchronous()) {
    // From where it begins to the end of the epoch, whole epochs, and up to the end of the run.
    units.clear();
    const std::int64_t second = first_step + round_batches(first_step);
    const std::int64_t last = total_steps_ / batches_per_epoch_ * batches_per_epoch_;
    for (const std::int64_t begin : {first_step, second, last}) {
      if (begin >= first_step && begin < total_steps_) units.insert(round_units(begin));
    }
    if (units.empty()) units.insert(static_cast<int>(micro_batches_));
  }
  for (const int count : units)
    programs_.push_back(std::make_unique<Program>(programs_of_run_->training(count)));
}

std::int64_t Session::round_batches(std::int64_t first_step) const {
  return std::min(batches_per_epoch_ - first_step % batches_per_epoch_, total_steps_ - first_step);
}

int Session::round_units(std::int64_t first_step) const {
  const std::int64_t batch = config_.optimization.batch_size;
  const auto samples = static_cast<std::int64_t>(data_.train->size());
  const std::int64_t mini_batches = round_batches(first_step);
  const bool short_end = (first_step + mini_batches) % batches_per_epoch_ == 0 &&
                         !config_.optimization.drop_last && samples % batch != 0;
  return static_cast<int>((mini_batches - 1) * micro_batches_) +
         (short_end ? units_of(samples % batch) : static_cast<int>(micro_batches_));
}

void Session::add_evaluation_programs() {
  const Dataset* dataset = evaluation_data();
  if (!dataset) return;
  const auto samples = static_cast<std::int64_t>(dataset->size());
  if (samples >= micro_batch_) add_variant(evaluations_, micro_batch_, true);
  if (!has_fixed_batch()) add_variant(evaluations_, samples % micro_batch_, true);
  const std::int64_t units = has_fixed_batch() ? samples / micro_batch_ : units_of(samples);
  PT_CHECK(units > 0, kData, "{} samples are fewer than the model's fixed batch of {}", samples,
           micro_batch_);
  // Evaluated in rounds, so that only a round's samples are in memory.
  constexpr std::int64_t kRound = 64;
  evaluated_samples_ = std::min(samples, units * micro_batch_);
  for (const std::int64_t size : {std::min(units, kRound), units % std::min(units, kRound)}) {
    if (size == 0) continue;
    evaluation_programs_.push_back(
        std::make_unique<Program>(programs_of_run_->evaluation(static_cast<int>(size))));
  }
}

void Session::start(std::int64_t first_step) {
  if (mode_ == SessionMode::kTrain) add_training_programs(first_step);
  add_evaluation_programs();
  std::vector<const Program*> programs;
  for (const auto* list : {&programs_, &evaluation_programs_}) {
    for (const auto& program : *list) programs.push_back(program.get());
  }
  PT_CHECK(!programs.empty(), kData, "there is nothing to run");

  check_weights_are_written(graph());
  runtime_ = std::make_unique<Runtime>(runtime_variants(), std::move(programs), runtime_options());
}

std::vector<RuntimeVariant> Session::runtime_variants() const {
  std::vector<RuntimeVariant> variants;
  for (const auto* list : {&training_, &evaluations_}) {
    for (const Variant& variant : *list) {
      variants.push_back(
          {variant.graph.get(), carry_stages(graph(), stage_of_forward_, *variant.graph)});
    }
  }
  return variants;
}

RuntimeOptions Session::runtime_options() const {
  RuntimeOptions options;
  options.backend = config_.pipeline.backend;
  options.threads = threads_;
  options.pin = config_.pipeline.pin;
  options.optimizer = config_.optimization.optimizer;
  options.clip_norm = config_.optimization.clip_norm;
  options.seed = config_.optimization.seed;
  options.timeout_seconds = config_.pipeline.timeout_seconds;
  for (const int id : config_.pipeline.gpu_ids) {
    options.devices.push_back(&cuda_plugin().open(id));
    options.devices.back()->allow_tensor_floats(config_.model.tensor_floats);
  }
  return options;
}

bool Session::has_replicas() const {
  return std::any_of(predicted_program_.placement.begin(), predicted_program_.placement.end(),
                     [](const auto& devices) { return devices.size() > 1; });
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

const Program& Session::program(int units) const {
  for (const auto& program : programs_) {
    if (program->units == units) return *program;
  }
  PT_FAIL(kInternal, "no program for {} micro-batches", units);
}

const Program& Session::evaluation_program(std::int64_t remaining) const {
  for (const auto& program : evaluation_programs_) {
    if ((remaining + micro_batch_ - 1) / micro_batch_ >= program->units) return *program;
  }
  PT_FAIL(kInternal, "no program evaluates {} samples", remaining);
}

int Session::variant(std::int64_t samples, bool evaluation) const {
  int index = 0;
  for (const auto* list : {&training_, &evaluations_}) {
    for (const Variant& variant : *list) {
      if (variant.samples == samples && variant.evaluation == evaluation) return index;
      ++index;
    }
  }
  PT_FAIL(kInternal, "no network for micro-batches of {} samples", samples);
}

std::vector<std::string> Session::export_model(const std::string& path, bool overwrite_input) {
  const bool averaged = config_.optimization.optimizer.average_decay > 0;
  if (averaged) runtime_->exchange_averages();
  const auto changes = export_weights(
      model_, [&](const std::string& name) { return runtime_->read(name); },
      data_.synthetic && total_steps_ > 0, path, overwrite_input);
  if (averaged) runtime_->exchange_averages();
  return changes;
}

}  // namespace pipetrain
