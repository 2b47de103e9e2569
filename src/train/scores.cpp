#include "train/scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/setting.h"
#include "passes/loss.h"
#include "train/predict.h"

namespace pipetrain {
namespace {

// Scores that are kept for the areas under curves: 256 MiB.
constexpr std::size_t kMostKept = std::size_t{1} << 26;

std::int64_t at(const Confusion& confusion, std::int64_t label, std::int64_t prediction) {
  return confusion.counts[static_cast<std::size_t>(label * confusion.classes + prediction)];
}

double share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

ClassScore class_score(std::int64_t hits, std::int64_t labels, std::int64_t predictions) {
  ClassScore out;
  out.labels = labels;
  out.occurs = labels + predictions > 0;
  out.precision = share(hits, predictions);
  out.recall = share(hits, labels);
  out.f1 = share(2 * hits, labels + predictions);
  out.iou = share(hits, labels + predictions - hits);
  return out;
}

/// The mean over the classes that occur, as scikit-learn's macro averages.
template <class Member>
std::optional<double> mean_of(const std::vector<ClassScore>& classes, Member member) {
  double sum = 0;
  int count = 0;
  for (const ClassScore& each : classes) {
    if (!each.occurs) continue;
    sum += each.*member;
    ++count;
  }
  if (count == 0) return {};
  return sum / count;
}

/// What an output is before its activation, or after it.
enum class Form : std::uint8_t { kScores, kProbabilities };

class Scorer {
 public:
  Scorer(const Predictor& predictor, const Dataset& data, std::size_t samples, const Loss& loss,
         int k)
      : predictor_(predictor), data_(data), samples_(samples), loss_(loss), k_(k) {
    const TrainingGraph& graph = predictor.graph();
    const auto named = std::ranges::find(graph.output_names, loss.output);
    at_ = named == graph.output_names.end()
              ? 0
              : static_cast<std::size_t>(named - graph.output_names.begin());
    shape_ = graph.graph[graph.outputs[at_]].type.shape;
    form_ = gives_probabilities(graph, at_) ? Form::kProbabilities : Form::kScores;
  }

  Scores run() {
    switch (loss_.kind) {
      case LossKind::kCrossEntropy:
      case LossKind::kCausalLm:
        begin_classes();
        break;
      case LossKind::kBinaryCrossEntropy:
        begin_labels();
        break;
      case LossKind::kSquaredError:
      case LossKind::kAbsoluteError:
        break;
      case LossKind::kOutput:
        PT_FAIL(kUsage,
                "the model computes its loss itself, so nothing says which output is compared with "
                "the labels; choose it with {} and {}",
                setting("logits"), setting("loss"));
    }
    const std::size_t batch = static_cast<std::size_t>(predictor_.batch());
    for (std::size_t first = 0; first < samples_; first += batch)
      add_batch(first, std::min(batch, samples_ - first));
    return finish();
  }

 private:
  void begin_classes() {
    const Column& labels = data_.columns()[data_.columns().size() - 1];
    PT_CHECK(shape_.rank() >= 2 && labels.dtype == DType::kInt64, kUsage,
             "\"{}\" of shape {} is not the output of a classifier: it has no top-k accuracy and "
             "no confusion matrix",
             printable(loss_.output), shape_.text());
    // As the loss reads it.
    const TrainingGraph& graph = predictor_.graph();
    const std::size_t axis = class_axis(graph.graph, graph.outputs[at_]);
    last_ = axis + 1 == shape_.rank();
    Confusion& confusion = out_.confusion;
    confusion.classes = shape_[axis];
    PT_CHECK(k_ >= 1 && k_ <= confusion.classes, kUsage, "{} {}: the model has {} classes",
             setting("top-k"), k_, confusion.classes);
    if (!has_confusion_matrix(confusion.classes)) return;
    confusion.counts.resize(static_cast<std::size_t>(confusion.classes * confusion.classes));
    kept_.resize(static_cast<std::size_t>(confusion.classes));
    truth_.resize(kept_.size());
  }

