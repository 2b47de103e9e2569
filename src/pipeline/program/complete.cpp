#include "pipeline/program/complete.h"

#include <algorithm>
#include <map>

#include "pipeline/program/annotate.h"

namespace pipetrain {
namespace {

using List = std::vector<Instruction>;

List with_recompute(const List& list, const std::vector<bool>& recompute) {
  List result;
  for (const Instruction& instruction : list) {
    const bool first =
        instruction.kind == Kind::kBackward || instruction.kind == Kind::kBackwardInput;
    if (first && recompute[static_cast<std::size_t>(instruction.stage)]) {
      result.push_back({Kind::kRecompute, instruction.stage, instruction.micro_batch});
    }
    result.push_back(instruction);
  }
  return result;
}

/// One update per stage at the end of the round. Stages are in ascending order, so that devices
/// which share several stages run their collectives in the same order.
void end_round(Program& program) {
  for (int s = 0; s < program.stages; ++s) {
    if (program.replicas(s) == 1) continue;
    for (const int device : program.placement[static_cast<std::size_t>(s)]) {
      program.device[static_cast<std::size_t>(device)].push_back({Kind::kReduce, s});
    }
  }
  if (program.gradient_sync) {
    for (List& list : program.device) list.push_back({Kind::kGradientSync});
  }
  for (int s = 0; s < program.stages; ++s) {
    for (const int device : program.placement[static_cast<std::size_t>(s)]) {
      program.device[static_cast<std::size_t>(device)].push_back({Kind::kUpdate, s});
    }
  }
}

/// Updates of one device's stages while micro-batches are in flight.
class GroupUpdates {
 public:
  GroupUpdates(const Program& program, int device) : program_(program), device_(device) {}

  List insert_into(const List& list) {
    std::map<int, std::vector<int>> gradients;  // micro-batches of each stage in order
    for (const Instruction& instruction : list) {
      if (adds_gradient(instruction.kind))
        gradients[instruction.stage].push_back(instruction.micro_batch);
    }
    std::map<int, std::size_t> done;
    for (const Instruction& instruction : list) {
      result_.push_back(instruction);
      if (!adds_gradient(instruction.kind)) continue;
      const int stage = instruction.stage;
      const std::vector<int>& micro_batches = gradients[stage];
      const std::size_t next = ++done[stage];
      const int size = program_.group_size(stage);
      // A replica without micro-batches in a group still takes part in its update.
      const int end =
          next < micro_batches.size() ? micro_batches[next] / size : program_.updates(stage);
      update_groups(stage, instruction.micro_batch / size, end);
    }
    for (int s = 0; s < program_.stages; ++s) {
      if (program_.replica_on(s, device_) >= 0 && gradients.count(s) == 0) {
        update_groups(s, 0, program_.updates(s));
      }
    }
    return std::move(result_);
  }

 private:
  void update_groups(int stage, int first, int end) {
    const int size = program_.group_size(stage);
    for (int group = first; group < end; ++group) {
      const int last = std::min((group + 1) * size, program_.micro_batches) - 1;
      if (program_.replicas(stage) > 1) result_.push_back({Kind::kReduce, stage, last});
      result_.push_back({Kind::kUpdate, stage, last});
    }
  }

  const Program& program_;
  const int device_;
  List result_;
};

}  // namespace

void complete(Program& program) {
  for (List& list : program.device) list = with_recompute(list, program.recompute);
  if (program.rule == UpdateRule::kSync) end_round(program);
  if (is_asynchronous(program.rule)) {
    for (std::size_t d = 0; d < program.device.size(); ++d) {
      program.device[d] = GroupUpdates(program, static_cast<int>(d)).insert_into(program.device[d]);
    }
  }
  annotate(program);
}

void set_recompute(Program& program, const std::vector<bool>& recompute) {
  program.recompute = recompute;
  for (List& list : program.device) {
    std::erase_if(list, [](const Instruction& i) { return i.kind == Kind::kRecompute; });
    list = with_recompute(list, recompute);
  }
  annotate(program);
}

void add_gradient_sync(Program& program) {
  if (program.gradient_sync) return;
  program.gradient_sync = true;
  for (List& list : program.device) {
    const auto updates = std::stable_partition(
        list.begin(), list.end(), [](const Instruction& i) { return i.kind != Kind::kUpdate; });
    list.insert(updates, Instruction{Kind::kGradientSync});
  }
  annotate(program);
}

}  // namespace pipetrain
