#include "pipeline/view/trace_diff.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/units.h"
#include "pipeline/program/palette.h"
#include "pipeline/schedule/closed_forms.h"
#include "pipeline/view/step_graph.h"

namespace pipetrain {
namespace {

/// The integral of the longest path's slope from predicted (0) to measured (1), cause by cause. The
/// length of the path is convex and piecewise linear in the position, so pieces are found exactly:
/// where the lines at both ends of an interval meet on the curve, there is nothing between them.
class Shares {
 public:
  Shares(const StepGraph& graph, const StepGraph::Delays& from, const StepGraph::Delays& to)
      : graph_(graph), from_(from), to_(to), seconds_(graph.causes().size(), 0) {
    const StepGraph::Path first = path(0);
    const StepGraph::Path last = path(1);
    tolerance_ = 1e-10 * std::max(std::abs(first.seconds), std::abs(last.seconds));
    integrate(0, first, 1, last);
  }

  const std::vector<double>& seconds() const { return seconds_; }

 private:
  static constexpr int kMostPaths = 400;  // enough for all but the noisiest of large rounds

  StepGraph::Path path(double position) {
    ++paths_;
    return graph_.longest_path(from_, to_, position);
  }
  void add(const StepGraph::Path& path, double width) {
    for (std::size_t c = 0; c < seconds_.size(); ++c) seconds_[c] += path.per_cause[c] * width;
  }
  void integrate(double a, const StepGraph::Path& at_a, double b, const StepGraph::Path& at_b) {
    const double width = b - a;
    const double bend = at_b.slope - at_a.slope;
    if (bend * width <= tolerance_ || paths_ >= kMostPaths) {
      add(at_a, width / 2);
      add(at_b, width / 2);
      return;
    }
    const double meet =
        std::clamp((at_a.seconds - at_a.slope * a - at_b.seconds + at_b.slope * b) / bend, a, b);
    if (meet - a < 1e-9) return add(at_b, width);
    if (b - meet < 1e-9) return add(at_a, width);
    const StepGraph::Path middle = path(meet);
    if (middle.seconds <= at_a.seconds + at_a.slope * (meet - a) + tolerance_) {
      add(at_a, meet - a);
      add(at_b, b - meet);
      return;
    }
    integrate(a, at_a, meet, middle);
    integrate(meet, middle, b, at_b);
  }

