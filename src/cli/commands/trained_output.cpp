#include "cli/commands/trained_output.h"

#include <algorithm>
#include <iostream>
#include <sstream>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "cli/commands/run_folder.h"
#include "cli/options/resume_command_line.h"
#include "data/files/file_bytes.h"
#include "onnx_io/delete_model.h"
#include "train/export.h"
#include "train/resume.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// The checkpoint of a run's last step, which is written if the run has not done so.
fs::path last_checkpoint(const PipelineRun& run, const SaveSettings& save,
                         const TrainingSummary& summary) {
  if (summary.last_checkpoint.filename() == checkpoint_name(summary.steps))
    return summary.last_checkpoint;
  Checkpoint checkpoint =
      make_checkpoint(run, save.run, summary.steps, summary.steps, 0, run.trained_contents());
  checkpoint.reason = "error";
  checkpoint.learning_rate = summary.learning_rate;
  checkpoint.seconds = summary.seconds;
  checkpoint.best = summary.best;
  checkpoint.unmeasured = summary.unmeasured;
  return write_checkpoint(save.folder, checkpoint).path;
}

/// Lines of a file; empty if it does not exist.
std::vector<std::string> lines_of(const fs::path& path) {
  std::vector<std::string> lines;
  std::istringstream file(read_if_file(path, std::size_t{64} << 20).value_or(""));
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

/// The weights of a run's best model, if it is not the last one and they are still there.
std::optional<NamedTensors> best_weights(const SaveSettings& save, const TrainingSummary& summary) {
  if (!summary.best || summary.best->step == summary.steps) return {};
  if (!summary.best_weights.empty()) return summary.best_weights;
  try {
    return exported_weights(read_checkpoint(save.folder / checkpoint_name(summary.best->step)));
  } catch (const Error& error) {
    log_warning("train", "the best model, {}, is lost, so the last one is written: {}",
                words_on(*summary.best), error.message());
    return {};
  }
}

/// The loss of a step is computed before its update, so nothing has looked at what the last update
/// has made.
void check_last_update(const Options& options, const PipelineRun& run,
                       const TrainingSummary& summary) {
  if (options.run.optimization.on_nonfinite == OnNonfinite::kIgnore || summary.steps == 0) return;
  const std::string weight = run.nonfinite_weight();
  const std::string checkpoint = summary.last_checkpoint.string();
  PT_CHECK(weight.empty(), kDiverged,
           "weight \"{}\" is not finite after step {}, the last one\n"
           "  try: a smaller --lr than {}, or --clip-norm 1{}",
           printable(weight), summary.steps, options.run.optimization.learning_rate.peak,
           checkpoint.empty() ? "" : "\n  last checkpoint: " + checkpoint);
}

/// Where a run with validation writes the best or last model that is not its output.
fs::path other_model(const Options& options, const fs::path& folder) {
  return folder / (options.save == "last" ? "best.onnx" : "last.onnx");
}

fs::path place_of(const std::string& file) {
  std::error_code ignored;
  return fs::weakly_canonical(fs::absolute(file), ignored);
}

/// Writes one model to `path` or to standard output; null: the last one.
std::vector<std::string> write_model(const Options& options, PipelineRun& run,
                                     const std::string& path, const std::string& spare,
                                     const NamedTensors* weights) {
  std::vector<std::string> changes;
  std::error_code ignored;
  const bool spare_is_input = fs::equivalent(options.run.model.path, spare, ignored);
  if (options.output == "-") {
    std::string temporary = spare + ".out";
    changes = run.export_model(temporary, false, weights, options.adapter);
    std::cout << FileBytes::open(temporary).text();
    std::cout.flush();
    if (!std::cout.good() && !spare_is_input) fs::rename(std::exchange(temporary, spare), spare);
    PT_CHECK(std::cout.good(), kResource,
             "cannot write the model to standard output, which is full or closed; it is in {}",
             printable(temporary));
    fs::remove(temporary);
  } else {
    try {
      changes = run.export_model(path, options.overwrite, weights, options.adapter);
    } catch (Error& error) {
      if (path == spare || spare_is_input || error.kind() == ErrorKind::kModel) throw;
      run.export_model(spare, /*overwrite=*/true, weights);
      error.add_frame("writing the trained model, which is in " + printable(spare) + " instead");
      throw;
    }
  }
  return changes;
}

}  // namespace

TrainingDescription training_of(const FoundCheckpoint& found) {
  const RunRecord& run = found.checkpoint.run;
  const RunConfig config = options_of("train", run.settings).run;
  TrainingDescription out;
  out.synthetic = config.data.path == "synthetic";
  const fs::path folder = run_of(found.path);
  const auto first_line = [&](const char* name) {
    const std::vector<std::string> lines = lines_of(folder / name);
    return lines.empty() ? std::string() : lines[0];
  };
  out.class_names = lines_of(folder / "classes.txt");
  out.columns = first_line("columns.json");
  out.first_index = first_line("first-index.txt");
  out.masks = first_line("masks.txt");
  for (const std::string& line : lines_of(folder / "texts.txt")) out.texts += line + "\n";
  out.loss = run.value("loss");
  out.loss_output = config.model.loss.output;
  out.ignore_index = config.model.loss.ignore_index;
  out.label_column = config.data.csv.label_column;
  const std::string scale = run.value("normalize");
  out.normalization = scale.empty() ? config.data.bind.normalization.text() : scale;
  out.image_shapes = run.value("image-sizes");
  out.resize = name_of(config.data.bind.image.fit);
  return out;
}

