// pipetrain predict: writes a model's outputs, row by row.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/stale_files.h"
#include "cli/commands/commands.h"
#include "cli/commands/position_classes.h"
#include "cli/output/output.h"
#include "cli/output/output_table.h"
#include "data/formats/csv_cells.h"
#include "data/rows/good_rows.h"
#include "data/rows/row_source.h"
#include "onnx_io/reader.h"
#include "passes/loss.h"
#include "train/export.h"
#include "train/given_shapes.h"
#include "train/predict.h"
#include "train/scores.h"

namespace pipetrain {
namespace {

constexpr char kTrainingPartNote[] =
    "note     the training part of the data is predicted, not the validation part";

/// The output format: --to, else the file's extension, else JSON Lines.
std::string form_of(const Options& options) {
  if (!options.to.empty()) return options.to;
  for (const char* form : {"npz", "csv", "jsonl"}) {
    if (options.output.ends_with(std::string(".") + form)) return form;
  }
  PT_CHECK(options.output.empty() || options.output == "-", kUsage,
           "unknown output format; name the output .npz, .csv or .jsonl, or give --to");
  return "jsonl";
}

/// Writes rows to a file or to standard output as they are computed.
class RowWriter {
 public:
  explicit RowWriter(const std::string& path) {
    if (!path.empty() && path != "-") file_.emplace(path);
  }
  void write(const std::string& text) {
    if (file_) {
      file_->write(text);
    } else {
      print_data(text);
      std::fflush(stdout);
    }
  }
  void finish() {
    if (file_) file_->commit();
  }

 private:
  std::optional<AtomicFile> file_;
};

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Extra columns after the outputs of a row: its file if the samples are files; of a classifier the
/// predicted class, its name if classes have names, and the probabilities. In an archive they are
/// arrays. Their names get underscores where outputs have them already.
class ExtraColumns {
 public:
  ExtraColumns(const RawSplit& raw, const BoundData& bound, const OnnxModel& model,
               const TrainingGraph& graph, const TrainingDescription& training,
               const std::vector<std::string>& outputs)
      : class_names_(trained_classes(model)), has_own_names_(!class_names_.empty()) {
    if (const auto* good = dynamic_cast<const GoodRows*>(bound.dataset.get())) rows_ = good->rows();
    for (const RawColumn& column : raw.columns) {
      if (column.source && !column.source->name(0).empty()) files_ = column.source;
      if (class_names_.empty()) class_names_ = column.class_names;
    }
    find_scores(graph, training);
    if (files_) names_.push_back("file");
    if (scores_ && !several_) {
      names_.push_back("class");
      if (!class_names_.empty()) names_.push_back("class_name");
    }
    for (std::string& name : names_) {
      while (std::ranges::count(outputs, name) > 0) name += "_";
    }
    while (std::ranges::count(outputs, probabilities_name_) > 0) probabilities_name_ += "_";
    const auto begins = [&](const std::string& output) {
      return output == probability_name_ || output.starts_with(probability_name_ + "_");
    };
    while (std::ranges::any_of(outputs, begins)) probability_name_ += "_";
  }

  std::string header() const {
    std::string out;
    for (const std::string& name : names_) out += "," + name;
    for (std::size_t c = 0; scores_ && c < classes_; ++c)
      out += "," + quoted_cell(probability_name_ + "_" + name_of_class(c));
    return out;
  }

  std::string csv(std::size_t sample, const std::vector<HostTensor>& outputs,
                  std::size_t row) const {
    std::string out;
    if (files_) out += "," + quoted_cell(file(sample));
    if (!scores_) return out;
    const std::vector<double> all = probabilities(outputs, row);
    if (!several_) {
      const std::optional<std::size_t> likeliest = class_of(all);
      out += likeliest ? fmt::format(",{}", *likeliest) : ",";
      if (!class_names_.empty())
        out += "," + (likeliest ? quoted_cell(class_names_[*likeliest]) : "");
    }
    for (const double p : all) out += std::isnan(p) ? "," : fmt::format(",{:.6g}", p);
    return out;
  }

