#include "cli/commands/trained_output.h"

#include <fstream>
#include <iostream>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
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
  return write_checkpoint(save.folder, checkpoint).path;
}

}  // namespace

void write_trained_model(const Options& options, PipelineRun& run, const std::string& path,
                         const std::string& spare, const SaveSettings& save,
                         const TrainingSummary& summary) try {
  std::vector<std::string> changes;
  std::error_code ignored;
  const bool spare_is_input = fs::equivalent(options.run.model.path, spare, ignored);
  if (options.output == "-") {
    std::string temporary = spare + ".out";
    changes = run.export_model(temporary);
    std::cout << std::ifstream(temporary, std::ios::binary).rdbuf();
    std::cout.flush();
    if (!std::cout.good() && !spare_is_input) fs::rename(std::exchange(temporary, spare), spare);
    PT_CHECK(
        std::cout.good(), kResource,
        "cannot write the model to standard output, which is full or closed; it was saved as {}",
        printable(temporary));
    fs::remove(temporary);
  } else {
    try {
      changes = run.export_model(path, options.overwrite);
    } catch (Error& error) {
      if (path == spare || spare_is_input || error.kind() == ErrorKind::kModel) throw;
      run.export_model(spare, /*overwrite=*/true);
      error.add_frame("writing the trained model, which is in " + printable(spare) + " instead");
      throw;
    }
  }
  for (const std::string& change : changes) log_info("train", "note     {}", change);
} catch (const Error& error) {
  if (error.kind() != ErrorKind::kModel) throw;
  const std::string kept = printable(last_checkpoint(run, save, summary).string());
  PT_FAIL(kModel,
          "{}; the trained weights are in {}: restore the file, then run pipetrain export --from "
          "{} --output {}",
          error.message(), kept, kept, printable(path));
}

}  // namespace pipetrain