  // One label is two classes; of several each is scored alone, over all positions of all samples.
  void begin_labels() {
    PT_CHECK(k_ == 1, kUsage, "{} {}: the model has two classes", setting("top-k"), k_);
    std::int64_t labels = 1;
    if (const std::size_t rank = shape_.rank(); rank >= 2 && !has_pixels_of_input()) {
      const TrainingGraph& graph = predictor_.graph();
      const std::size_t axis =
          has_positions_of_input() ? rank - 1 : class_axis(graph.graph, graph.outputs[at_]);
      labels = shape_[axis];
      behind_ = static_cast<std::size_t>(shape_.count(axis + 1, rank));
    }
    kept_.resize(static_cast<std::size_t>(labels));
    truth_.resize(kept_.size());
    out_.confusion.counts.resize(4 * kept_.size());
  }

  // (N, H, W, 1) of images (N, H, W, C): one label for each pixel, with channels last.
  bool has_positions_of_input() const {
    const std::size_t rank = shape_.rank();
    const TrainingGraph& graph = predictor_.graph();
    return rank >= 4 && shape_[rank - 1] == 1 &&
           std::ranges::any_of(graph.inputs, [&](const GraphInput& input) {
             const Shape& shape = graph.graph[input.value].type.shape;
             return shape.rank() == rank &&
                    std::equal(shape.begin() + 1, shape.end() - 1, shape_.begin() + 1);
           });
  }

  // (N, H, W) of images (N, C, H, W): one label for each pixel, whose axis was squeezed.
  bool has_pixels_of_input() const {
    const TrainingGraph& graph = predictor_.graph();
    return std::ranges::any_of(graph.inputs, [&](const GraphInput& input) {
      const auto& dims = graph.graph[input.value].type.shape.dims();
      return shape_.rank() >= 3 && dims.size() == shape_.rank() + 1 &&
             std::equal(dims.begin() + 2, dims.end(), shape_.begin() + 1, shape_.end());
    });
  }

  void add_batch(std::size_t first, std::size_t samples) {
    const HostTensor scores = predictor_.run(data_, first, samples)[at_];
    std::vector<std::size_t> indices(samples);
    std::iota(indices.begin(), indices.end(), first);
    const Column& labels = data_.columns()[data_.columns().size() - 1];
    HostTensor truth(labels.batch_type(samples));
    data_.gather(indices, data_.columns().size() - 1, truth.view());
    const auto x = scores.span<float>();
    if (out_.confusion.classes > 0) {
      add_classes(x, truth.span<std::int64_t>(), samples);
    } else if (!kept_.empty()) {
      add_labels(x, truth.span<float>());
    } else {
      add_numbers(x, truth);
    }
  }

  void add_classes(std::span<const float> x, std::span<const std::int64_t> y, std::size_t samples) {
    Confusion& confusion = out_.confusion;
    const auto classes = static_cast<std::size_t>(confusion.classes);
    const std::size_t positions = y.size() / samples;  // of each sample
    const std::size_t step = last_ ? 1 : positions;
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (y[i] == loss_.ignore_index) continue;
      const std::size_t sample = i / positions, position = i % positions;
      const float* row =
          x.data() + sample * positions * classes + (last_ ? position * classes : position);
      const auto label = static_cast<std::size_t>(y[i]);
      std::size_t best = 0;
      int before = 0;  // classes with a higher score than the label
      bool is_number = true;
      for (std::size_t c = 0; c < classes; ++c) {
        is_number = is_number && !std::isnan(row[c * step]);
        if (row[c * step] > row[best * step]) best = c;
        if (row[c * step] > row[label * step] || (row[c * step] == row[label * step] && c < label))
          ++before;
      }
      if (!confusion.counts.empty()) ++confusion.counts[label * classes + best];
      ++confusion.counted;
      if (is_number && before < k_) ++confusion.in_top_k;
      keep(row, step, row[best * step], label);
    }
  }

