#include "partition/does_not_fit.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/setting.h"
#include "base/units.h"
#include "partition/chain_cut.h"
#include "partition/optimum.h"
#include "partition/plan_build.h"

namespace pipetrain {
namespace {

// The stages of the cut that needs least memory.
std::vector<StagePlan> smallest_stages(const StageCostModel& model, int stages, bool recompute) {
  const std::vector<int> cuts = smallest_cuts(model, stages, recompute);
  std::vector<StagePlan> out;
  for (int at = 0; at < stages; ++at) {
    const int first = at == 0 ? 0 : cuts[static_cast<std::size_t>(at - 1)];
    const int last = at + 1 == stages ? model.count() : cuts[static_cast<std::size_t>(at)];
    // Memory does not depend on links, which may not be known for so many stages.
    const StagePlace place{{0, 1}, stages - at - 1, 0, 0};
    StagePlan stage = model.stage(first, last, place, false);
    if (recompute) {
      const StagePlan again = model.stage(first, last, place, true);
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

// A request and a chain for another number of micro-batches of the same mini-batch, on devices
// whose links do not matter.
struct Variant {
  ChainCosts chain;
  PlanRequest request;
};

Variant variant_of(const ChainCosts& chain, const PlanRequest& request, int finer) {
  Variant out{chain, request};
  out.request.micro_batches *= finer;
  out.request.topology = {};
  // They are of the request's own number of micro-batches.
  if (request.schedule.memory) out.request.loads.clear();
  const auto divisor = static_cast<std::size_t>(finer);
  for (ChainCost& element : out.chain.elements) {
    element.saved_bytes /= divisor;
    element.transient_bytes /= divisor;
    for (Reuse& reuse : element.reuses) reuse.saved_bytes /= divisor;
  }
  for (std::size_t& bytes : out.chain.forward_bytes) bytes /= divisor;
  return out;
}

// The least memory with which `stages` stages can do.
std::size_t least_memory(const StageCostModel& model, int stages, bool recompute, int finer = 1) {
  const Variant variant = variant_of(model.chain(), model.request(), finer);
  const StageCostModel other(variant.chain, variant.request, stages);
  const std::vector<StagePlan> plan = smallest_stages(other, stages, recompute);
  return plan[largest(plan)].memory.total();
}

// The stages of the plan on these devices that needs least memory; empty if there is none at all.
std::vector<StagePlan> smallest_on_devices(const ChainCosts& chain, const PlanRequest& request,
                                           int devices, Recompute recompute, int finer) {
  Variant variant = variant_of(chain, request, finer);
  variant.request.recompute = recompute;
  const StageCostModel model(variant.chain, variant.request, devices);
  OptimumSearch<ChainRanges> search(model.ranges(), model.pricing(), request.stages);
  const std::optional<Optimum> least = search.least_memory();
  std::vector<StageDecision> decisions;
  if (!least) return {};
  for (const StageChoice& stage : least->stages) {
    decisions.push_back({stage.first, stage.last, stage.devices, stage.recompute});
  }
  return build_plan(model, decisions).stages;
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
    text += fmt::format(", workspace {}", bytes_text(memory.transient_bytes));
  }
  return text;
}

// Into how many parts a micro-batch can be cut: of one sample, unless a mini-batch is sent whole.
std::int64_t most_finer(const PlanRequest& request) {
  if (request.schedule.whole_mini_batches) return 1;
  constexpr std::int64_t kMost = 16;
  if (request.most_micro_batches == 0) return kMost;
  return std::min(kMost, request.most_micro_batches / request.micro_batches);
}

// Settings that fit, nearest first: recompute, finer micro-batches, another number of stages.
std::vector<std::string> remedies(const StageCostModel& model, int stages) {
  const PlanRequest& request = model.request();
  const std::size_t limit = request.memory_limit_bytes;
  const bool recompute = request.recompute != Recompute::kNone;
  std::vector<std::string> out;
  if (!recompute) {
    const std::size_t bytes = least_memory(model, stages, /*recompute=*/true);
    if (bytes <= limit)
      out.push_back(fmt::format("{} auto ({})", setting("recompute"), bytes_text(bytes)));
  }
  if (!request.schedule.memory) return out;  // what other numbers hold is not known
  for (int finer = 2; finer <= most_finer(request); finer *= 2) {
    const std::size_t bytes = least_memory(model, stages, recompute, finer);
    if (bytes > limit) continue;
    out.push_back(fmt::format("{} {} (about {})", setting("micro-batches"),
                              request.micro_batches * finer, bytes_text(bytes)));
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

// The same for any number of stages on the devices there are.
std::vector<std::string> remedies_on_devices(const ChainCosts& chain, const PlanRequest& request,
                                             int devices) {
  std::vector<std::string> out;
  const auto peak = [&](int on, Recompute recompute, int finer) {
    const std::vector<StagePlan> plan = smallest_on_devices(chain, request, on, recompute, finer);
    return plan.empty() ? std::numeric_limits<std::size_t>::max()
                        : plan[largest(plan)].memory.total();
  };
  const std::size_t limit = request.memory_limit_bytes;
  if (request.recompute != Recompute::kAuto) {
    const std::size_t bytes = peak(devices, Recompute::kAuto, 1);
    if (bytes <= limit)
      out.push_back(fmt::format("{} auto ({})", setting("recompute"), bytes_text(bytes)));
  }
  for (int finer = 2; finer <= most_finer(request); finer *= 2) {
    const std::size_t bytes = peak(devices, request.recompute, finer);
    if (bytes > limit) continue;
    out.push_back(fmt::format("{} {} (about {})", setting("micro-batches"),
                              request.micro_batches * finer, bytes_text(bytes)));
    break;
  }
  for (const int more : {devices + 1, 2 * devices, 4 * devices}) {
    const std::size_t bytes = peak(more, request.recompute, 1);
    if (bytes > limit) continue;
    out.push_back(fmt::format("{} devices ({})", more, bytes_text(bytes)));
    break;
  }
  return out;
}

// What to do where no settings that fit were found for a plan of so many stages.
std::string advice(const PlanRequest& request, int most_stages) {
  if (request.schedule.memory) {
    return fmt::format(
        "neither smaller micro-batches nor up to {} stages fit; reduce {} or use devices with more "
        "memory",
        most_stages, setting("batch-size"));
  }
  if (request.schedule.is_file) {
    return fmt::format("try a smaller {}, a schedule for more devices, or devices with more memory",
                       setting("batch-size"));
  }
  const std::string finer =
      most_finer(request) > 1 ? fmt::format("{} or ", setting("micro-batches")) : "";
  return fmt::format("try more {}{}, a smaller {}, or devices with more memory", finer,
                     setting("gpus"), setting("batch-size"));
}

[[noreturn]] void fail(std::string message, const std::vector<std::string>& fits,
                       const std::string& nothing) {
  if (fits.empty()) message += "; " + nothing;
  for (std::size_t i = 0; i < fits.size(); ++i) {
    message += (i == 0 ? "; fits with any of: " : ", ") + fits[i];
  }
  throw Error(ErrorKind::kResource, message);
}

}  // namespace

void fail_for_memory(const StageCostModel& model, int stages, int at, const StagePlan& stage) {
  fail(fmt::format("stage {} of {} needs {}, the limit is {} ({})", at, stages,
                   bytes_text(stage.memory.total()), bytes_text(model.request().memory_limit_bytes),
                   breakdown(stage)),
       remedies(model, stages), advice(model.request(), std::min(4 * stages, model.count())));
}

void fail_for_memory(const StageCostModel& model, int stages) {
  const bool recompute = model.request().recompute != Recompute::kNone;
  const std::vector<StagePlan> plan = smallest_stages(model, stages, recompute);
  const std::size_t at = largest(plan);
  fail_for_memory(model, stages, static_cast<int>(at), plan[at]);
}

void fail_for_memory_of_devices(const ChainCosts& chain, const PlanRequest& request, int devices) {
  const std::vector<StagePlan> plan =
      smallest_on_devices(chain, request, devices, request.recompute, 1);
  const std::string nothing = fmt::format(
      "neither smaller micro-batches nor up to {} devices fit; reduce {} or use devices "
      "with more memory",
      4 * devices, setting("batch-size"));
  const std::string limit = bytes_text(request.memory_limit_bytes);
  PT_CHECK(!plan.empty(), kResource, "no plan on {} devices fits in {}; {}", devices, limit,
           nothing);
  const std::size_t at = largest(plan);
  fail(fmt::format("no plan on {} device{} fits in {}: at best, stage {} of {} needs {} ({})",
                   devices, devices == 1 ? "" : "s", limit, at, plan.size(),
                   bytes_text(plan[at].memory.total()), breakdown(plan[at])),
       remedies_on_devices(chain, request, devices), nothing);
}

}  // namespace pipetrain
