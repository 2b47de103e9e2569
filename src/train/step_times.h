// Times of the steps of a run, and which share of the devices' peak rate they reach.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "base/statistics.h"
#include "passes/training_graph.h"

namespace pipetrain {

struct RoundResult;
struct StepReport;
struct TrainingSummary;

class StepTimes {
 public:
  /// `peak_flops`: measures FLOP/s of all devices; may be empty.
  StepTimes(const TrainingGraph& graph, std::function<double()> peak_flops)
      : graph_(graph), ask_(std::move(peak_flops)) {}

  /// Measures the peak, once. Not before the first step, so as not to delay it.
  void ask_for_peak();
  /// Sets the share of the peak in a report, which knows its samples per second.
  void set_model_utilisation(StepReport& report) const;
  /// Sets how long the stages were busy.
  static void set_utilisation(StepReport& report, const RoundResult& result);

  // Of the steps that predictions are for.
  void note_seconds(double seconds) { seconds_.add(seconds); }
  void note_bubble(double bubble) { bubbles_.add(bubble); }
  /// Medians of the steps that are warm, of so many samples each.
  void summarize(std::int64_t samples, TrainingSummary& summary) const;

 private:
  const TrainingGraph& graph_;
  std::function<double()> ask_;
  bool asked_ = false;
  double sample_flops_ = 0, peak_flops_ = 0;  // 0: unknown
  ThinnedValues seconds_, bubbles_;
};

}  // namespace pipetrain