  // Probabilities of a row, for the areas under curves.
  void keep(const float* row, std::size_t step, float most, std::size_t label) {
    const std::size_t classes = kept_.size();
    if (kept_values_ + classes > kMostKept) {
      too_many_ = true;
      return;
    }
    kept_values_ += classes;
    double sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += std::exp(row[c * step] - most);
    for (std::size_t c = 0; c < classes; ++c) {
      kept_[c].push_back(form_ == Form::kProbabilities
                             ? row[c * step]
                             : static_cast<float>(std::exp(row[c * step] - most) / sum));
      truth_[c].push_back(c == label);
    }
  }

  void add_labels(std::span<const float> x, std::span<const float> y) {
    const float threshold = form_ == Form::kProbabilities ? 0.5F : 0;
    const std::size_t labels = kept_.size();
    for (std::size_t i = 0; i < y.size(); ++i) {
      const bool is_set = y[i] >= 0.5F, predicted = x[i] > threshold;
      const std::size_t which = i / behind_ % labels;
      ++out_.confusion.counts[4 * which + 2 * static_cast<std::size_t>(is_set) +
                              static_cast<std::size_t>(predicted)];
      ++out_.confusion.counted;
      if (kept_values_++ >= kMostKept) {
        too_many_ = true;
        continue;
      }
      kept_[which].push_back(x[i]);
      truth_[which].push_back(is_set);
    }
  }

  void add_numbers(std::span<const float> x, const HostTensor& truth) {
    spread_.add(truth.view());
    const auto y = truth.span<float>();
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double off = static_cast<double>(x[i]) - static_cast<double>(y[i]);
      absolute_ += std::abs(off);
      squares_ += off * off;
    }
    numbers_ += y.size();
  }

  Scores finish() {
    if (out_.confusion.classes == 0 && kept_.empty()) {
      PT_CHECK(numbers_ > 0, kData, "there is nothing to score");
      out_.mae = absolute_ / static_cast<double>(numbers_);
      if (spread_.total() > 0) out_.r2 = 1 - squares_ / spread_.total();
      return std::move(out_);
    }
    if (out_.confusion.classes > 0) {
      finish_classes();
    } else {
      finish_labels();
    }
    double sum = 0;
    int count = 0;
    for (std::size_t c = 0; c < kept_.size() && !too_many_; ++c) {
      const std::optional<double> area = area_under_curve(kept_[c], truth_[c]);
      if (out_.classes.size() == kept_.size()) out_.classes[c].auc = area;
      if (!area) continue;
      sum += *area;
      ++count;
    }
    if (kept_.size() == 1 && count == 1) out_.classes[0].auc = out_.classes[1].auc = sum;
    if (count > 0) out_.auc = sum / count;
    out_.f1 = mean_of(out_.classes, &ClassScore::f1);
    out_.miou = mean_of(out_.classes, &ClassScore::iou);
    return std::move(out_);
  }

  void finish_classes() {
    const Confusion& confusion = out_.confusion;
    out_.top_k = share(confusion.in_top_k, confusion.counted);
    if (confusion.counts.empty()) return;
    for (std::int64_t c = 0; c < confusion.classes; ++c) {
      std::int64_t labels = 0, predictions = 0;
      for (std::int64_t other = 0; other < confusion.classes; ++other) {
        labels += at(confusion, c, other);
        predictions += at(confusion, other, c);
      }
      out_.classes.push_back(class_score(at(confusion, c, c), labels, predictions));
    }
  }

