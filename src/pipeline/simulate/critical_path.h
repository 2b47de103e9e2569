// The critical path of a round, and how its time is divided.
#pragma once

#include <string>
#include <vector>

#include "pipeline/program/program.h"
#include "pipeline/simulate/simulate.h"

namespace pipetrain {

/// Categories of time on the critical path.
enum class Cause {
  kCompute,  // of a stage: forwards, backwards, recomputes
  kLink,     // a transfer on an edge: the wire and the latency
  kReduce,   // sum over the replicas of a stage
  kSync,     // gradient sync
  kUpdate,   // optimizer step of a stage
  kCore,     // waking a thread, or waiting for a core that devices share
  kWait,     // unexplained by the program (measured rounds only)
};

/// When: before the busiest device computes, while it has work, after its last compute instruction.
/// Compute in the first and the last phase is what others wait for while the pipeline fills and
/// drains.
enum class Phase { kWarmUp, kSteady, kDrain };

/// One step of the critical path.
struct CriticalStep {
  int device = 0;  // a transfer's: the sender
  int index = 0;   // into Program::device[device]; a transfer's: its send, before lower() its maker
  double start = 0, end = 0;  // seconds; the end of a step is the start of the next
  Cause cause = Cause::kCompute;
  Phase phase = Phase::kSteady;
  int stage = -1;  // compute, reduce, update
  int edge = -1;   // link
};

/// Seconds of the critical path with one cause, in one phase.
struct Blame {
  Cause cause = Cause::kCompute;
  Phase phase = Phase::kSteady;
  int stage = -1;
  int edge = -1;
  double seconds = 0;
};

struct CriticalPath {
  std::vector<CriticalStep> steps;  // from 0 to the makespan, without a gap
  std::vector<Blame> blame;         // most seconds first; their sum is the makespan
  double makespan = 0;
  int bottleneck = 0;  // the device that is busy longest: the phases are its phases
};

/// Returns the chain of instructions that determines the makespan: each started when the one before
/// it ended. `events` are those of simulate(program, costs). Where several are equally late, the
/// chain stays on its device. O(instructions) for tables, then O(steps). Throws Error(kInternal) if
/// events do not fit the program.
CriticalPath critical_path(const Program& program, const Costs& costs,
                           const std::vector<std::vector<Event>>& events);

/// Returns the name of a blame: `compute of stage 2 while the pipeline fills`.
std::string to_text(const Program& program, const Blame& blame);

/// Returns the causes, most seconds first, one a line: `most` of them by name, the rest in one line
/// for each kind.
///
///      62.5 %  0.125 s  compute of stage 2
///      25.0 %  0.050 s  compute of stage 0 while the pipeline fills
///      12.5 %  0.025 s  links (6)
std::string to_text(const Program& program, const CriticalPath& path, std::size_t most = 5);

}  // namespace pipetrain