  std::string json(std::size_t sample, const std::vector<HostTensor>& outputs,
                   std::size_t row) const {
    std::vector<std::string> values;
    if (files_) values.push_back(json_text(file(sample)));
    std::string rest;
    if (scores_) {
      const std::vector<double> all = probabilities(outputs, row);
      const std::optional<std::size_t> likeliest = class_of(all);
      if (!several_) values.push_back(likeliest ? fmt::format("{}", *likeliest) : "null");
      if (!several_ && !class_names_.empty())
        values.push_back(likeliest ? json_text(class_names_[*likeliest]) : "null");
      for (std::size_t c = 0; c < classes_; ++c)
        rest += fmt::format("{}{}:{}", c > 0 ? "," : "", json_text(name_of_class(c)),
                            std::isnan(all[c]) ? "null" : fmt::format("{:.6g}", all[c]));
      rest = "," + json_text(probabilities_name_) + ":{" + rest + "}";
    }
    std::string out;
    for (std::size_t i = 0; i < names_.size(); ++i)
      out += "," + json_text(names_[i]) + ":" + values[i];
    return out + rest;
  }

  /// Keeps what the arrays of an archive have of a row.
  void collect(std::size_t sample, const std::vector<HostTensor>& outputs, std::size_t row) {
    if (files_) kept_files_.push_back(file(sample));
    if (!scores_) return;
    const std::vector<double> all = probabilities(outputs, row);
    kept_probabilities_.insert(kept_probabilities_.end(), all.begin(), all.end());
    if (several_) return;
    const std::optional<std::size_t> likeliest = class_of(all);
    kept_classes_.push_back(likeliest ? static_cast<std::int64_t>(*likeliest) : -1);
    if (!class_names_.empty())
      kept_names_.push_back(likeliest ? class_names_[*likeliest] : std::string());
  }

  /// Adds these arrays: -1 and an empty name where a value is NaN.
  void add_arrays(std::vector<std::pair<std::string, std::string>>& arrays) const {
    auto name = names_.begin();
    if (files_) arrays.emplace_back(*name++, npy_text(kept_files_));
    if (!scores_) return;
    if (!several_) {
      arrays.emplace_back(*name++, npy_text(HostTensor::of<std::int64_t>(
                                       Shape{std::ssize(kept_classes_)}, kept_classes_)));
      if (!class_names_.empty()) arrays.emplace_back(*name++, npy_text(kept_names_));
    }
    const auto classes = static_cast<std::int64_t>(classes_);
    const Shape shape{std::ssize(kept_probabilities_) / classes, classes};
    arrays.emplace_back(probabilities_name_,
                        npy_text(HostTensor::of<float>(shape, kept_probabilities_)));
  }

 private:
  /// The output that has a score for each class or label, by how the model was trained.
  void find_scores(const TrainingGraph& graph, const TrainingDescription& training) {
    several_ = training.loss == "bce";
    if (training.loss != "cross-entropy" && !several_ && class_names_.empty()) return;
    for (std::size_t k = 0; k < graph.outputs.size() && !scores_; ++k) {
      const TensorType& type = graph.graph[graph.outputs[k]].type;
      if (!training.loss_output.empty() && graph.output_names[k] != training.loss_output) continue;
      if (type.dtype != DType::kFloat32 || type.shape.rank() == 0 || type.shape.rank() > 2)
        continue;
      const std::int64_t width = type.shape.rank() == 2 ? type.shape[1] : 1;
      const std::int64_t names = std::ssize(class_names_);
      // A classifier may have more outputs than the data had classes.
      const bool fits = names == 0 || width == names || several_ ||
                        (training.loss == "cross-entropy" && width > names);
      if (!fits || (width < 2 && !several_)) continue;
      scores_ = k;
      classes_ = static_cast<std::size_t>(width);
      activated_ = gives_probabilities(graph, k);
    }
    // A single label is the second of two classes.
    if (several_ && classes_ == 1) several_ = !(one_label_ = true);
    if (one_label_) classes_ = 2;
    // Classes that the training data did not have are called by their numbers. Other data's names
    // need not be those of the first classes.
    const bool has_names = training.loss == "cross-entropy" && has_own_names_;
    while (has_names && class_names_.size() < classes_) {
      std::string name = fmt::format("{}", class_names_.size());
      while (std::ranges::count(class_names_, name) > 0) name += "_";
      class_names_.push_back(std::move(name));
    }
    if (class_names_.size() != classes_) class_names_.clear();
  }

  std::string name_of_class(std::size_t c) const {
    return class_names_.empty() ? fmt::format("{}", c) : class_names_[c];
  }

  std::string file(std::size_t sample) const {
    return files_->name(rows_.empty() ? sample : rows_[sample]);
  }

