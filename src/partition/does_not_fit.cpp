#include "partition/does_not_fit.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "partition/chain_cut.h"

namespace pipetrain {
namespace {

// The stages of the cut that needs least memory.
std::vector<StagePlan> smallest_stages(const StageCostModel& model, int stages, bool recompute) {
  const std::vector<int> cuts = smallest_cuts(model, stages, recompute);
  std::vector<StagePlan> out;
  for (int at = 0; at < stages; ++at) {
    const int first = at == 0 ? 0 : cuts[static_cast<std::size_t>(at - 1)];
    const int last = at + 1 == stages ? model.count() : cuts[static_cast<std::size_t>(at)];
    const RangeCost range = model.ranges_from(first)[static_cast<std::size_t>(last - first - 1)];
    const ScheduleLoad load =
        schedule_load(model.request().schedule, at, stages, model.request().micro_batches);
    StagePlan stage = model.stage(range, first, last, load, false);
    if (recompute) {
      const StagePlan again = model.stage(range, first, last, load, true);
      if (again.memory.total() < stage.memory.total()) stage = again;
    }
    out.push_back(stage);
  }
  return out;
}

std::size_t largest(const std::vector<StagePlan>& stages) {
  const auto by_memory = [](const StagePlan& a, const StagePlan& b) {
    return a.memory.total() < b.memory.total();
  };
  const auto found = std::max_element(stages.begin(), stages.end(), by_memory);
  return static_cast<std::size_t>(found - stages.begin());
}

// The least memory with which `stages` stages can do, on another number of micro-batches of the
// same mini-batch.
std::size_t least_memory(const StageCostModel& model, int stages, bool recompute, int finer = 1) {
  ChainCosts chain = model.chain();
  PlanRequest request = model.request();
  request.micro_batches *= finer;
  const auto divisor = static_cast<std::size_t>(finer);
  for (ChainCost& element : chain.elements) {
    element.saved_bytes /= divisor;
    element.transient_bytes /= divisor;
    for (Reuse& reuse : element.reuses) reuse.saved_bytes /= divisor;
  }
  for (std::size_t& bytes : chain.forward_bytes) bytes /= divisor;
  const StageCostModel other(chain, request);
  const std::vector<StagePlan> plan = smallest_stages(other, stages, recompute);
  return plan[largest(plan)].memory.total();
}

std::string breakdown(const StagePlan& stage) {
  const MemoryNeed& memory = stage.memory;
  std::string text =
      fmt::format("weights {}, gradients {}, optimizer {}, activations {}",
                  bytes_text(memory.weight_bytes), bytes_text(memory.gradient_bytes),
                  bytes_text(memory.optimizer_bytes), bytes_text(memory.activation_bytes));
  if (!stage.recompute) {
    text += fmt::format(" = {} in flight x {}", stage.in_flight, bytes_text(stage.saved_bytes));
  }
  if (memory.transient_bytes > 0) {
    text += fmt::format(", working memory {}", bytes_text(memory.transient_bytes));
  }
  return text;
}

// Settings that fit, nearest first: recompute, finer micro-batches, another number of stages.
std::vector<std::string> remedies(const StageCostModel& model, int stages) {
  const PlanRequest& request = model.request();
  const std::size_t limit = request.memory_limit_bytes;
  const bool recompute = request.recompute != Recompute::kNone;
  std::vector<std::string> out;
  if (!recompute) {
    const std::size_t bytes = least_memory(model, stages, /*recompute=*/true);
    if (bytes <= limit) out.push_back(fmt::format("--recompute auto ({})", bytes_text(bytes)));
  }
  // pipedream sends each mini-batch as one unit.
  for (int finer = 2; request.schedule != "pipedream" && finer <= 16; finer *= 2) {
    const std::size_t bytes = least_memory(model, stages, recompute, finer);
    if (bytes > limit) continue;
    out.push_back(fmt::format("--micro-batches {} (about {})", request.micro_batches * finer,
                              bytes_text(bytes)));
    break;
  }
  for (const int other :
       {stages + 1, stages - 1, stages + 2, stages - 2, 2 * stages, stages / 2, 4 * stages}) {
    if (other < 1 || other > model.count() || other == stages) continue;
    const std::size_t bytes = least_memory(model, other, recompute);
    if (bytes > limit) continue;
    out.push_back(fmt::format("{} stage{} ({})", other, other == 1 ? "" : "s", bytes_text(bytes)));
    break;
  }
  return out;
}

}  // namespace

void fail_for_memory(const StageCostModel& model, int stages, int at, const StagePlan& stage) {
  std::string message = fmt::format(
      "stage {} of {} needs {}, the limit is {} ({})", at, stages, bytes_text(stage.memory.total()),
      bytes_text(model.request().memory_limit_bytes), breakdown(stage));
  const std::vector<std::string> fits = remedies(model, stages);
  if (fits.empty()) {
    message += fmt::format(
        "; neither finer micro-batches nor up to {} stages fit: reduce --batch-size or use devices "
        "with more memory",
        std::min(4 * stages, model.count()));
  }
  for (std::size_t i = 0; i < fits.size(); ++i) {
    message += (i == 0 ? "; fits with any of: " : ", ") + fits[i];
  }
  throw Error(ErrorKind::kResource, message);
}

void fail_for_memory(const StageCostModel& model, int stages) {
  const bool recompute = model.request().recompute != Recompute::kNone;
  const std::vector<StagePlan> plan = smallest_stages(model, stages, recompute);
  const std::size_t at = largest(plan);
  fail_for_memory(model, stages, static_cast<int>(at), plan[at]);
}

}  // namespace pipetrain
