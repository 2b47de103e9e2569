// Schedules as PyTorch writes them: comma-separated, one row per device, compute only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pipeline/program/program.h"

namespace pipetrain {

/// What a compute-only schedule does not specify.
struct RoundSettings {
  std::vector<bool> recompute;  // [stages]; empty: nowhere
  bool gradient_sync = false;
};

/// Reads the compute-only CSV of torch.distributed.pipelining: row r is the list of device r, a
/// cell is empty or `0F1` (stage, kind, micro-batch), where F is a forward, B a backward, I and W
/// its two halves (a B that has a W is an I, as older files write it); `(0F1;1B0)OVERLAP_F_B`
/// stands for its parts one after the other. The rule is kSync: reduce and update at the end of the
/// round are added. Throws Error(kUsage) with `source`, row and column (both from 1) where a cell
/// cannot be read or a stage is on two devices; whether the schedule is right is for check() to
/// say.
Program parse_compute_csv(std::string_view text, const std::string& source,
                          const RoundSettings& settings = {});

/// Writes the same form, without empty cells: the forwards and backwards of every device. What the
/// form cannot say (recompute, transfers, updates) is left out. Throws Error(kUsage) for a program
/// with replicas.
std::string to_compute_csv(const Program& program);

}  // namespace pipetrain
