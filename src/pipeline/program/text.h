// The text form of a schedule, which can be read, compared and edited.
#pragma once

#include <string>
#include <string_view>

#include "pipeline/program/program.h"

namespace pipetrain {

/// Returns the whole program as text, for example
///
///     pipetrain-schedule 1
///     name 1f1b
///     rule sync
///     stages 2
///     units 2
///     placement 0 1
///     transfers yes
///     edge 0>1 4096
///     edge 1>0 4096
///     device 0: 0F0 0SF0>1 0F1 0SF1>1 0RB0<1 0B0 0RB1<1 0B1 0U
///     device 1: 1RF0<0 1F0 1RF1<0 1B0 1SB0>0 1F1 1B1 1SB1>0 1U
///
/// with `recompute 0 1` (stages), `gradient-sync`, `route 0 1 0 1` (replica of each micro-batch)
/// and `units-per-update 4` (rule double-buffer) where they apply. `placement` is the device of
/// each stage, `0+1` that of two replicas, `edge` the bytes of one micro-batch; an edge to an
/// earlier stage carries gradients. Weight versions and memory slots follow from the order and are
/// not written.
std::string to_text(const Program& program);

/// Reads the text form; `#` starts a comment. Where `transfers` is `no` and no edge is given, the
/// edges are those of a chain. Versions and slots are derived. Throws Error(kUsage) with `source`
/// and line where the text cannot be understood; whether the schedule is right is for check() to
/// say.
Program parse_program(std::string_view text, const std::string& source);

}  // namespace pipetrain
