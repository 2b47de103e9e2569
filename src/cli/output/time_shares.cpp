#include "cli/output/time_shares.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "graph/op.h"
#include "passes/batch_weight_gradients.h"

namespace pipetrain {

namespace {

/// A thread that only enqueues work on a stream does not know its duration; the profile does.
KernelTimes profiled_times(const PlannedNetwork& network, int units) {
  const TrainingGraph& training = network.graph();
  KernelTimes out;
  out.micro_batches = units;
  out.seconds = network.profile().node_seconds;
  for (std::size_t n = 0; n < out.seconds.size(); ++n)
    out.seconds[n] *= runs_per_micro_batch(training, training.graph.nodes[n]) * units;
  return out;
}

}  // namespace

void QuickestRound::add(KernelTimes times, double update_seconds) {
  constexpr int kRounds = 8;
  if (rounds_++ >= kRounds) return;
  const double seconds =
      std::accumulate(times.seconds.begin(), times.seconds.end(), update_seconds);
  const bool is_first = rounds_ == 1;
  if (!is_first && (times.micro_batches != times_.micro_batches || seconds >= seconds_)) return;
  times_ = std::move(times);
  update_seconds_ = update_seconds;
  seconds_ = seconds;
}

void TimeAccount::round(PipelineRun& run, const Program& program, const RoundResult& result) {
  const PlannedNetwork& network = run.network();
  std::vector<KernelTimes> times = run.runtime().take_kernel_times();
  if (!network.config().pipeline.gpu_ids.empty()) {
    if (network.profile().is_estimate || network.profile().backend == "estimate") return;
    times = {profiled_times(network, program.micro_batches)};
  }
  Sums& sums = rounds_++ == 0 ? first_ : later_;
  double update = 0;
  for (std::size_t d = 0; d < result.events.size(); ++d) {
    for (const Event& event : result.events[d]) {
      if (program.device[d][static_cast<std::size_t>(event.index)].kind == Kind::kUpdate)
        update += event.end - event.start;
    }
  }
  sums.total += result.seconds * static_cast<double>(result.events.size());
  if (kinds_.empty()) {
    for (const RuntimeVariant& variant : run.runtime_variants()) {
      std::vector<KernelKind>& kinds = kinds_.emplace_back();
      std::vector<bool>& in_update = in_update_.emplace_back();
      for (const Node& node : variant.training->graph.nodes) {
        kinds.push_back(node.op->traits.kind);
        in_update.push_back(node.part == Part::kPrepare ||
                            (node.part == Part::kFinish && !program.gradient_sync));
      }
    }
  }
  double kernels_in_update = 0;
  for (std::size_t v = 0; v < times.size(); ++v) {
    for (std::size_t n = 0; n < times[v].seconds.size(); ++n) {
      sums.kernels[static_cast<std::size_t>(kinds_[v][n])] += times[v].seconds[n];
      if (in_update_[v][n]) kernels_in_update += times[v].seconds[n];
    }
  }
  sums.optimizer += std::max(0.0, update - kernels_in_update);
  if (network.profile().is_estimate && !times.empty())
    quickest_.add(std::move(times.front()), update);
}

void TimeAccount::replace_estimate(PlannedNetwork& network) const {
  if (network.profile().is_estimate && quickest_.times().micro_batches > 0)
    network.take_measured(quickest_.times(), quickest_.update_seconds());
}

TimeShares TimeAccount::shares() const {
  const Sums& sums = rounds_ > 1 ? later_ : first_;
  TimeShares out;
  if (sums.total <= 0) return out;
  double rest = 1;
  for (std::size_t k = 0; k < out.kernels.size(); ++k) {
    out.kernels[k] = sums.kernels[k] / sums.total;
    rest -= out.kernels[k];
  }
  out.optimizer = sums.optimizer / sums.total;
  out.wait = std::max(0.0, rest - out.optimizer);
  return out;
}

std::string TimeAccount::text() const {
  if (rounds_ == 0) return {};
  const TimeShares shares = this->shares();
  std::string out;
  for (std::size_t k = 0; k < shares.kernels.size(); ++k) {
    out +=
        fmt::format("{} {:.1f} % · ", name_of(static_cast<KernelKind>(k)), shares.kernels[k] * 100);
  }
  return out + fmt::format("optimizer {:.1f} % · idle {:.1f} %", shares.optimizer * 100,
                           shares.wait * 100);
}

}  // namespace pipetrain
