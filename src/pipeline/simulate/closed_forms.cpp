#include "pipeline/simulate/closed_forms.h"

#include <algorithm>
#include <cmath>

namespace pipetrain {
namespace {

bool nearly_equal(const UnitSeconds& unit) {
  const auto [least, most] = std::minmax({unit.forward, unit.input_gradient, unit.weight_gradient});
  return least >= 0.9 * most;
}

/// Seconds that a device is idle in the round; p devices, m units, v stages on each device.
std::optional<double> idle_seconds(const Program& program, const UnitSeconds& unit) {
  const double p = program.devices;
  const double m = program.units;
  const double v = static_cast<double>(program.stages) / p;
  const double f = unit.forward;
  const double i = unit.input_gradient;
  const double w = unit.weight_gradient;
  const std::string& name = program.schedule;
  if (p == 1) return 0.0;
  if (name == "gpipe" || name == "1f1b" || name == "1f1b-eager" || name == "1f1b-auto" ||
      name == "forward" || is_asynchronous(program.rule))
    return (p - 1) * (f + i + w);
  if (name == "interleaved-1f1b") return (p - 1) * (f + i + w) / v;
  const bool plain_costs = w <= f * 1.001 && w <= i * 1.001;
  if (name == "interleaved-zb" && plain_costs) return (p - 1) * (f + i - w) / v;
  if (name == "zb-h1" && plain_costs && m >= p) return (p - 1) * (f + i - w);
  if ((name == "zb" || name == "zb-h2") && plain_costs) {
    // With a barrier the memory beyond K = p saves less than it does in the period.
    const double k =
        *std::max_element(program.slots_per_stage.begin(), program.slots_per_stage.end());
    if (k < p || m < k) return std::nullopt;
    return std::max((p - 1) * (f + i - w) - (k - p) * w, (p - 1) * f);
  }
  const double chunk = (f + i + w) / 3 / v;  // the unit of the forms for equal f, i and w
  if (!nearly_equal(unit) || m < 2 * p - 1) return std::nullopt;
  if (name == "zb-v") return (p - 1) * chunk;
  if (name == "v-half") return (program.devices % 2 == 1 ? 3.5 * (p - 1) : 3.5 * p - 2) * chunk;
  if (name == "v-min") return (program.devices % 3 == 0 ? 4 * p - 3 : 4 * p - 5) * chunk;
  return std::nullopt;
}

}  // namespace

UnitSeconds mean_unit_seconds(const Program& program, const Events& events) {
  UnitSeconds sum;
  for (std::size_t d = 0; d < events.size(); ++d) {
    for (std::size_t n = 0; n < events[d].size(); ++n) {
      const double seconds = events[d][n].end - events[d][n].start;
      switch (program.device[d][n].kind) {
        case Kind::kForward:
          sum.forward += seconds;
          break;
        case Kind::kBackward:
          sum.input_gradient += seconds / 2;
          sum.weight_gradient += seconds / 2;
          break;
        case Kind::kBackwardInput:
        case Kind::kRecompute:
          sum.input_gradient += seconds;
          break;
        case Kind::kBackwardWeight:
          sum.weight_gradient += seconds;
          break;
        default:
          break;
      }
    }
  }
  const double count = static_cast<double>(program.devices) * program.units;
  return {sum.forward / count, sum.input_gradient / count, sum.weight_gradient / count};
}

std::optional<double> theoretical_bubble(const Program& program, const UnitSeconds& unit) {
  for (const auto& devices : program.placement) {
    if (devices.size() > 1) return std::nullopt;
  }
  const double work = unit.total() * program.units;
  if (work <= 0) return std::nullopt;
  const std::optional<double> idle = idle_seconds(program, unit);
  if (!idle) return std::nullopt;
  return *idle / (work + *idle);
}

}  // namespace pipetrain
