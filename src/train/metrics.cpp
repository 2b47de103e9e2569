#include "train/metrics.h"

#include <array>
#include <charconv>

#include "base/error.h"

namespace pipetrain {
namespace {

constexpr std::array<std::string_view, 8> kMetrics = {"loss", "accuracy", "perplexity", "r2",
                                                      "mae",  "f1",       "auc",        "miou"};

}  // namespace

std::string metric_named(std::string_view name) {
  std::string_view plain = name;
  if (plain.starts_with("val_") || plain.starts_with("val-")) plain.remove_prefix(4);
  if (top_of(plain) > 0) return std::string(plain);
  if (plain == "acc") return "accuracy";
  if (plain == "ppl") return "perplexity";
  for (const std::string_view metric : kMetrics) {
    if (metric == plain) return std::string(metric);
  }
  PT_FAIL(kUsage,
          "unknown metric \"{}\"; one of: loss, accuracy, perplexity, r2, mae, f1, auc, miou, top5",
          printable(std::string(name)));
}

std::optional<double> metric_of(const EvaluationReport& report, std::string_view metric) {
  if (metric == "loss") return report.loss;
  if (metric == "accuracy") return report.accuracy;
  if (metric == "perplexity") return report.perplexity;
  if (metric == "mae") return report.mae;
  if (metric == "f1") return report.f1;
  if (metric == "auc") return report.auc;
  if (metric == "miou") return report.miou;
  if (const int k = top_of(metric); k > 0) return report.k == k ? report.top_k : std::nullopt;
  return report.r2;
}

int top_of(std::string_view metric) {
  if (!metric.starts_with("top")) return 0;
  int k = 0;
  const auto [end, error] = std::from_chars(metric.data() + 3, metric.data() + metric.size(), k);
  return error == std::errc() && end == metric.data() + metric.size() && k > 0 ? k : 0;
}

bool grows(std::string_view metric) {
  return metric != "loss" && metric != "perplexity" && metric != "mae";
}

void Spread::add(const Tensor& targets) {
  const auto values = targets.span<const float>();
  const auto rows = static_cast<std::size_t>(targets.type.shape[0]);
  if (rows == 0) return;
  const std::size_t columns = values.size() / rows;
  mean_.resize(columns);
  squares_.resize(columns);
  for (std::size_t c = 0; c < columns; ++c) {
    double mean = 0, squares = 0;
    for (std::size_t r = 0; r < rows; ++r) mean += values[r * columns + c];
    mean /= static_cast<double>(rows);
    for (std::size_t r = 0; r < rows; ++r) {
      const double off = values[r * columns + c] - mean;
      squares += off * off;
    }
    const double both = count_ + static_cast<double>(rows), apart = mean - mean_[c];
    squares_[c] += squares + apart * apart * count_ * static_cast<double>(rows) / both;
    mean_[c] += apart * static_cast<double>(rows) / both;
  }
  count_ += static_cast<double>(rows);
}

double Spread::total() const {
  double sum = 0;
  for (const double squares : squares_) sum += squares;
  return sum;
}

}  // namespace pipetrain
