#include "pipeline/generate.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "base/error.h"
#include "pipeline/annotate.h"

namespace pipetrain {
namespace {

using List = std::vector<Instruction>;

Instruction forward(int stage, int unit) { return {Kind::kForward, stage, unit}; }
Instruction backward(int stage, int unit) { return {Kind::kBackward, stage, unit}; }

/// Runs the forwards of all units and nothing else.
std::vector<List> forward_only(const ScheduleOptions& options) {
  std::vector<List> lists(static_cast<std::size_t>(options.stages));
  for (int s = 0; s < options.stages; ++s) {
    for (int k = 0; k < options.units; ++k)
      lists[static_cast<std::size_t>(s)].push_back(forward(s, k));
  }
  return lists;
}

/// All forwards, then all backwards (Huang et al., GPipe, 2019). Backwards run first-in first-out,
/// not last-in first-out as in the paper: equally fast, and gradients add in micro-batch order.
std::vector<List> gpipe(const ScheduleOptions& options) {
  std::vector<List> lists = forward_only(options);
  for (int s = 0; s < options.stages; ++s) {
    for (int k = 0; k < options.units; ++k)
      lists[static_cast<std::size_t>(s)].push_back(backward(s, k));
  }
  return lists;
}

/// Warm-up forwards, then one forward and one backward in turn, then the backwards that are left
/// (Narayanan et al., PipeDream, 2019; with a flush: DAPPLE, Megatron-LM). Free of deadlock for
/// every warm-up that never rises.
std::vector<List> one_forward_one_backward(const ScheduleOptions& options) {
  std::vector<List> lists;
  for (int s = 0; s < options.stages; ++s) {
    const int ahead = std::min(options.units, options.warm[static_cast<std::size_t>(s)]);
    List list;
    for (int k = 0; k < ahead; ++k) list.push_back(forward(s, k));
    for (int k = 0; k < options.units - ahead; ++k) {
      list.push_back(forward(s, ahead + k));
      list.push_back(backward(s, k));
    }
    for (int k = options.units - ahead; k < options.units; ++k) list.push_back(backward(s, k));
    lists.push_back(std::move(list));
  }
  return lists;
}

struct Schedule {
  ScheduleDescription description;
  std::vector<List> (*lists)(const ScheduleOptions&);
  bool takes_warm_up;
};

const std::vector<Schedule>& table() {
  static const std::vector<Schedule> schedules = {
      {{"gpipe", "all forwards, then all backwards, then one update", UpdateRule::kSync},
       gpipe,
       false},
      {{"1f1b", "forwards and backwards in turn, then one update: the numbers of one device",
        UpdateRule::kSync},
       one_forward_one_backward,
       true},
      {{"pipedream", "forwards and backwards in turn without a drain, stashed weights",
        UpdateRule::kStash},
       one_forward_one_backward,
       true},
      {{"forward", "forwards only: evaluation", UpdateRule::kNone}, forward_only, false},
  };
  return schedules;
}

/// Levenshtein distance, to find what a user may have meant.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

const Schedule& find_schedule(const std::string& name) {
  std::string names;
  const Schedule* nearest = nullptr;
  std::size_t least = 3;  // more letters than this are another word
  for (const Schedule& schedule : table()) {
    const std::string& known = schedule.description.name;
    if (known == name) return schedule;
    names += names.empty() ? known : ", " + known;
    const std::size_t letters = name.size() > 64 ? least : distance(name, known);
    if (letters < least) {
      least = letters;
      nearest = &schedule;
    }
  }
  const std::string hint =
      nearest ? fmt::format("; did you mean '{}'?", nearest->description.name) : "";
  PT_FAIL(kUsage, "unknown schedule '{}'{} (known: {})", printable(name), hint, names);
}

void check_options(const ScheduleOptions& options, const Schedule& schedule) {
  constexpr int kMaximumStages = 4096;
  constexpr int kMaximumUnits = 1 << 20;
  const auto stages = static_cast<std::size_t>(std::max(options.stages, 0));
  PT_CHECK(options.stages >= 1 && options.stages <= kMaximumStages, kUsage,
           "a pipeline needs 1 to {} stages, got {}", kMaximumStages, options.stages);
  PT_CHECK(options.units >= 1 && options.units <= kMaximumUnits, kUsage,
           "a round needs 1 to {} micro-batches, got {}", kMaximumUnits, options.units);
  PT_CHECK(options.recompute.empty() || options.recompute.size() == stages, kUsage,
           "recompute is given for {} stages, but there are {}", options.recompute.size(), stages);
  PT_CHECK(options.warm.empty() || schedule.takes_warm_up, kUsage,
           "schedule '{}' has no warm-up to set", options.name);
  PT_CHECK(options.warm.empty() || options.warm.size() == stages, kUsage,
           "the warm-up is given for {} stages, but there are {}", options.warm.size(), stages);
  for (std::size_t s = 0; s < options.warm.size(); ++s) {
    PT_CHECK(options.warm[s] >= 0, kUsage, "the warm-up of stage {} is negative: {}", s,
             options.warm[s]);
    PT_CHECK(s == 0 || options.warm[s] <= options.warm[s - 1], kUsage,
             "the warm-up must not rise from stage to stage, but stage {} has {} and stage {} has "
             "{}: it would wait for ever",
             s - 1, options.warm[s - 1], s, options.warm[s]);
  }
  PT_CHECK(!options.gradient_sync || schedule.description.rule == UpdateRule::kSync, kUsage,
           "schedule '{}' makes each stage update alone, so it cannot clip a global norm or tie "
           "weights over stages; use a synchronous schedule such as 1f1b",
           options.name);
}

/// Puts a recompute before the first backward of each unit on the stages that recompute.
List with_recompute(const List& list, const std::vector<bool>& recompute) {
  List result;
  for (const Instruction& instruction : list) {
    const bool first =
        instruction.kind == Kind::kBackward || instruction.kind == Kind::kBackwardInput;
    if (first && recompute[static_cast<std::size_t>(instruction.stage)]) {
      result.push_back({Kind::kRecompute, instruction.stage, instruction.unit});
    }
    result.push_back(instruction);
  }
  return result;
}

/// One update per stage at the end of the round.
void append_updates(Program& program) {
  if (program.gradient_sync) {
    for (List& list : program.device) list.push_back({Kind::kGradientSync});
  }
  for (int s = 0; s < program.stages; ++s) {
    for (const int device : program.placement[static_cast<std::size_t>(s)])
      program.device[static_cast<std::size_t>(device)].push_back({Kind::kUpdate, s});
  }
}

/// One update per stage and unit, directly after the gradient is complete.
List with_updates(const List& list) {
  List result;
  for (const Instruction& instruction : list) {
    result.push_back(instruction);
    if (adds_gradient(instruction.kind))
      result.push_back({Kind::kUpdate, instruction.stage, instruction.unit});
  }
  return result;
}

}  // namespace

const std::vector<ScheduleDescription>& schedules() {
  static const std::vector<ScheduleDescription> descriptions = [] {
    std::vector<ScheduleDescription> all;
    for (const Schedule& schedule : table()) all.push_back(schedule.description);
    return all;
  }();
  return descriptions;
}

std::vector<int> standard_warm_up(int stages) {
  std::vector<int> warm;
  for (int s = 0; s < stages; ++s) warm.push_back(stages - 1 - s);
  return warm;
}

Program generate(const ScheduleOptions& given) {
  const Schedule& schedule = find_schedule(given.name);
  check_options(given, schedule);
  ScheduleOptions options = given;
  if (options.warm.empty()) options.warm = standard_warm_up(options.stages);
  options.recompute.resize(static_cast<std::size_t>(options.stages), false);

  Program program;
  program.schedule = options.name;
  program.rule = schedule.description.rule;
  program.stages = options.stages;
  program.devices = options.stages;
  program.units = options.units;
  program.gradient_sync = options.gradient_sync;
  program.recompute = options.recompute;
  if (program.rule == UpdateRule::kNone) {
    program.recompute.assign(program.recompute.size(), false);  // nothing is kept, nothing repeated
  }
  program.placement = chain_placement(options.stages);
  program.edges = chain_edges(options.stages);
  if (program.rule == UpdateRule::kNone) {
    std::erase_if(program.edges, [](const Edge& edge) { return edge.gradient; });
  }
  for (const List& list : schedule.lists(options)) {
    program.device.push_back(with_recompute(list, program.recompute));
  }
  if (program.rule == UpdateRule::kSync) append_updates(program);
  if (program.rule == UpdateRule::kStash) {
    for (List& list : program.device) list = with_updates(list);
  }
  annotate(program);
  return program;
}

}  // namespace pipetrain
