#include "pipeline/program/program_cut.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/index.h"

namespace pipetrain {

std::vector<int> cut_points(const Program& program) {
  if (!is_asynchronous(program.rule)) return {};
  // How many replicas can be cut after each number of micro-batches.
  std::vector<int> votes(at(program.micro_batches) + 1, 0);
  int voters = 0;
  for (const auto& list : program.device) {
    std::map<int, int> furthest;  // [stage]: the last micro-batch that has been run backward
    std::set<int> stages;
    for (const Instruction& instruction : list) {
      if (instruction.stage < 0 || is_transfer(instruction.kind)) continue;
      stages.insert(instruction.stage);
      int& last = furthest.try_emplace(instruction.stage, -1).first->second;
      const bool backward =
          instruction.kind == Kind::kBackward || instruction.kind == Kind::kBackwardInput ||
          instruction.kind == Kind::kBackwardWeight || instruction.kind == Kind::kRecompute;
      if (backward) last = std::max(last, instruction.micro_batch);
      if (instruction.kind == Kind::kUpdate && last <= instruction.micro_batch)
        ++votes[at(instruction.micro_batch + 1)];
    }
    voters += static_cast<int>(stages.size());
  }
  std::vector<int> points;
  for (int micro_batches = 1; micro_batches < program.micro_batches; ++micro_batches) {
    if (votes[at(micro_batches)] == voters) points.push_back(micro_batches);
  }
  return points;
}

ProgramCut cut_program(const Program& program, int micro_batches_done) {
  ProgramCut cut;
  cut.micro_batches_done = micro_batches_done;
  cut.rest = program;
  cut.replayed.assign(at(program.stages), std::vector<bool>(at(program.micro_batches), false));
  cut.versions.resize(at(program.stages));
  std::vector<int> newest(at(program.stages), -1);
  for (std::size_t d = 0; d < program.device.size(); ++d) {
    const auto& list = program.device[d];
    std::map<int, std::size_t> end;  // [stage]: index of the update after which it is cut
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind != Kind::kUpdate || list[i].micro_batch != micro_batches_done - 1) continue;
      end[list[i].stage] = i;
      newest[at(list[i].stage)] = list[i].version;
    }
    auto& rest = cut.rest.device[d];
    rest.clear();
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Instruction& instruction = list[i];
      PT_CHECK(instruction.stage >= 0 && end.contains(instruction.stage), kInternal,
               "the program cannot be cut after {} micro-batches", micro_batches_done);
      const bool before = i <= end.at(instruction.stage);
      const bool forward = instruction.kind == Kind::kForward;
      // A gradient may be received before an update of the stage, and read after it.
      const bool runs_again = forward || is_transfer(instruction.kind);
      if (before && (instruction.micro_batch < micro_batches_done || !runs_again)) continue;
      if (before && forward)
        cut.replayed[at(instruction.stage)][at(instruction.micro_batch)] = true;
      rest.push_back(instruction);
    }
  }
  std::vector<std::set<int>> read(at(program.stages));
  for (int s = 0; s < program.stages; ++s) read[at(s)].insert(newest[at(s)]);
  for (const auto& list : cut.rest.device) {
    for (const Instruction& instruction : list) {
      if (is_compute(instruction.kind) && instruction.version < newest[at(instruction.stage)])
        read[at(instruction.stage)].insert(instruction.version);
    }
  }
  for (int s = 0; s < program.stages; ++s)
    cut.versions[at(s)].assign(read[at(s)].begin(), read[at(s)].end());
  return cut;
}

}  // namespace pipetrain
