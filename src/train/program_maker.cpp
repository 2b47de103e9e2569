#include "train/program_maker.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "base/index.h"
#include "base/setting.h"
#include "pipeline/program/annotate.h"
#include "pipeline/program/check.h"
#include "pipeline/program/complete.h"
#include "pipeline/runtime/runtime_setup.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/plan_costs.h"
#include "pipeline/schedule/schedule_file.h"
#include "pipeline/schedule/warm_up.h"

namespace pipetrain {
namespace {

Program read_schedule(const std::string& path) {
  Program program = read_schedule_file(path);
  PT_CHECK(program.rule == UpdateRule::kSync, kUsage,
           "{} {}: only synchronous schedules can be trained from a file; asynchronous "
           "ones have names (pipedream, pipedream-vertical, pipedream-2bw)",
           setting("schedule"), printable(path));
  return program;
}

/// A tree of sums (pipeline/transport/sum_tree.h).
void check_accumulators(const PipelineConfig& config) {
  const int leaves = config.accumulators;
  if (leaves == 0) return;
  constexpr int kMost = 64;
  PT_CHECK(std::has_single_bit(static_cast<unsigned>(leaves)) && leaves <= kMost, kUsage,
           "{} must be a power of two up to {}, or 0, not {}", setting("accumulators"), kMost,
           leaves);
  PT_CHECK(config.gpu_ids.empty(), kUsage, "{} needs stages on the CPU; leave it out for GPUs",
           setting("accumulators"));
  for (const int replicas : config.replicas) {
    PT_CHECK(leaves % replicas == 0, kUsage,
             "{} {} cannot be divided among {} replicas; use 1, 2, 4 or another power of two up to "
             "{} of each stage",
             setting("accumulators"), leaves, replicas, leaves);
  }
}

/// Gradients of replicas as bfloat16 (pipeline/transport/narrow_floats.h).
void check_compression(const PipelineConfig& config) {
  if (!config.bfloat16_sums) return;
  PT_CHECK(config.gpu_ids.empty(), kUsage, "{} bf16 needs stages on the CPU; leave it out for GPUs",
           setting("compress"));
  PT_CHECK(config.accumulators == 0, kUsage,
           "with {} bf16, bits depend on the number of replicas; leave out {}", setting("compress"),
           setting("accumulators"));
}

/// The edges, and after them those of `more` between other stages.
std::vector<Edge> joined(std::vector<Edge> edges, const std::vector<Edge>& more) {
  for (const Edge& edge : more) {
    const bool known = std::ranges::any_of(edges, [&](const Edge& one) {
      return one.from_stage == edge.from_stage && one.to_stage == edge.to_stage &&
             one.gradient == edge.gradient;
    });
    if (!known) edges.push_back(edge);
  }
  return edges;
}

/// A program without its transfers.
void take_out_transfers(Program& program) {
  for (auto& list : program.device) {
    std::erase_if(list, [](const Instruction& i) { return is_transfer(i.kind); });
  }
  program.transfers.clear();
  program.lowered = false;
}

/// Those that train.
std::string schedules_with_replicas() {
  std::vector<std::string> names;
  for (const ScheduleDescription& each : schedules()) {
    if (each.takes_replicas && each.rule != UpdateRule::kNone) names.push_back(each.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

bool RunSchedule::balances_warm_up() const {
  return !from_file_ && describe_schedule(config_.schedule).balances_warm_up;
}

RunSchedule::RunSchedule(const PipelineConfig& config) : config_(config) {
  check_accumulators(config);
  check_compression(config);
  PT_CHECK(config.warm_up_tolerance >= 0 && config.warm_up_tolerance <= 1, kUsage,
           "{} must be a fraction from 0 to 1, not {}", setting("warm-up-tolerance"),
           config.warm_up_tolerance);
  if (names_schedule_file(config.schedule)) {
    from_file_ = read_schedule(config.schedule);
    PT_CHECK(config.replicas.empty() && !config.plan_replicas, kUsage,
             "{} needs a schedule's name; the file {} already sets the devices of each stage",
             setting("replicas"), printable(config.schedule));
    PT_CHECK(config.devices == 1 || config.devices == from_file_->devices, kUsage,
             "{} {} is written for {} devices, but {} is {}; leave out {}", setting("schedule"),
             printable(config.schedule), from_file_->devices, setting("gpus"), config.devices,
             setting("gpus"));
    take_out_transfers(*from_file_);
    rule_ = from_file_->rule;
    return;
  }
  const ScheduleDescription& schedule = describe_schedule(config.schedule);
  PT_CHECK(schedule.rule != UpdateRule::kNone, kUsage,
           "{} {} is forward-only; choose one that trains, such as 1f1b", setting("schedule"),
           config.schedule);
  PT_CHECK((config.replicas.empty() && !config.plan_replicas) || schedule.takes_replicas, kUsage,
           "{} {} has one device per stage; {} works with {}", setting("schedule"), config.schedule,
           setting("replicas"), schedules_with_replicas());
  rule_ = schedule.rule;
  if (config.shard_optimizer) check_shared_updates(rule_, config.schedule, !config.gpu_ids.empty());
}

int RunSchedule::stages() const {
  if (from_file_) return from_file_->stages;
  if (!config_.replicas.empty()) return static_cast<int>(config_.replicas.size());
  return config_.devices * stages_per_device(config_.schedule, config_.chunks);
}

std::vector<bool> RunSchedule::recompute() const {
  if (!from_file_ || config_.recompute != Recompute::kAuto) return {};
  return from_file_->recompute;
}

Program RunSchedule::outline(int micro_batches) const {
  if (from_file_) {
    Program program = *from_file_;
    set_recompute(program, std::vector<bool>(at(program.stages), false));
    return program;
  }
  // Long enough for an asynchronous pipeline to be full.
  const int mini_batches = is_asynchronous(rule_) ? 2 * std::max(stages(), devices()) + 2 : 1;
  ScheduleOptions options;
  options.name = config_.schedule;
  options.stages = stages();
  options.micro_batches = mini_batches * micro_batches;
  options.replicas = config_.replicas;
  options.chunks = config_.chunks;
  options.memory_units = config_.memory_units;
  options.micro_batches_per_update = rule_ == UpdateRule::kDoubleBuffer ? micro_batches : 0;
  return generate(options);
}

std::vector<ScheduleLoad> RunSchedule::loads(int micro_batches) const {
  const Program program = outline(micro_batches);
  std::vector<ScheduleLoad> loads;
  for (std::size_t s = 0; s < program.slots_per_stage.size(); ++s)
    loads.push_back({program.slots_per_stage[s], program.versions_per_stage[s]});
  return loads;
}

std::vector<std::vector<int>> RunSchedule::stages_of_devices(int micro_batches) const {
  const Program program = outline(micro_batches);
  std::vector<std::vector<int>> stages(at(program.devices));
  for (std::size_t s = 0; s < program.placement.size(); ++s) {
    for (const int device : program.placement[s]) stages[at(device)].push_back(static_cast<int>(s));
  }
  return stages;
}

ProgramMaker::ProgramMaker(const RunSchedule& schedule, const Plan& plan, std::vector<Edge> edges,
                           const Costs& costs, bool gradient_sync, int units_per_update,
                           std::vector<int> most_micro_batches)
    : schedule_(schedule),
      edges_(std::move(edges)),
      gradient_sync_(gradient_sync),
      units_per_update_(units_per_update) {
  for (const StagePlan& stage : plan.stages) {
    recompute_.push_back(stage.recompute);
    replicas_.push_back(stage.replicas);
  }
  if (std::all_of(replicas_.begin(), replicas_.end(), [](int r) { return r == 1; }))
    replicas_.clear();
  PT_CHECK(!schedule_.from_file_ || schedule_.from_file_->stages == std::ssize(plan.stages), kUsage,
           "{} {} is written for {} stages, but the model is cut into {}", setting("schedule"),
           printable(schedule_.config_.schedule), schedule_.from_file_->stages, plan.stages.size());
  if (!schedule_.balances_warm_up()) return;
  WarmUpCosts warm = warm_up_costs(plan, edges_, costs);
  warm.tolerance = schedule_.config_.warm_up_tolerance;
  warm.most_micro_batches = std::move(most_micro_batches);
  warm_ = balanced_warm_up(with_memory_units(std::move(warm), schedule_.config_.memory_units));
}

Program ProgramMaker::training(int units, const std::vector<Edge>& more) const {
  const std::vector<Edge> edges = joined(edges_, more);
  if (schedule_.from_file_) {
    PT_CHECK(units == schedule_.from_file_->micro_batches, kUsage,
             "{} {} is written for {} micro-batches, not {}; set {} {}", setting("schedule"),
             printable(schedule_.config_.schedule), schedule_.from_file_->micro_batches, units,
             setting("micro-batches"), schedule_.from_file_->micro_batches);
    Program program = *schedule_.from_file_;
    if (program.recompute != recompute_) set_recompute(program, recompute_);
    if (gradient_sync_) add_gradient_sync(program);
    // The model's stages may wait for each other where those of the file's edges do not.
    program.edges = edges;
    annotate(program);
    check(program, ErrorKind::kUsage);
    program = lower(program, edges);
    check(program, ErrorKind::kUsage);
    return program;
  }
  ScheduleOptions options;
  options.name = schedule_.config_.schedule;
  options.stages = static_cast<int>(recompute_.size());
  options.micro_batches = units;
  options.recompute = recompute_;
  options.replicas = replicas_;
  options.sums_as_tree = schedule_.config_.accumulators > 0;
  options.warm = warm_;
  options.chunks = schedule_.config_.chunks;
  options.memory_units = schedule_.config_.memory_units;
  options.micro_batches_per_update =
      schedule_.rule_ == UpdateRule::kDoubleBuffer ? units_per_update_ : 0;
  options.gradient_sync = gradient_sync_;
  Program program = lower(generate(options), edges);
  check(program);
  return program;
}

bool has_many_replicas(const Program& program) {
  return std::ranges::any_of(program.placement,
                             [](const auto& devices) { return devices.size() > 2; });
}

void check_order_of_sums(const PipelineConfig& pipeline, bool many_replicas) {
  PT_CHECK(pipeline.edge != "nccl" || !pipeline.deterministic || !many_replicas, kUsage,
           "{} sums the gradients of more than two replicas in a fixed order, which NCCL does not "
           "guarantee; leave out {} nccl",
           setting("deterministic"), setting("edge"));
}

Program ProgramMaker::evaluation(int units, const std::vector<Edge>& edges) const {
  const int smallest = schedule_.fixed_units() > 0 ? schedule_.fixed_units()
                       : schedule_.rule_ == UpdateRule::kDoubleBuffer
                           ? units_per_update_
                           : std::max(1, schedule_.config_.devices);
  Program program = lower(forward_program(training(smallest), units), edges);
  check(program);
  return program;
}

}  // namespace pipetrain
