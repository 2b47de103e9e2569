// Draws a timed program for a terminal: one row per device, time to the right.
#pragma once

#include <string>
#include <vector>

#include "pipeline/event.h"
#include "pipeline/program.h"

namespace pipetrain {

/// Returns rows like these (1f1b, 3 stages, 4 units), at most `width` columns wide, for predicted
/// and measured events alike. Cells name kind and unit where there is room; transfers are not
/// drawn.
///
///     device 0 │F0F1F2        B0▓▓F3B1▓▓  B2▓▓  B3▓▓│
///     device 1 │  F0F1    B0▓▓F2B1▓▓F3B2▓▓  B3▓▓    │
///     device 2 │    F0B0▓▓F1B1▓▓F2B2▓▓F3B3▓▓        │
///              0                                18 s
std::string render_rows(const Program& program, const std::vector<std::vector<Event>>& events,
                        int width);

}  // namespace pipetrain
