// pipetrain predict: a model's outputs for data, row by row.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/output_table.h"
#include "onnx_io/reader.h"
#include "train/predict.h"

namespace pipetrain {
namespace {

/// The form of the output: what --to says, or the end of the file's name, or JSON Lines.
std::string form_of(const Options& options) {
  if (!options.to.empty()) return options.to;
  for (const char* form : {"npz", "csv", "jsonl"}) {
    if (options.output.ends_with(std::string(".") + form)) return form;
  }
  PT_CHECK(options.output.empty() || options.output == "-", kUsage,
           "in which form? name the output .npz, .csv or .jsonl, or give --to");
  return "jsonl";
}

/// Rows to a file or to standard output, as they are made.
class RowWriter {
 public:
  explicit RowWriter(const std::string& path) {
    if (!path.empty() && path != "-") file_.emplace(path);
  }
  void write(const std::string& text) {
    if (file_) {
      file_->write(text);
    } else {
      print(text);
      std::fflush(stdout);
    }
  }
  void finish() {
    if (file_) file_->commit();
  }

 private:
  std::optional<AtomicFile> file_;
};

/// Pieces of an array one behind the other.
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

}  // namespace

int predict_command(Options& options) {
  resolve_verbosity(options);
  resolve_model(options, "predict");
  options.gpus = 0;
  resolve_device(options, "predict");
  PT_CHECK(options.run.data.path != "synthetic", kUsage,
           "predict needs --data PATH, or - for "
           "standard input");
  const std::string form = form_of(options);
  const RawData raw = read_source(options.run.data.path, options.run.data);
  const Predictor predictor(options.run.model, options.run.pipeline.backend,
                            options.run.optimization.batch_size,
                            shapes_of_samples(read_onnx(options.run.model.path), raw));
  const BoundData bound = bind_data(raw.train, predictor.data_spec(), options.run.data.bind);
  for (const std::string& note : bound.notes) log_info("predict", "{}", note);
  std::shared_ptr<const Dataset> data = bound.dataset;
  if (options.run.data.limit > 0) data = first_samples(data, options.run.data.limit);
  const TrainingGraph& graph = predictor.graph();
  for (std::size_t k = 0; k < graph.outputs.size(); ++k) {
    const Shape& shape = graph.graph[graph.outputs[k]].type.shape;
    PT_CHECK(shape.rank() >= 1 && shape[0] == predictor.batch(), kModel,
             "output \"{}\" of shape {} has no row for each sample",
             printable(graph.output_names[k]), shape.text());
  }
  RowWriter rows(form == "npz" ? "" : options.output);
  std::vector<std::vector<HostTensor>> pieces(graph.outputs.size());
  const auto batch = static_cast<std::size_t>(predictor.batch());
  for (std::size_t first = 0; first < data->size(); first += batch) {
    const std::size_t samples = std::min(batch, data->size() - first);
    std::vector<HostTensor> outputs = predictor.run(*data, first, samples);
    if (form == "npz") {
      for (std::size_t k = 0; k < outputs.size(); ++k) pieces[k].push_back(std::move(outputs[k]));
      continue;
    }
    std::string text;
    if (form == "csv" && first == 0) text += csv_header(graph.output_names, outputs) + "\n";
    for (std::size_t row = 0; row < samples; ++row) {
      if (form == "csv") {
        text += csv_values(outputs, row) + "\n";
        continue;
      }
      text += "{";
      for (std::size_t k = 0; k < outputs.size(); ++k) {
        text += fmt::format("{}{}:{}", k ? "," : "",
                            nlohmann::json(graph.output_names[k])
                                .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                            json_values(outputs[k].view(), row));
      }
      text += "}\n";
    }
    rows.write(text);
  }
  if (form == "npz") {
    std::vector<std::pair<std::string, HostTensor>> arrays;
    for (std::size_t k = 0; k < pieces.size(); ++k)
      arrays.emplace_back(graph.output_names[k], joined(pieces[k]));
    const std::string text = npz_text(arrays);
    if (options.output.empty() || options.output == "-") {
      std::fwrite(text.data(), 1, text.size(), stdout);
    } else {
      write_file(options.output, text);
    }
  }
  rows.finish();
  log_info("predict", "{} sample{}", data->size(), data->size() == 1 ? "" : "s");
  return 0;
}

}  // namespace pipetrain
