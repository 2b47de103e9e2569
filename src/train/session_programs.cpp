// What a session runs: the networks of every size of micro-batch, the programs of its rounds, the
// runtime.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "device/plugin.h"
#include "passes/linearise.h"
#include "passes/written_weights.h"
#include "processes/process_group.h"
#include "train/session.h"

namespace pipetrain {
namespace {

/// Whether two graphs have the same operators in the same order.
bool has_same_nodes(const TrainingGraph& one, const TrainingGraph& other) {
  return std::equal(one.graph.nodes.begin(), one.graph.nodes.end(), other.graph.nodes.begin(),
                    other.graph.nodes.end(), [](const Node& a, const Node& b) {
                      return a.op == b.op && a.name == b.name &&
                             a.attributes.text("members", "") == b.attributes.text("members", "");
                    });
}

/// What GPUs exchange values with; null: copies. Those go direct where GPUs reach each other and
/// need no multiprocessors, so NCCL is taken where they do not, or when it is asked for.
Collectives* exchange_of_gpus(const PipelineConfig& pipeline) {
  const std::set<int> ids(pipeline.gpu_ids.begin(), pipeline.gpu_ids.end());
  if (ids.size() < 2 || pipeline.edge == "copy" || adds_in_one_order(pipeline)) return nullptr;
  if (pipeline.edge == "nccl") return &cuda_plugin().collectives();
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

int Session::units_of(std::int64_t samples) const {
  return static_cast<int>((samples + micro_batch_ - 1) / micro_batch_);
}

int Session::batches_in_flight() const {
  const Program& program = *programs_.front();
  const int held = program.replicas(0) * (program.slots_per_stage[0] + 1);
  return (held + static_cast<int>(micro_batches_) - 1) / static_cast<int>(micro_batches_) + 1;
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
  if (processes_) check_agreement();
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
  options.loss_scaling = loss_scaling();
  options.seed = config_.optimization.seed;
  options.timeout_seconds = config_.pipeline.timeout_seconds;
  for (const int id : config_.pipeline.gpu_ids) {
    const auto device = static_cast<int>(options.devices.size());
    const bool here = !processes_ || process_of(device) == processes_->rank();
    options.devices.push_back(here ? &cuda_plugin().open(id) : nullptr);
    if (here) options.devices.back()->allow_tensor_floats(config_.model.tensor_floats);
  }
  if (!processes_) {
    options.collectives = exchange_of_gpus(config_.pipeline);
  } else if (!options.devices.empty() && config_.pipeline.edge != "copy") {
    PT_CHECK(!adds_in_one_order(config_.pipeline), kUsage,
             "GPUs of several processes add up the gradients of more than two replicas by NCCL, "
             "in an order that may change from run to run; leave out --deterministic");
    options.collectives = &cuda_plugin().collectives();
    options.device_numbers = config_.pipeline.gpu_ids;
  }
  options.processes = processes_;
  for (int device = 0; processes_ && device < devices(); ++device)
    options.process_of_device.push_back(process_of(device));
  options.devices_before = devices_before_;
  options.sharing_devices = sharing_devices_;
  return options;
}

TakeMemory Session::batch_memory() const {
  if (config_.pipeline.gpu_ids.empty()) return {};
  std::size_t mine = 0;  // of this process's GPUs the first
  while (processes_ && process_of(static_cast<int>(mine)) != processes_->rank()) ++mine;
  return [&gpu = cuda_plugin().open(config_.pipeline.gpu_ids[mine])](std::size_t bytes) {
    auto memory = std::make_shared<DeviceMemory>(gpu.allocate_on_host(bytes));
    return std::shared_ptr<std::byte>(memory, memory->data());
  };
}

LossScaling Session::loss_scaling() const {
  const bool half = config_.model.precision == DType::kFloat16;
  if (half && config_.optimization.loss_scale == 0) return adapting_loss_scale();
  LossScaling fixed;
  if (half) fixed.initial = config_.optimization.loss_scale;
  fixed.skips = config_.optimization.on_nonfinite == OnNonfinite::kSkip;
  return fixed;
}

bool Session::has_replicas() const {
  return std::any_of(predicted_program_.placement.begin(), predicted_program_.placement.end(),
                     [](const auto& devices) { return devices.size() > 1; });
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

}  // namespace pipetrain
