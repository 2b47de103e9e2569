// The costs of a round as a file, to simulate a schedule with given times.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "pipeline/program/program.h"
#include "pipeline/simulate/simulate.h"

namespace pipetrain {

inline constexpr std::string_view kCostsSchema = "pipetrain.costs/1";

/// Reads the costs of a program. All times are seconds:
///
///     {"schema": "pipetrain.costs/1",
///      "stages": [{"forward": 0.010, "backward": 0.020, "update": 0.001},
///                 {"forward": 0.012, "backward_input": 0.013, "backward_weight": 0.011}],
///      "link": {"latency": 5e-6, "bytes_per_second": 25e9},
///      "edges": [{"from": 0, "to": 1, "bytes": 4194304, "latency": 2e-5}],
///      "units": [1, 1, 0.5], "devices": [1, 1.3], "gradient_sync": 0.002,
///      "transfers": "buffered"}
///
/// Only `stages` is required; a single entry applies to all stages. Of a stage, `backward` is the
/// sum of its two parts and the other way round each part is half of it; `recompute` is the forward
/// again, `update` and `reduce` are 0. `edges` override the link of an edge and its bytes in the
/// program. `units` and `devices` scale the seconds of one micro-batch or device. Throws
/// Error(kUsage) that names file and field.
Costs read_costs(const std::filesystem::path& path, Program& program);
/// The same from text; `file` is what errors call it.
Costs parse_costs(std::string_view text, const std::string& file, Program& program);

}  // namespace pipetrain
