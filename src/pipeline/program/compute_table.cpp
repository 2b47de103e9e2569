#include "pipeline/program/compute_table.h"

namespace pipetrain {
namespace {

constexpr std::size_t kComputeKinds = 5;
static_assert(static_cast<std::size_t>(Kind::kRecompute) == kComputeKinds - 1);

}  // namespace

ComputeTable::ComputeTable(const Program& program)
    : stages_(static_cast<std::size_t>(program.stages)),
      units_(static_cast<std::size_t>(program.units)),
      places_(kComputeKinds * stages_ * units_) {
  for (std::size_t d = 0; d < program.device.size(); ++d) {
    const auto& list = program.device[d];
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!is_compute(list[i].kind)) continue;
      const auto kind = static_cast<std::size_t>(list[i].kind);
      const auto stage = static_cast<std::size_t>(list[i].stage);
      const auto unit = static_cast<std::size_t>(list[i].unit);
      places_.at((kind * stages_ + stage) * units_ + unit) = {static_cast<int>(d),
                                                              static_cast<int>(i)};
    }
  }
}

const Place& ComputeTable::at(Kind kind, int stage, int unit) const {
  return places_.at((static_cast<std::size_t>(kind) * stages_ + static_cast<std::size_t>(stage)) *
                        units_ +
                    static_cast<std::size_t>(unit));
}

Place ComputeTable::activation_or_gradient(int stage, int unit, bool gradient) const {
  if (!gradient) return at(Kind::kForward, stage, unit);
  const Place& whole = at(Kind::kBackward, stage, unit);
  return whole.exists() ? whole : at(Kind::kBackwardInput, stage, unit);
}

Place ComputeTable::producer(const Edge& edge, int unit) const {
  return activation_or_gradient(edge.from_stage, unit, edge.gradient);
}

Place ComputeTable::consumer(const Edge& edge, int unit) const {
  return activation_or_gradient(edge.to_stage, unit, edge.gradient);
}

}  // namespace pipetrain
