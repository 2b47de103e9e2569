#include "train/pipeline_run.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "device/plugin.h"
#include "passes/linearise.h"
#include "passes/written_weights.h"
#include "processes/process_group.h"
#include "tensor/finite.h"
#include "train/export.h"
#include "train/replica_updates.h"

namespace pipetrain {
namespace {

/// How many micro-batches a device has at most between its first and last instruction of stage 0,
/// which is how long their data are used.
int most_open_micro_batches(const Program& program) {
  std::size_t most = 0;
  for (const auto& list : program.device) {
    std::map<int, int> left;  // [micro-batch]: instructions
    const auto is_first_stages = [](const Instruction& instruction) {
      return is_compute(instruction.kind) && instruction.stage == 0;
    };
    for (const Instruction& instruction : list) {
      if (is_first_stages(instruction)) ++left[instruction.micro_batch];
    }
    std::set<int> open;
    for (const Instruction& instruction : list) {
      if (!is_first_stages(instruction)) continue;
      open.insert(instruction.micro_batch);
      most = std::max(most, open.size());
      if (--left[instruction.micro_batch] == 0) open.erase(instruction.micro_batch);
    }
  }
  return static_cast<int>(most);
}

/// NCCL. Error (kResource), with advice, where it cannot be used.
Collectives& nccl(const std::string& advice) {
  try {
    return cuda_plugin().collectives();
  } catch (const Error& error) {
    throw Error(error.kind(), error.message() + "; " + advice);
  }
}

/// How GPUs exchange values; null: by copies. Direct copies need no multiprocessors, so NCCL is
/// only used if GPUs cannot copy from each other, or on request.
Collectives* exchange_of_gpus(const PipelineConfig& pipeline, bool in_one_order) {
  const std::set<int> ids(pipeline.gpu_ids.begin(), pipeline.gpu_ids.end());
  if (ids.size() < 2 || pipeline.edge == "copy" || in_one_order) return nullptr;
  if (pipeline.edge == "nccl")
    return &nccl(fmt::format("without it leave out {} nccl", setting("edge")));
  for (const int from : ids) {
    for (const int to : ids) {
      if (from == to || cuda_plugin().reaches(from, to)) continue;
      try {
        return &cuda_plugin().collectives();
      } catch (const Error& error) {
        log_info("gpu", "GPU {} cannot copy from GPU {}, and {}; copies go through the host", to,
                 from, error.message());
        return nullptr;
      }
    }
  }
  return nullptr;
}

}  // namespace

PipelineRun::PipelineRun(PlannedNetwork& network, std::int64_t first_step, FileWeights weights)
    : network_(network) {
  const bool trains = network_.mode() == RunMode::kTrain;
  (trains ? training_ : evaluations_)
      .push_back({network_.micro_batch(), !trains, &network_.graph(), nullptr});
  if (trains) add_training_programs(first_step);
  add_evaluation_programs();
  std::vector<const Program*> programs;
  for (const auto* list : {&programs_, &evaluation_programs_}) {
    for (const auto& program : *list) programs.push_back(program.get());
  }
  PT_CHECK(!programs.empty(), kData, "there is nothing to run");

  check_weights_are_written(network_.graph());
  if (network_.all_processes()) check_agreement(*network_.all_processes(), network_, programs);
  RuntimeOptions options = runtime_options();
  std::multimap<std::string, HostTensor*> to_release;
  if (weights == FileWeights::kRelease) {
    to_release = initial_weights();
    options.has_copied = [&to_release](const std::string& name) {
      const auto [first, last] = to_release.equal_range(name);
      for (auto at = first; at != last; ++at) *at->second = {};
    };
  }
  runtime_ = std::make_unique<Runtime>(runtime_variants(), std::move(programs), options);
  if (weights == FileWeights::kRelease) release_initial_weights();
}

PipelineRun::~PipelineRun() = default;

void PipelineRun::add_variant(std::int64_t samples, bool evaluation) {
  if (samples <= 0) return;
  std::vector<Variant>& variants = evaluation ? evaluations_ : training_;
  for (const Variant& variant : variants) {
    if (variant.samples == samples) return;
  }
  std::unique_ptr<TrainingGraph> graph = network_.graph_of(samples, evaluation);
  const TrainingGraph* made = graph.get();
  variants.push_back({samples, evaluation, made, std::move(graph)});
}

void PipelineRun::add_training_programs(std::int64_t first_step) {
  std::set<int> units;
  for (const std::int64_t size : network_.batch_sizes()) {
    if (size >= network_.micro_batch()) add_variant(network_.micro_batch(), false);
    add_variant(size % network_.micro_batch(), false);
    units.insert(network_.units_of(size));
  }
  if (network_.asynchronous()) {
    // From where it begins to the end of the epoch, whole epochs, and up to the end of the run.
    units.clear();
    const std::int64_t second = first_step + network_.round_batches(first_step);
    const std::int64_t last =
        network_.total_steps() / network_.batches_per_epoch() * network_.batches_per_epoch();
    for (const std::int64_t begin : {first_step, second, last}) {
      if (begin >= first_step && begin < network_.total_steps())
        units.insert(network_.round_units(begin));
    }
    if (units.empty()) units.insert(static_cast<int>(network_.micro_batches()));
  }
  if (training_.size() > 1) training_edges_ = edges_of(training_);
  for (const int count : units)
    programs_.push_back(std::make_unique<Program>(training_program(count)));
}

void PipelineRun::add_evaluation_programs() {
  const std::int64_t units = evaluation_units(network_);
  if (units == 0) return;
  const auto samples = static_cast<std::int64_t>(network_.evaluation_data()->size());
  if (samples >= network_.micro_batch()) add_variant(network_.micro_batch(), true);
  if (!network_.model().has_fixed_batch()) add_variant(samples % network_.micro_batch(), true);
  constexpr std::int64_t kRound = kEvaluationRound;
  evaluated_samples_ = std::min(samples, units * network_.micro_batch());
  const std::vector<Edge> edges = edges_of(evaluations_);
  for (const std::int64_t size : {std::min(units, kRound), units % std::min(units, kRound)}) {
    if (size == 0) continue;
    evaluation_programs_.push_back(
        std::make_unique<Program>(network_.programs().evaluation(static_cast<int>(size), edges)));
  }
}

std::vector<Edge> PipelineRun::edges_of(const std::vector<Variant>& variants) const {
  std::vector<Edge> edges;
  for (const Variant& variant : variants) {
    const std::vector<int> stages =
        carry_stages(network_.graph(), network_.stage_of_forward(), *variant.graph);
    const Slices slices = slice_stages(*variant.graph, stages, network_.stages());
    for (const ValueEdge& edge : slices.edges) {
      const bool known = std::ranges::any_of(edges, [&](const Edge& e) {
        return e.from_stage == edge.from && e.to_stage == edge.to && e.gradient == edge.gradient;
      });
      if (!known) {
        edges.push_back({edge.from, edge.to, static_cast<std::int64_t>(edge.bytes), edge.gradient});
      }
    }
  }
  return edges;
}

std::vector<RuntimeVariant> PipelineRun::runtime_variants() const {
  std::vector<RuntimeVariant> variants;
  for (const auto* list : {&training_, &evaluations_}) {
    for (const Variant& variant : *list) {
      variants.push_back({variant.graph, carry_stages(network_.graph(), network_.stage_of_forward(),
                                                      *variant.graph)});
    }
  }
  return variants;
}

RuntimeOptions PipelineRun::runtime_options() const {
  RuntimeOptions options;
  options.backend = network_.config().pipeline.backend;
  options.threads = network_.threads();
  options.pin = network_.config().pipeline.pin;
  options.optimizer = network_.config().optimization.optimizer;
  options.shard_optimizer = network_.config().pipeline.shard_optimizer;
  options.accumulators = network_.config().pipeline.accumulators;
  options.bfloat16_sums = network_.config().pipeline.bfloat16_sums;
  options.clip_norm = network_.config().optimization.clip_norm;
  options.loss_scaling = network_.loss_scaling();
  options.finds_nonfinite = network_.config().optimization.on_nonfinite != OnNonfinite::kIgnore;
  options.seed = network_.config().optimization.seed;
  options.timeout_seconds = network_.config().pipeline.timeout_seconds;
  for (const int id : network_.config().pipeline.gpu_ids) {
    const auto device = static_cast<int>(options.devices.size());
    if (device == network_.devices()) break;  // the model has fewer stages than there are GPUs
    const bool here = network_.is_here(device);
    options.devices.push_back(here ? &cuda_plugin().open(id) : nullptr);
    if (here) options.devices.back()->allow_tensor_floats(network_.config().model.tensor_floats);
  }
  const bool in_one_order =
      network_.config().pipeline.deterministic && has_many_replicas(network_.predicted_program());
  if (!network_.processes()) {
    options.collectives = exchange_of_gpus(network_.config().pipeline, in_one_order);
  } else if (!options.devices.empty() && network_.config().pipeline.edge != "copy") {
    PT_CHECK(!in_one_order, kUsage,
             "with several processes, NCCL sums the gradients of more than two GPU replicas in an "
             "order that may change from run to run; leave out {}",
             setting("deterministic"));
    options.collectives = &nccl("without it start one process, for the GPUs of one machine");
    options.device_numbers = network_.config().pipeline.gpu_ids;
    options.device_numbers.resize(options.devices.size());
  }
  options.processes = network_.processes();
  options.buckets = network_.bucket_floats();
  for (int device = 0; network_.processes() && device < network_.devices(); ++device)
    options.process_of_device.push_back(network_.process_of(device));
  // Elsewhere than in process 0, the first replica computes on it.
  if (!network_.leads() && network_.replica_processes())
    options.first_log = log_of_replica(replicas_here(network_).first);
  options.devices_before = network_.cores().devices_before;
  options.sharing_devices = network_.cores().sharing_devices;
  return options;
}

Program PipelineRun::training_program(int units) const {
  return network_.programs().training(units, training_edges_);
}

std::vector<std::string> PipelineRun::notes_on_remainders() const {
  const std::vector<std::string>& known = network_.graph().notes;
  std::vector<std::string> notes;
  for (const Variant& variant : training_) {
    for (const std::string& note : variant.graph->notes) {
      if (std::ranges::find(known, note) == known.end()) notes.push_back(note);
    }
  }
  return notes;
}

std::vector<const Program*> PipelineRun::training_programs() const {
  std::vector<const Program*> programs;
  for (const auto& program : programs_) programs.push_back(program.get());
  return programs;
}

int PipelineRun::batches_in_flight() const {
  int held = 0;
  for (const auto& program : programs_)
    held = std::max(held, program->replicas(0) * (most_open_micro_batches(*program) + 1));
  return (held + static_cast<int>(network_.micro_batches()) - 1) /
             static_cast<int>(network_.micro_batches()) +
         1;
}

const Program& PipelineRun::program(int units) const {
  for (const auto& program : programs_) {
    if (program->micro_batches == units) return *program;
  }
  PT_FAIL(kInternal, "no program for {} micro-batches", units);
}

const Program& PipelineRun::evaluation_program(std::int64_t remaining) const {
  for (const auto& program : evaluation_programs_) {
    if ((remaining + network_.micro_batch() - 1) / network_.micro_batch() >= program->micro_batches)
      return *program;
  }
  PT_FAIL(kInternal, "no program evaluates {} samples", remaining);
}

int PipelineRun::variant(std::int64_t samples, bool evaluation) const {
  int index = 0;
  for (const auto* list : {&training_, &evaluations_}) {
    for (const Variant& variant : *list) {
      if (variant.samples == samples && variant.evaluation == evaluation) return index;
      ++index;
    }
  }
  PT_FAIL(kInternal, "no network for micro-batches of {} samples", samples);
}

std::multimap<std::string, HostTensor*> PipelineRun::initial_weights() {
  std::multimap<std::string, HostTensor*> out = network_.initial_weights();
  for (auto* list : {&training_, &evaluations_}) {
    for (const Variant& variant : *list) {
      if (!variant.own) continue;
      for (const Parameter& parameter : variant.own->parameters)
        out.emplace(parameter.name, &variant.own->graph[parameter.value].data);
    }
  }
  return out;
}

void PipelineRun::release_initial_weights() {
  for (const auto& [name, value] : initial_weights()) *value = {};
}

void PipelineRun::collect_weights() {
  if (!network_.processes()) return;
  const AveragedWeights averaged(network_, *runtime_);
  collected_ = runtime_->weights_of_others();
}

std::vector<StageContent> PipelineRun::trained_contents() const {
  if (!network_.processes()) return runtime_->contents();
  const AveragedWeights averaged(network_, *runtime_);
  std::vector<StageContent> contents(1);
  contents[0].weights.insert(collected_.begin(), collected_.end());
  for (StageContent& own : runtime_->own_contents()) contents[0].weights.merge(own.weights);
  return contents;
}

std::vector<std::string> PipelineRun::export_model(const std::string& path, bool overwrite_input,
                                                   const NamedTensors* weights,
                                                   const std::string& adapters) {
  runtime_->release_activations();  // the values that are written are copies
  const auto write = [&](const auto& read) {
    const OnnxMetadata metadata = describe_training(
        network_.total_steps() > 0, training_of(network_), network_.model().file.metadata);
    return export_weights(network_.model(), read, metadata, path, overwrite_input, adapters);
  };
  if (weights) {
    return write([&](const std::string& name) {
      const auto found = weights->find(name);
      return found == weights->end() ? HostTensor() : found->second;
    });
  }
  const AveragedWeights averaged(network_, *runtime_);
  return write([&](const std::string& name) { return trained_tensor(name); });
}

HostTensor PipelineRun::trained_tensor(const std::string& name) const {
  const auto found = collected_.find(name);
  return found == collected_.end() ? runtime_->read(name) : found->second;
}

std::string PipelineRun::nonfinite_weight() const {
  // Without a copy of a large embedding.
  if (!network_.all_processes() && runtime_->weights_are_finite()) return {};
  for (const Parameter& parameter : network_.graph().parameters) {
    if (!parameter.gradient) continue;
    const HostTensor value = trained_tensor(parameter.name);
    if (value && !all_finite(value.view())) return parameter.name;
  }
  return {};
}

AveragedWeights::AveragedWeights(const PlannedNetwork& network, Runtime& runtime)
    : runtime_(network.config().optimization.optimizer.average_decay > 0 &&
                       network.total_steps() > 0
                   ? &runtime
                   : nullptr) {
  if (runtime_) runtime_->exchange_averages();
}

AveragedWeights::~AveragedWeights() {
  try {
    if (runtime_) runtime_->exchange_averages();
  } catch (const Error&) {
    // A GPU that has failed fails again; the first error is being reported.
  }
}

}  // namespace pipetrain