  std::vector<double> probabilities(const std::vector<HostTensor>& outputs, std::size_t row) const {
    const std::size_t width = one_label_ ? 1 : classes_;
    const auto scores = outputs[*scores_].span<const float>().subspan(row * width, width);
    std::vector<double> out(scores.begin(), scores.end());
    if (!activated_ && (several_ || one_label_)) {
      for (double& x : out) x = 1 / (1 + std::exp(-x));
    } else if (!activated_) {
      const double most = *std::ranges::max_element(out);
      double sum = 0;
      for (double& x : out) sum += x = std::exp(x - most);
      for (double& x : out) x /= sum;
    }
    if (one_label_) out.insert(out.begin(), 1 - out[0]);
    return out;
  }

  /// The likeliest class, the first of equal ones; none if a value is NaN.
  static std::optional<std::size_t> class_of(const std::vector<double>& all) {
    if (std::ranges::any_of(all, [](double x) { return std::isnan(x); })) return {};
    return static_cast<std::size_t>(std::ranges::max_element(all) - all.begin());
  }

  std::vector<std::size_t> rows_;  // of the samples; empty: all of them in order
  std::vector<std::string> class_names_;
  bool has_own_names_ = false;  // the model has names of its classes
  std::shared_ptr<const RowSource> files_;
  std::optional<std::size_t> scores_;  // the output that has a value for each class
  std::size_t classes_ = 0;
  bool activated_ = false;                            // which are probabilities already
  bool several_ = false;                              // a sample may have several labels
  bool one_label_ = false;                            // a score of the second of two classes
  std::vector<std::string> names_;                    // of the columns before the probabilities
  std::string probabilities_name_ = "probabilities";  // of all together
  std::string probability_name_ = "probability";      // of a table's columns, before the class
  std::vector<std::string> kept_files_, kept_names_;
  std::vector<std::int64_t> kept_classes_;
  std::vector<float> kept_probabilities_;  // [row][class]
};

/// How a model was trained: what is given of the loss, else what the model says, else by rule.
TrainingDescription training_in_force(const OnnxModel& model, const TrainingGraph& graph,
                                      const LossOptions& given) {
  TrainingDescription training = described_training(model.metadata);
  if (given.loss != "auto") training.loss = given.loss;
  if (!given.output.empty()) training.loss_output = given.output;
  const bool has_classes = training.loss == "cross-entropy" || training.loss == "bce";
  // Someone may have replaced the scores of a classifier by their ArgMax.
  const bool has_scores = std::ranges::any_of(
      graph.outputs, [&](ValueId output) { return is_float(graph.graph[output].type.dtype); });
  if (has_classes && has_scores && training.loss_output.empty()) {
    LossOptions by_rule;
    by_rule.loss = training.loss;
    training.loss_output = graph.output_names[output_of_loss(graph, by_rule)];
  }
  return training;
}

/// Concatenates parts of an array.
HostTensor joined(const std::vector<HostTensor>& pieces) {
  std::vector<std::int64_t> dims = pieces[0].type().shape.dims();
  dims[0] = 0;
  for (const HostTensor& piece : pieces) dims[0] += piece.type().shape[0];
  HostTensor out(TensorType{pieces[0].dtype(), Shape(dims)});
  auto* to = static_cast<std::byte*>(out.view().data);
  for (const HostTensor& piece : pieces) {
    const auto* from = static_cast<const std::byte*>(piece.view().data);
    to = std::copy(from, from + piece.type().bytes(), to);
  }
  return out;
}

/// Writes all rows of each output as an array.
void write_arrays(const Options& options, const std::vector<std::string>& names,
                  const std::vector<std::vector<HostTensor>>& pieces, const ExtraColumns& extra) {
  std::vector<std::pair<std::string, std::string>> arrays;
  for (std::size_t k = 0; k < pieces.size(); ++k)
    arrays.emplace_back(names[k], npy_text(joined(pieces[k])));
  extra.add_arrays(arrays);
  const std::string text = npz_text(arrays);
  if (options.output.empty() || options.output == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
  } else {
    write_file(options.output, text);
  }
}

/// A batch, which is no larger than the data.
std::int64_t samples_at_once(const Options& options, const RawData& raw) {
  std::int64_t samples = options.run.optimization.batch_size;
  const auto limit = static_cast<std::int64_t>(options.run.data.limit);
  if (limit > 0) samples = std::min(samples, limit);
  // What is cut into windows is counted once it is bound to the model, and so is which columns the
  // model reads: others may have fewer rows.
  std::size_t rows = 0;
  for (const RawColumn& column : raw.train.columns) rows = std::max(rows, column.rows());
  if (rows > 0 && raw.train.window == 0)
    samples = std::min(samples, static_cast<std::int64_t>(rows));
  return std::max<std::int64_t>(1, samples);
}

void check_logits(const OnnxModel& model, const ModelConfig& config) {
  const std::string& logits = config.loss.output;
  PT_CHECK(logits.empty() || std::ranges::count(model.outputs, logits, &OnnxValue::name) > 0,
           kUsage, "--logits: {} has no output \"{}\"; \"pipetrain inspect\" lists its outputs",
           printable(config.path), printable(logits));
}

}  // namespace

int predict_command(Options& options) {
  resolve_verbosity(options);
  resolve_model(options, "predict");
  resolve_forward(options, "predict");
  PT_CHECK(options.run.data.path != "synthetic", kUsage,
           "predict needs --data PATH, or - for "
           "standard input");
  const std::string form = form_of(options);
  if (!options.output.empty() && options.output != "-") delete_stale_temporaries(options.output);
  const OnnxModel model = read_onnx(options.run.model.path);
  check_logits(model, options.run.model);
  check_given_shapes(options.run.model, model);
  CsvOptions& table = options.run.data.csv;
  table.label_may_be_missing = true;  // what is predicted need not be there
  table.label_column_may_be_missing = table.label_column.empty();
  if (const std::string taken = follow_training(model.metadata, options.run); !taken.empty())
    log_info("predict", "note     {}", taken);
  options.run.data.text.one_row_per_text = true;
  take_token_lengths(model, options.run.model, options.run.data.text);
  const RawData raw = read_source(options.run.data.path, options.run.data);
  if (!raw.validation.empty()) log_info("predict", kTrainingPartNote);
  const Predictor predictor(
      options.run.model, options.run.pipeline.backend, samples_at_once(options, raw),
      shapes_of_samples(model, raw, options.run.model.output_node, options.run.model.image_shapes,
                        options.run.data.bind.bindings));
  const BoundData bound = bind_data(raw.train, predictor.data_spec(), options.run.data.bind);
  for (const std::string& warning : raw.warnings) log_info("predict", "note     {}", warning);
  for (const std::string& note : bound.notes) log_info("predict", "{}", note);
  std::shared_ptr<const Dataset> data = bound.dataset;
  if (options.run.data.limit > 0) data = first_samples(data, options.run.data.limit);
  const TrainingGraph& graph = predictor.graph();
  for (std::size_t k = 0; k < graph.outputs.size(); ++k) {
    const Shape& shape = graph.graph[graph.outputs[k]].type.shape;
    PT_CHECK(shape.rank() >= 1 && shape[0] == predictor.batch(), kModel,
             "output \"{}\" of shape {} does not have one row per sample{}",
             printable(graph.output_names[k]), shape.text(),
             graph.outputs.size() == 1 && shape.rank() == 0
                 ? ": a model whose only output is its loss has nothing else to predict; export it "
                   "with a second output"
                 : "");
  }
  const TrainingDescription training = training_in_force(model, graph, options.run.model.loss);
  const PositionClasses positions(training, graph);
  std::vector<std::string> names = graph.output_names;
  positions.add_name(names);
  ExtraColumns extra(raw.train, bound, model, graph, training, names);
  RowWriter rows(form == "npz" ? "" : options.output);
  std::vector<std::vector<HostTensor>> pieces(names.size());
  const auto batch = static_cast<std::size_t>(predictor.batch());
  for (std::size_t first = 0; first < data->size(); first += batch) {
    const std::size_t samples = std::min(batch, data->size() - first);
    std::vector<HostTensor> outputs = predictor.run(*data, first, samples);
    positions.add_values(outputs);
    if (form == "npz") {
      for (std::size_t row = 0; row < samples; ++row) extra.collect(first + row, outputs, row);
      for (std::size_t k = 0; k < outputs.size(); ++k) pieces[k].push_back(std::move(outputs[k]));
      continue;
    }
    std::string text;
    if (form == "csv" && first == 0) text += csv_header(names, outputs) + extra.header() + "\n";
    for (std::size_t row = 0; row < samples; ++row) {
      if (form == "csv") {
        text += csv_values(outputs, row) + extra.csv(first + row, outputs, row) + "\n";
        continue;
      }
      text += "{";
      for (std::size_t k = 0; k < outputs.size(); ++k) {
        text += fmt::format("{}{}:{}", k ? "," : "", json_text(names[k]),
                            json_values(outputs[k].view(), row));
      }
      text += extra.json(first + row, outputs, row) + "}\n";
    }
    rows.write(text);
  }
  if (form == "npz") write_arrays(options, names, pieces, extra);
  rows.finish();
  log_info("predict", "{} sample{}", data->size(), data->size() == 1 ? "" : "s");
  return 0;
}

}  // namespace pipetrain