void check_adapter(const Options& options) {
  if (options.adapter.empty()) return;
  PT_CHECK(options.run.model.adapters.rank > 0, kUsage, "--adapter needs --lora");
  PT_CHECK(options.adapter != "-", kUsage,
           "--adapter - cannot write to standard output; give a file");
  check_output(options, options.adapter, /*replaces_own=*/false, "--adapter");
  std::error_code unknown;
  PT_CHECK(!fs::equivalent(options.adapter, options.run.model.path, unknown), kUsage,
           "--adapter \"{}\" is the model that the adapters belong to; give another file",
           printable(options.adapter));
  PT_CHECK(options.output.empty() || place_of(options.adapter) != place_of(options.output), kUsage,
           "--adapter and --output are both \"{}\"; give them different files",
           printable(options.adapter));
}

void check_replaced_model(const LoadedModel& model, const std::string& output) {
  std::error_code unknown;
  if (!fs::equivalent(output, model.file.path, unknown)) return;
  PT_CHECK(model.adapters.empty(), kUsage,
           "\"{}\" is the model that --lora adapts: once it is replaced by the one with the "
           "adapters merged, the run could not be resumed or exported; give another --output",
           printable(output));
  PT_CHECK(model.copies.empty() && model.biases.empty(), kUsage,
           "\"{}\" is the model that is trained, in which {}: once they are stored in it, the run "
           "could not be resumed or exported; give another --output",
           printable(output),
           model.copies.empty() ? "biases are restored that the exporter had removed"
                                : "tensors are trained separately that the exporter had merged");
}

bool has_written_all(const Options& options, const FoundCheckpoint& found,
                     const std::string& output, const fs::path& folder) {
  const fs::path end = found.path / "manifest.json";
  const bool saves_another = std::ranges::any_of(options.given, [&](const Assignment& setting) {
    return setting.first == "--best-metric" && setting.second.find("save=") != std::string::npos &&
           std::ranges::count(found.checkpoint.run.settings, setting) == 0;
  });
  // Beside the last model lies the best one, and beside the best one the last.
  const std::optional<BestResult>& best = found.checkpoint.best;
  const fs::path other = other_model(options, folder);
  const fs::path other_before = folder / (options.save == "last" ? "last.onnx" : "best.onnx");
  std::error_code unknown;
  const bool saved_another = best && best->step != found.checkpoint.step &&
                             fs::exists(other_before, unknown) && !is_newer(other, other_before);
  // What went to a pipe or to standard output is gone.
  const auto is_there = [&](const std::string& file) {
    return !is_special(file) && is_newer(file, end);
  };
  return !saves_another && !saved_another && options.output != "-" && is_there(output) &&
         (options.adapter.empty() || is_there(options.adapter));
}

void check_models(const Options& options, const PlannedNetwork& network, const std::string& output,
                  const fs::path& folder) {
  check_adapter(options);
  // Without another output, the model on standard output takes none of the run's files.
  if (options.output != "-") check_replaced_model(network.model(), output);
  if (network.data().validation)
    check_replaced_model(network.model(), other_model(options, folder).string());
  PT_CHECK(!network.data().validation || place_of(output) != place_of(other_model(options, folder)),
           kUsage, "\"{}\" is where the run keeps its {} model; give another --output",
           printable(output), options.save == "last" ? "best" : "last");
  for (const fs::path& model :
       {fs::path(output), folder / "trained.onnx", folder / "best.onnx", folder / "last.onnx"}) {
    PT_CHECK(options.adapter.empty() || place_of(options.adapter) != place_of(model), kUsage,
             "\"{}\" is where the run keeps a model; give another --adapter",
             printable(options.adapter));
  }
}

std::string words_on(const BestResult& best) {
  return fmt::format("{} {:.6g} at step {}", best.metric, best.value, best.step);
}

WrittenModels write_trained_model(const Options& options, PipelineRun& run, const std::string& path,
                                  const std::string& spare, const SaveSettings& save,
                                  const TrainingSummary& summary) try {
  check_last_update(options, run, summary);
  const std::optional<NamedTensors> best = best_weights(save, summary);
  const bool last = options.save == "last" || !best;
  WrittenModels written;
  written.output = options.output == "-" ? "-" : path;
  written.best = summary.best;
  written.last_step = summary.steps;
  written.step = last ? summary.steps : summary.best->step;
  std::error_code unknown;
  const auto same_file = [&](const std::string& one, const std::string& two) {
    return fs::equivalent(one, two, unknown);
  };
  const auto write_other = [&] {
    const std::string other = other_model(options, fs::path(spare).parent_path()).string();
    if (best) {
      written.other = other;
      run.export_model(other, options.overwrite, last ? &*best : nullptr);
    } else if (summary.best && summary.best->step == summary.steps && !same_file(other, path) &&
               !same_file(other, options.run.model.path)) {
      delete_model(other);  // that of an earlier end of this run
    }
  };
  const bool replaces_input = same_file(path, options.run.model.path);
  if (replaces_input) write_other();  // while the model can still be read
  const std::vector<std::string> changes =
      write_model(options, run, path, spare, last ? nullptr : &*best);
  if (!replaces_input) write_other();
  for (const std::string& change : changes) log_info("train", "note     {}", change);
  return written;
} catch (const Error& error) {
  if (error.kind() != ErrorKind::kModel) throw;
  const std::string kept = printable(last_checkpoint(run, save, summary).string());
  PT_FAIL(kModel,
          "{}; the trained weights are in {}: restore the file, then run pipetrain export --from "
          "{} --output {}",
          error.message(), kept, kept, printable(path));
}

}  // namespace pipetrain
