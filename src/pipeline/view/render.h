// Draws a timed program for a terminal: one row per device, time to the right.
#pragma once

#include <string>
#include <vector>

#include "pipeline/program/event.h"
#include "pipeline/program/program.h"

namespace pipetrain {

struct RowsOptions {
  int width = 100;  // columns, the names of the devices included
  /// Colours by kind (ANSI, 256 colours), cells then hold the number of the micro-batch alone. For
  /// terminals; without it shades and letters say the kind.
  bool colour = false;
  /// Times have no unit.
  bool unitless = false;
  /// Devices drawn at most, the first and the last ones; 0: all.
  int most_rows = 0;
};

/// Returns rows like these (1f1b, 3 stages, 4 micro-batches), at most options.width columns wide,
/// for predicted and measured events alike. Cells name kind and micro-batch where there is room;
/// transfers are not drawn.
///
///     device 0 │F0F1F2        B0▓▓F3B1▓▓  B2▓▓  B3▓▓│
///     device 1 │  F0F1    B0▓▓F2B1▓▓F3B2▓▓  B3▓▓    │
///     device 2 │    F0B0▓▓F1B1▓▓F2B2▓▓F3B3▓▓        │
///              0                                18 s
std::string render_rows(const Program& program, const std::vector<std::vector<Event>>& events,
                        const RowsOptions& options);
std::string render_rows(const Program& program, const std::vector<std::vector<Event>>& events,
                        int width);

/// One line that says what the colours or letters of the rows mean.
std::string render_legend(const Program& program, const std::vector<std::vector<Event>>& events,
                          bool colour);

}  // namespace pipetrain