  void finish_labels() {
    Confusion& confusion = out_.confusion;
    const std::vector<std::int64_t> counts = confusion.counts;
    const auto of = [&](std::size_t which, bool yes) {
      const std::int64_t* c = &counts[4 * which];
      return yes ? class_score(c[3], c[2] + c[3], c[1] + c[3])
                 : class_score(c[0], c[0] + c[1], c[0] + c[2]);
    };
    if (kept_.size() == 1) {
      confusion.classes = 2;
      out_.classes = {of(0, false), of(0, true)};
      return;
    }
    for (std::size_t which = 0; which < kept_.size(); ++which)
      out_.classes.push_back(of(which, true));
    confusion = {};
  }

  const Predictor& predictor_;
  const Dataset& data_;
  const std::size_t samples_;
  const Loss& loss_;
  int k_;
  std::size_t at_ = 0;  // the output
  Shape shape_;
  Form form_ = Form::kScores;
  bool last_ = true;
  std::size_t behind_ = 1;  // positions behind the axis of the labels
  Scores out_;
  std::vector<std::vector<float>> kept_;  // by class
  std::vector<std::vector<bool>> truth_;
  std::size_t kept_values_ = 0, numbers_ = 0;
  bool too_many_ = false;
  Spread spread_;
  double absolute_ = 0, squares_ = 0;
};

}  // namespace

Scores score(const Predictor& predictor, const Dataset& data, std::int64_t samples,
             const Loss& loss, int k) {
  return Scorer(predictor, data, static_cast<std::size_t>(samples), loss, k).run();
}

std::optional<double> area_under_curve(std::span<const float> scores,
                                       const std::vector<bool>& positive) {
  if (std::ranges::any_of(scores, [](float x) { return std::isnan(x); })) return {};
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return scores[i]; });
  double rank_sum = 0;
  std::size_t positives = 0;
  for (std::size_t first = 0; first < order.size();) {
    std::size_t end = first;
    std::size_t here = 0;
    while (end < order.size() && scores[order[end]] == scores[order[first]])
      here += positive[order[end++]];
    // Equal scores have the mean of their ranks.
    rank_sum += static_cast<double>(here) * (static_cast<double>(first + end + 1) / 2);
    positives += here;
    first = end;
  }
  const auto count = static_cast<double>(positives);
  const auto others = static_cast<double>(order.size() - positives);
  if (count == 0 || others == 0) return {};
  return (rank_sum - count * (count + 1) / 2) / (count * others);
}

bool gives_probabilities(const TrainingGraph& graph, std::size_t output) {
  const std::optional<FinalActivation> found = final_activation(graph.graph, graph.outputs[output]);
  return found && graph.graph[found->node].op->name != "LogSoftmax";
}

bool has_confusion_matrix(std::int64_t classes) {
  return classes > 0 && classes < (std::int64_t{1} << 14);
}

bool needs_outputs(std::string_view metric) {
  return top_of(metric) > 0 || metric == "f1" || metric == "auc" || metric == "miou" ||
         metric == "mae";
}

bool offers(const Loss& loss, std::string_view metric) {
  const bool one_class = loss.kind == LossKind::kCrossEntropy;
  const bool regression =
      loss.kind == LossKind::kSquaredError || loss.kind == LossKind::kAbsoluteError;
  if (metric == "loss") return true;
  if (metric == "accuracy") return loss.counts_correct();
  if (metric == "perplexity") return loss.kind == LossKind::kCausalLm;
  if (metric == "r2") return loss.kind == LossKind::kSquaredError;
  if (metric == "mae") return regression;
  if (const int k = top_of(metric); k > 0) return loss.counts_correct() && loss.classes >= k;
  return one_class ? has_confusion_matrix(loss.classes)
                   : loss.kind == LossKind::kBinaryCrossEntropy;
}

void add_scores(EvaluationReport& report, const Scores& scores, int k) {
  if (k > 0) {
    report.k = k;
    report.top_k = scores.top_k;
  }
  report.f1 = scores.f1;
  report.auc = scores.auc;
  report.miou = scores.miou;
  report.mae = scores.mae;
  if (!report.r2) report.r2 = scores.r2;
}

}  // namespace pipetrain
