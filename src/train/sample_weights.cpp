#include "train/sample_weights.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "base/input_file.h"
#include "base/setting.h"

namespace pipetrain {
namespace {

constexpr std::size_t kMostWeightBytes = std::size_t{1} << 30;

std::vector<double> balanced_weights(const Dataset& data, std::int64_t classes,
                                     std::int64_t ignored) {
  const std::size_t last = data.columns().size() - 1;
  const Column& label = data.columns()[last];
  PT_CHECK(classes > 0 && !is_float(label.dtype) && label.sample_shape.count() == 1, kUsage,
           "{} balanced needs data with one class per sample; give a file of weights",
           setting("sample-weights"));
  std::vector<std::size_t> all(data.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  HostTensor labels(label.batch_type(all.size()));
  data.gather(all, last, labels.view());
  std::vector<double> weights = labels.to_doubles();
  std::vector<double> count(static_cast<std::size_t>(classes), 0);
  const auto place = [&](double number) {
    const bool is_class = number >= 0 && number < static_cast<double>(classes) &&
                          number != static_cast<double>(ignored);
    return is_class ? static_cast<std::size_t>(number) : count.size();
  };
  for (const double number : weights) {
    if (place(number) < count.size()) ++count[place(number)];
  }
  // What is ignored is never drawn.
  for (double& number : weights)
    number = place(number) < count.size() ? 1 / count[place(number)] : 0;
  return weights;
}

std::vector<double> weights_in(const std::string& path, const Dataset& data, std::size_t rows) {
  std::istringstream file(
      with_context([] { return "reading " + setting("sample-weights"); },
                   [&] { return read_file(path, ErrorKind::kData, kMostWeightBytes); }));
  std::vector<double> weights;
  std::size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    double weight = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), weight);
    PT_CHECK(error == std::errc() && end == line.data() + line.size() && std::isfinite(weight) &&
                 weight >= 0,
             kData, "{}: {} line {} is not a weight: \"{}\"", setting("sample-weights"),
             printable(path), number, printable(line));
    weights.push_back(weight);
  }
  PT_CHECK(std::isfinite(std::accumulate(weights.begin(), weights.end(), 0.0)), kData,
           "{}: the weights of {} are too large to be added", setting("sample-weights"),
           printable(path));
  const std::size_t samples = data.size();
  bool are_first = true;
  for (std::size_t i = 0; i < samples; ++i) are_first &= data.place_of(i) == i;
  if (are_first && weights.size() == samples) return weights;
  PT_CHECK(weights.size() == rows, kData, "{}: {} has {} weights for the {} rows of the data{}",
           setting("sample-weights"), printable(path), weights.size(), rows,
           are_first ? "" : "; those of validation have one, too");
  std::vector<double> chosen(samples);
  for (std::size_t i = 0; i < samples; ++i) chosen[i] = weights[data.place_of(i)];
  return chosen;
}

}  // namespace

std::vector<double> balanced_class_weights(const Dataset& data, std::int64_t classes,
                                           std::int64_t ignored) {
  const std::size_t last = data.columns().size() - 1;
  const Column& label = data.columns()[last];
  PT_CHECK(classes > 0 && !is_float(label.dtype), kUsage,
           "{} balanced needs labels that are classes", setting("class-weights"));
  std::vector<double> weights(static_cast<std::size_t>(classes), 0);
  double counted = 0;
  constexpr std::size_t kAtOnce = 4096;
  for (std::size_t first = 0; first < data.size(); first += kAtOnce) {
    std::vector<std::size_t> indices(std::min(kAtOnce, data.size() - first));
    std::iota(indices.begin(), indices.end(), first);
    HostTensor labels(label.batch_type(indices.size()));
    data.gather(indices, last, labels.view());
    for (const std::int64_t number : labels.to_int64s()) {
      if (number < 0 || number >= classes || number == ignored) continue;
      ++weights[static_cast<std::size_t>(number)];
      ++counted;
    }
  }
  const auto occurring =
      static_cast<double>(std::ranges::count_if(weights, [](double count) { return count > 0; }));
  for (double& weight : weights) weight = weight > 0 ? counted / (occurring * weight) : 0;
  return weights;
}

std::vector<double> sample_weights(const std::string& source, const Dataset& data, std::size_t rows,
                                   std::int64_t classes, std::int64_t ignored) {
  std::vector<double> weights = source == "balanced" ? balanced_weights(data, classes, ignored)
                                                     : weights_in(source, data, rows);
  PT_CHECK(std::any_of(weights.begin(), weights.end(), [](double w) { return w > 0; }), kData,
           "{}: no sample has a weight above 0", setting("sample-weights"));
  return weights;
}

}  // namespace pipetrain
