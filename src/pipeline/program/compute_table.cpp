#include "pipeline/program/compute_table.h"

namespace pipetrain {
namespace {

constexpr std::size_t kComputeKinds = 5;
static_assert(static_cast<std::size_t>(Kind::kRecompute) == kComputeKinds - 1);

}  // namespace

ComputeTable::ComputeTable(const Program& program)
    : stages_(static_cast<std::size_t>(program.stages)),
      micro_batches_(static_cast<std::size_t>(program.micro_batches)),
      places_(kComputeKinds * stages_ * micro_batches_) {
  for (std::size_t d = 0; d < program.device.size(); ++d) {
    const auto& list = program.device[d];
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!is_compute(list[i].kind)) continue;
      const auto kind = static_cast<std::size_t>(list[i].kind);
      const auto stage = static_cast<std::size_t>(list[i].stage);
      const auto micro_batch = static_cast<std::size_t>(list[i].micro_batch);
      places_.at((kind * stages_ + stage) * micro_batches_ + micro_batch) = {static_cast<int>(d),
                                                                             static_cast<int>(i)};
    }
  }
}

const Place& ComputeTable::at(Kind kind, int stage, int micro_batch) const {
  return places_.at((static_cast<std::size_t>(kind) * stages_ + static_cast<std::size_t>(stage)) *
                        micro_batches_ +
                    static_cast<std::size_t>(micro_batch));
}

Place ComputeTable::activation_or_gradient(int stage, int micro_batch, bool gradient) const {
  if (!gradient) return at(Kind::kForward, stage, micro_batch);
  const Place& whole = at(Kind::kBackward, stage, micro_batch);
  return whole.exists() ? whole : at(Kind::kBackwardInput, stage, micro_batch);
}

Place ComputeTable::producer(const Edge& edge, int micro_batch) const {
  return activation_or_gradient(edge.from_stage, micro_batch, edge.gradient);
}

Place ComputeTable::consumer(const Edge& edge, int micro_batch) const {
  return activation_or_gradient(edge.to_stage, micro_batch, edge.gradient);
}

}  // namespace pipetrain