  const StepGraph& graph_;
  const StepGraph::Delays& from_;
  const StepGraph::Delays& to_;
  std::vector<double> seconds_;
  double tolerance_ = 0;
  int paths_ = 0;
};

void sort_causes(std::vector<DifferenceCause>& causes) {
  std::stable_sort(causes.begin(), causes.end(),
                   [](const DifferenceCause& a, const DifferenceCause& b) {
                     return std::abs(a.seconds) > std::abs(b.seconds);
                   });
}

DifferenceCause plain_cause(CauseKind kind, double seconds) {
  DifferenceCause cause;
  cause.kind = kind;
  cause.seconds = seconds;
  return cause;
}

std::string signed_seconds(double seconds) {
  return (seconds < 0 ? "-" : "+") + seconds_text(std::abs(seconds));
}

/// "+25.0 %", or "3.2 times as long".
std::string relative_text(const StepDifference& difference) {
  if (difference.predicted_seconds <= 0) return "+0.0 %";
  const double times = difference.measured_seconds / difference.predicted_seconds;
  return times >= 3 ? fmt::format("{:.1f} times as long", times)
                    : fmt::format("{:+.1f} %", 100 * (times - 1));
}

/// "4.4 % slower (21.3 ms, predicted 20.4 ms)"
std::string change_text(const DifferenceCause& cause) {
  const double change = cause.measured_mean - cause.predicted_mean;
  if (cause.predicted_mean <= 0)
    return fmt::format("takes {}, predicted nothing", seconds_text(cause.measured_mean));
  const std::string means = fmt::format("({}, predicted {})", seconds_text(cause.measured_mean),
                                        seconds_text(cause.predicted_mean));
  // The mean may be faster while those on the critical path are slower.
  if ((change < 0) != (cause.seconds < 0)) return "uneven " + means;
  const double times = cause.measured_mean / cause.predicted_mean;
  if (times >= 3) return fmt::format("{:.1f} times as long {}", times, means);
  return fmt::format("{:.1f} % {} {}", 100 * std::abs(change) / cause.predicted_mean,
                     change < 0 ? "faster" : "slower", means);
}

}  // namespace

const char* to_text(CauseKind kind) {
  switch (kind) {
    case CauseKind::kInstruction:
      return "instruction";
    case CauseKind::kReceive:
      return "receive";
    case CauseKind::kCollective:
      return "collective";
    case CauseKind::kBetween:
      return "between";
    case CauseKind::kStartUp:
      return "start-up";
    case CauseKind::kEnd:
      return "end";
    case CauseKind::kOther:
      break;
  }
  return "other";
}

std::string DifferenceCause::text() const {
  switch (kind) {
    case CauseKind::kInstruction:
      if (stage < 0)
        return fmt::format("{}s of all stages {}", look_of(instruction).word, change_text(*this));
      return fmt::format("stage {} {} {}", stage, look_of(instruction).word, change_text(*this));
    case CauseKind::kReceive:
      if (stage < 0) return fmt::format("transfers take {}", seconds < 0 ? "less time" : "longer");
      return fmt::format("{} from stage {} take {} to reach stage {} (transfer, waking up)",
                         from_stage > stage ? "gradients" : "activations", from_stage,
                         seconds < 0 ? "less time" : "longer", stage);
    case CauseKind::kCollective:
      return stage < 0 ? std::string(look_of(instruction).word)
                       : fmt::format("{} of stage {}", look_of(instruction).word, stage);
    case CauseKind::kBetween:
      if (device < 0) return "between the instructions of all devices";
      return fmt::format("between the instructions of device {}", device);
    case CauseKind::kStartUp:
      if (device < 0) return "start-up of all devices";
      return fmt::format("start-up of device {}", device);
    case CauseKind::kEnd:
      return "after the last instruction";
    case CauseKind::kOther:
      break;
  }
  return "not explained";
}

StepDifference explain(const Program& program, const Events& predicted, const Events& measured,
                       double measured_step_seconds, const BucketsOfSides& buckets) {
  const Timeline before = timeline_of(program, predicted);
  const Timeline after = timeline_of(program, measured);
  StepDifference result;
  result.predicted_seconds = before.seconds;
  result.measured_seconds = std::max(after.seconds, measured_step_seconds);
  result.predicted_bubble = before.bubble;
  result.measured_bubble =
      after.seconds > 0 ? 1 - (1 - after.bubble) * after.seconds / result.measured_seconds : 0;
  result.theoretical_bubble =
      theoretical_bubble(program, mean_micro_batch_seconds(program, predicted));

  result.predicted_overlap = overlapped_share(program, predicted, buckets.predicted);
  result.measured_overlap = overlapped_share(program, measured, buckets.measured);

  const StepGraph graph(program);
  const StepGraph::Delays from = graph.fit(predicted);
  const StepGraph::Delays to = graph.fit(measured, &from);
  const Shares shares(graph, from, to);
  const std::vector<double> predicted_means = graph.mean_durations(from);
  const std::vector<double> measured_means = graph.mean_durations(to);
  double rest = result.seconds();
  for (std::size_t c = 0; c < graph.causes().size(); ++c) {
    DifferenceCause cause = graph.causes()[c];
    cause.seconds = shares.seconds()[c];
    cause.predicted_mean = predicted_means[c];
    cause.measured_mean = measured_means[c];
    rest -= cause.seconds;
    if (cause.seconds != 0) result.causes.push_back(cause);
  }
  const double end = result.measured_seconds - after.seconds;
  rest -= end;
  if (end > 0) result.causes.push_back(plain_cause(CauseKind::kEnd, end));
  // The remainder is rounding, or a round with more linear pieces than the limit.
  if (std::abs(rest) > 1e-9 * result.measured_seconds)
    result.causes.push_back(plain_cause(CauseKind::kOther, rest));
  sort_causes(result.causes);
  return result;
}

StepDifference mean_of(std::span<const StepDifference> differences) {
  PT_CHECK(!differences.empty(), kInternal, "the mean of no steps was asked for");
  const auto count = static_cast<double>(differences.size());
  StepDifference mean;
  mean.steps = 0;
  mean.theoretical_bubble = differences.front().theoretical_bubble;
  struct Sum {
    DifferenceCause cause;  // sums of all three numbers
    int count = 0;
  };
  std::map<std::tuple<CauseKind, Kind, int, int, int>, Sum> sums;
  for (const StepDifference& one : differences) {
    mean.steps += one.steps;
    mean.predicted_seconds += one.predicted_seconds / count;
    mean.measured_seconds += one.measured_seconds / count;
    mean.predicted_bubble += one.predicted_bubble / count;
    mean.measured_bubble += one.measured_bubble / count;
    if (one.predicted_overlap)
      mean.predicted_overlap = mean.predicted_overlap.value_or(0) + *one.predicted_overlap / count;
    if (one.measured_overlap)
      mean.measured_overlap = mean.measured_overlap.value_or(0) + *one.measured_overlap / count;
    for (const DifferenceCause& cause : one.causes) {
      Sum& sum = sums[{cause.kind, cause.instruction, cause.stage, cause.from_stage, cause.device}];
      const DifferenceCause before = sum.cause;
      sum.cause = cause;
      sum.cause.seconds += before.seconds;
      sum.cause.predicted_mean += before.predicted_mean;
      sum.cause.measured_mean += before.measured_mean;
      ++sum.count;
    }
  }
  for (auto& [key, sum] : sums) {
    sum.cause.seconds /= count;
    sum.cause.predicted_mean /= sum.count;
    sum.cause.measured_mean /= sum.count;
    mean.causes.push_back(sum.cause);
  }
  sort_causes(mean.causes);
  return mean;
}

std::vector<DifferenceCause> by_kind(const std::vector<DifferenceCause>& causes) {
  struct Sum {
    DifferenceCause cause;
    int count = 0;
  };
  std::map<std::pair<CauseKind, Kind>, Sum> sums;
  for (const DifferenceCause& cause : causes) {
    Sum& sum = sums[{cause.kind, cause.instruction}];
    sum.cause.kind = cause.kind;
    sum.cause.instruction = cause.instruction;
    sum.cause.seconds += cause.seconds;
    sum.cause.predicted_mean += cause.predicted_mean;
    sum.cause.measured_mean += cause.measured_mean;
    ++sum.count;
  }
  std::vector<DifferenceCause> result;
  for (auto& [key, sum] : sums) {
    sum.cause.predicted_mean /= sum.count;
    sum.cause.measured_mean /= sum.count;
    result.push_back(sum.cause);
  }
  sort_causes(result);
  return result;
}

std::string difference_text(const StepDifference& difference, int most_causes) {
  const double seconds = difference.seconds();
  std::string text = fmt::format(
      "predicted step {}, measured {}{}: {} ({})\n", seconds_text(difference.predicted_seconds),
      seconds_text(difference.measured_seconds),
      difference.steps > 1 ? fmt::format(" (mean of {} steps)", difference.steps) : "",
      signed_seconds(seconds), relative_text(difference));
  // A single device waits for none.
  constexpr double kShown = 5e-4;
  if (difference.predicted_bubble >= kShown || difference.measured_bubble >= kShown) {
    text += "bubble ";
    if (difference.theoretical_bubble)
      text += fmt::format("in theory {:.1f} %, ", 100 * *difference.theoretical_bubble);
    text += fmt::format("predicted {:.1f} %, measured {:.1f} %\n",
                        100 * difference.predicted_bubble, 100 * difference.measured_bubble);
  }
  if (difference.measured_overlap) {
    text += "sums of gradients during the backward: ";
    if (difference.predicted_overlap)
      text += fmt::format("predicted {:.0f} %, ", 100 * *difference.predicted_overlap);
    text += fmt::format("measured {:.0f} %\n", 100 * *difference.measured_overlap);
  }
  // Nothing below a thousandth of the step is worth a line.
  const double least = 1e-3 * difference.measured_seconds;
  double rest = seconds;
  double large = 0, all = 0;
  for (std::size_t c = 0; c < difference.causes.size(); ++c) {
    const double size = std::abs(difference.causes[c].seconds);
    all += size;
    if (static_cast<int>(c) < most_causes) large += size;
  }
  int lines = 0;
  for (const DifferenceCause& cause :
       2 * large < all ? by_kind(difference.causes) : difference.causes) {
    if (lines == most_causes || std::abs(cause.seconds) < least) break;
    text += fmt::format("  {:>10}  {}\n", signed_seconds(cause.seconds), cause.text());
    rest -= cause.seconds;
    ++lines;
  }
  if (lines > 0 && std::abs(rest) >= least)
    text += fmt::format("  {:>10}  other\n", signed_seconds(rest));
  return text;
}

}  // namespace pipetrain
