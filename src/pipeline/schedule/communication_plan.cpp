#include "pipeline/schedule/communication_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/index.h"

namespace pipetrain {
namespace {

/// All operations between devices, also within a rank, in one order.
struct Step {
  std::vector<int> devices;
  bool waits = false;  // its devices block on it at its place in their lists
  int operation = -1;  // -1: not to be issued
  int group = 0;
};

/// [devices][instructions]: the step that an instruction takes part in; -1: none.
using StepTable = std::vector<std::vector<int>>;

/// Finds the steps, and creates operations for those between ranks.
std::vector<Step> find_steps(const Program& program, const std::vector<int>& rank_of_device,
                             CommunicationPlan& plan, StepTable& table) {
  std::vector<Step> steps;
  std::vector<int> of_transfer(program.transfers.size(), -1);
  // The n-th reduce of a stage is the same one on all replicas, the n-th sync on all devices.
  std::map<std::tuple<int, int>, int> of_meeting;
  std::vector<int> all;
  for (int d = 0; d < program.devices; ++d) all.push_back(d);
  for (std::size_t d = 0; d < program.device.size(); ++d) {
    std::map<int, int> meetings;
    for (std::size_t i = 0; i < program.device[d].size(); ++i) {
      const Instruction& instruction = program.device[d][i];
      int* step = nullptr;
      CommunicationOperation operation;
      bool crosses = false;
      if (is_transfer(instruction.kind)) {
        const Transfer& moved = program.transfers[at(instruction.transfer)];
        step = &of_transfer[at(instruction.transfer)];
        operation.transfer = instruction.transfer;
        operation.devices = {moved.from_device, moved.to_device};
        crosses = rank_of_device[at(moved.from_device)] != rank_of_device[at(moved.to_device)];
      } else if (instruction.kind == Kind::kReduce || instruction.kind == Kind::kGradientSync) {
        const std::tuple key(instruction.stage, meetings[instruction.stage]++);
        step = &of_meeting.try_emplace(key, -1).first->second;
        const bool reduce = instruction.kind == Kind::kReduce;
        operation.stage = instruction.stage;
        operation.micro_batch = instruction.micro_batch;
        operation.devices = reduce ? program.placement[at(instruction.stage)] : all;
        crosses = reduce && replicas_are_apart(program, instruction.stage, rank_of_device);
      } else {
        continue;
      }
      if (*step < 0) {
        *step = static_cast<int>(steps.size());
        steps.push_back({operation.devices, /*waits=*/operation.transfer < 0});
        if (crosses) {
          steps.back().operation = static_cast<int>(plan.operations.size());
          plan.operations.push_back(std::move(operation));
        }
      }
      table[d][i] = *step;
      plan.operation_at[d][i] = steps[at(*step)].operation;
    }
  }
  for (std::size_t t = 0; t < of_transfer.size(); ++t) {
    const Transfer& moved = program.transfers[t];
    if (of_transfer[t] < 0) continue;
    plan.operation_of_micro_batch[at(moved.edge) * at(program.micro_batches) +
                                  at(moved.micro_batch)] = steps[at(of_transfer[t])].operation;
  }
  return steps;
}

/// Walks through all lists in parallel and numbers the groups.
class Walk {
 public:
  Walk(const Program& program, std::vector<Step>& steps, const StepTable& table)
      : program_(program), steps_(steps), table_(table), places_(table.size()) {
    for (std::size_t d = 0; d < places_.size(); ++d) advance(d);
  }

  /// The steps in an order that all lists agree with.
  std::vector<int> run() {
    std::vector<int> order;
    while (order.size() < steps_.size()) {
      const std::size_t before = order.size();
      for (std::size_t d = 0; d < places_.size(); ++d) {
        const int step = next(d);
        if (step < 0 || !all_have_come(step)) continue;
        pass(steps_[at(step)]);
        order.push_back(step);
      }
      PT_CHECK(order.size() > before, kInternal, "the devices of '{}' do not exchange in one order",
               printable(program_.schedule));
    }
    return order;
  }

 private:
  struct Where {
    std::size_t index = 0;
    int group = 0;          // of the last step
    bool computed = false;  // since then
  };

  int next(std::size_t device) const {
    const std::size_t index = places_[device].index;
    return index < table_[device].size() ? table_[device][index] : -1;
  }

  /// To the next step of a device's list.
  void advance(std::size_t device) {
    Where& where = places_[device];
    const auto& steps = table_[device];
    for (; where.index < steps.size() && steps[where.index] < 0; ++where.index)
      where.computed = true;
  }

  bool all_have_come(int step) const {
    const auto& devices = steps_[at(step)].devices;
    return std::all_of(devices.begin(), devices.end(),
                       [&](int device) { return next(at(device)) == step; });
  }

  void pass(Step& step) {
    for (const int device : step.devices) {
      const Where& where = places_[at(device)];
      step.group = std::max(step.group, where.group + (where.computed || step.waits ? 1 : 0));
    }
    for (const int device : step.devices) {
      Where& where = places_[at(device)];
      where.group = step.group;
      where.computed = step.waits;
      ++where.index;
      advance(at(device));
    }
  }

  const Program& program_;
  std::vector<Step>& steps_;
  const StepTable& table_;
  std::vector<Where> places_;
};

}  // namespace

bool replicas_are_apart(const Program& program, int stage, const std::vector<int>& rank_of_device) {
  std::set<int> ranks;
  for (const int device : program.placement[at(stage)]) ranks.insert(rank_of_device[at(device)]);
  return ranks.size() > 1 && ranks.size() == program.placement[at(stage)].size();
}

CommunicationPlan plan_communication(const Program& program,
                                     const std::vector<int>& rank_of_device) {
  CommunicationPlan plan;
  for (const auto& list : program.device) plan.operation_at.emplace_back(list.size(), -1);
  StepTable table = plan.operation_at;
  plan.operation_of_micro_batch.assign(program.edges.size() * at(program.micro_batches), -1);
  std::vector<Step> steps = find_steps(program, rank_of_device, plan, table);
  const std::vector<int> order = Walk(program, steps, table).run();
  int ranks = 0;
  for (const int rank : rank_of_device) ranks = std::max(ranks, rank + 1);
  // By group number, as the walk found them; then each reduce of that number separately.
  std::vector<std::map<std::pair<int, int>, std::vector<int>>> groups(at(ranks));
  for (const int step : order) {
    const int operation = steps[at(step)].operation;
    if (operation < 0) continue;
    CommunicationOperation& one = plan.operations[at(operation)];
    one.group = steps[at(step)].group;
    const std::pair key(one.group, one.transfer < 0 ? operation + 1 : 0);
    for (const int device : one.devices)
      groups[at(rank_of_device[at(device)])][key].push_back(operation);
  }
  for (auto& of_rank : groups) {
    plan.groups.emplace_back();
    for (auto& [key, operations] : of_rank) plan.groups.back().push_back(std::move(operations));
  }
  return plan;
}

}  // namespace pipetrain
