#include "cli/commands/lr_find.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands/run_messages.h"
#include "cli/output/line_chart.h"
#include "cli/output/output.h"
#include "train/fresh_weights.h"
#include "train/trainer.h"

namespace pipetrain {
namespace {

constexpr double kLeastRate = 1e-7, kMostRate = 10;
constexpr std::int64_t kSteps = 100;
constexpr double kKept = 0.8;      // of the mean, by each step
constexpr double kTooLarge = 4;    // times the least loss: the test ends
constexpr std::size_t kFirst = 5;  // points that say little: the mean has just begun

std::vector<double> smooth_losses(const std::vector<RangePoint>& points) {
  std::vector<double> losses;
  for (const RangePoint& point : points) losses.push_back(point.loss);
  return smoothed(losses, kKept);
}

/// Collects losses, and stops when they have grown.
class RangeTest final : public TrainingObserver {
 public:
  void on_step(const StepReport& report) override {
    if (std::isfinite(report.loss)) points.push_back({report.learning_rate, report.loss});
    least_ = std::min(least_, report.loss);
    const double first = points.empty() ? 0 : points.front().loss;
    over_ =
        !std::isfinite(report.loss) ||
        (points.size() > kFirst && report.loss - least_ > kTooLarge * std::abs(first - least_) &&
         report.loss > 2 * std::abs(first));
  }
  RunRequests requests() override { return {.stop = over_}; }

  std::vector<RangePoint> points;

 private:
  double least_ = std::numeric_limits<double>::infinity();
  bool over_ = false;
};

std::string svg_of(const std::vector<RangePoint>& points) {
  Curve loss{"loss", {}, {}, /*faint=*/true}, mean{"smoothed", {}, smooth_losses(points)};
  for (const RangePoint& point : points) {
    loss.x.push_back(std::log10(point.rate));
    loss.y.push_back(point.loss);
  }
  mean.x = loss.x;
  std::string image = line_chart({"loss", "log10 of the learning rate", {loss, mean}});
  const std::string style =
      "<style>text{font:11px sans-serif}.grid{stroke:#d0d7de}.axis{stroke:#656d76}.c0,.c1{fill:"
      "none;stroke-width:1.8;stroke:#3b7dd8}.c1{stroke:#d9791f}.p0{fill:#3b7dd8}.p1{fill:#d9791f}"
      ".faint{opacity:.35}.name{text-anchor:end}.tick{text-anchor:middle}</style>";
  const std::size_t end = image.find('>');
  if (end != std::string::npos) image.insert(end + 1, style);
  if (const std::size_t open = image.find("<svg"); image.find("xmlns") == std::string::npos)
    image.insert(open + 4, " xmlns=\"http://www.w3.org/2000/svg\"");
  return image;
}

}  // namespace

double suggested_rate(const std::vector<RangePoint>& points) {
  const std::vector<double> losses = smooth_losses(points);
  // After its minimum the loss jumps up and down.
  const auto least = static_cast<std::size_t>(std::ranges::min_element(losses) - losses.begin());
  double steepest = 0, rate = 0;
  for (std::size_t i = kFirst; i + 2 < points.size() && i <= least; ++i) {
    const double slope =
        (losses[i + 1] - losses[i - 1]) / std::log(points[i + 1].rate / points[i - 1].rate);
    if (slope >= steepest) continue;
    steepest = slope;
    rate = points[i].rate;
  }
  return rate;
}

std::string range_plot(const std::vector<RangePoint>& points, std::size_t width) {
  constexpr std::size_t kRows = 12, kScale = 11;
  const std::vector<double> losses = smooth_losses(points);
  if (points.size() < 2 || width <= kScale) return {};
  const auto [low, high] = std::ranges::minmax(losses);
  const double span = high > low ? high - low : 1;
  const std::size_t columns = width - kScale;
  std::vector<std::string> rows(kRows, std::string(columns, ' '));
  const double first = std::log10(points.front().rate), last = std::log10(points.back().rate);
  const auto place = [](double share, std::size_t count) {
    return std::min(count - 1, static_cast<std::size_t>(share * static_cast<double>(count)));
  };
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::size_t x = place((std::log10(points[i].rate) - first) / (last - first), columns);
    rows[kRows - 1 - place((losses[i] - low) / span, kRows)][x] = '*';
  }
  std::string out;
  for (std::size_t y = 0; y < kRows; ++y) {
    const std::string label = y == 0           ? fmt::format("{:>8.4g}", high)
                              : y == kRows - 1 ? fmt::format("{:>8.4g}", low)
                                               : std::string(8, ' ');
    out += label + " | " + rows[y].substr(0, rows[y].find_last_not_of(' ') + 1) + "\n";
  }
  const std::string left = fmt::format("{:.0e}", points.front().rate);
  const std::string right = fmt::format("{:.0e}", points.back().rate);
  const std::size_t gap = columns - std::min(columns, left.size() + right.size());
  return out + std::string(kScale, ' ') + left + std::string(gap, ' ') + right + "\n";
}

int find_learning_rate(Options& options) {
  const bool draws = options.output.ends_with(".svg");
  PT_CHECK(draws || options.output.empty(), kUsage,
           "--lr find trains no model; name the --output .svg for the curve, or leave it out");
  OptimizationConfig& optimization = options.run.optimization;
  optimization.max_steps = kSteps;
  optimization.learning_rate = {
      .kind = LearningRateKind::kRange, .peak = kMostRate, .minimum = kLeastRate};
  optimization.warmup = 0;
  optimization.rate_by_time = false;
  optimization.evaluate_every = 0;
  optimization.patience = 0;
  optimization.best_metric = "loss";
  optimization.on_nonfinite = OnNonfinite::kIgnore;
  options.run.pipeline.brief_profile = true;
  PlannedNetwork network = plan_network(options.run, RunMode::kTrain);
  PipelineRun run(network, 0, FileWeights::kRelease);
  if (options.init == "random") {
    for (const auto& [name, value] : fresh_weights(network.model(), optimization.seed))
      run.runtime().write(name, value);
  }
  RangeTest test;
  train(run, test);
  PT_CHECK(test.points.size() > 2 * kFirst, kDiverged,
           "--lr find: the loss is not finite after {} steps, at a learning rate of {:.1e}",
           test.points.size(), test.points.empty() ? kLeastRate : test.points.back().rate);
  print(range_plot(test.points, 78));
  if (draws) write_file(options.output, svg_of(test.points));
  const double rate = suggested_rate(test.points);
  PT_CHECK(rate > 0, kDiverged, "--lr find: the loss does not fall at any learning rate");
  print(
      fmt::format("lr {:.2g}: the loss falls fastest there; train with --lr {:.2g}\n", rate, rate));
  return 0;
}

}  // namespace pipetrain
