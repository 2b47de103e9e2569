// A step of a run as a line of text, and its stages as bars, fitted to a number of columns.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "train/trainer.h"

namespace pipetrain {

/// "4m22s".
std::string duration_text(double seconds);

/// Columns that a text takes on a terminal: one for each character.
std::size_t columns_of(std::string_view text);

/// A loss in seven columns: "0.4312", "655.908", "1.2e+09".
std::string loss_text(double loss);

/// A validation as a row of the same table.
std::string validation_line(const EvaluationReport& report, std::int64_t total_steps);

/// A step as one line. `eta_seconds`: until the end of the run, negative where unknown. `width`:
/// the least important fields are dropped until the line fits; 0: all fields.
std::string progress_line(const StepReport& report, double eta_seconds, std::size_t width);

/// Busy time of the devices, as bars with percentages; as one character each if there is no room
/// for bars; the first ones if there is no room for all. Empty for fewer than two.
std::string stage_bars(const std::vector<double>& busy, std::size_t width, bool color);

}  // namespace pipetrain
