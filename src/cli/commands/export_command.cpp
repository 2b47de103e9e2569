// pipetrain export: the weights of a checkpoint as the model's file.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands/commands.h"
#include "cli/commands/run_folder.h"
#include "cli/commands/trained_output.h"
#include "cli/options/resume_command_line.h"
#include "data/files/file_bytes.h"
#include "train/adapter_file.h"
#include "train/fingerprint.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// Retries with a newer checkpoint if training deletes this one while it is read.
FoundCheckpoint read_steadily(const fs::path& from) {
  constexpr int kAttempts = 5;
  for (int attempt = 1;; ++attempt) {
    try {
      return find_checkpoint(from);
    } catch (const Error& error) {
      if (attempt == kAttempts || error.kind() != ErrorKind::kData) throw;
    }
  }
}

/// Where a checkpoint was copied out of its run, says which file there the model would need.
void warn_of_missing_files(const FoundCheckpoint& found, const DataOptions& data) {
  const fs::path folder = run_of(found.path);
  std::error_code unknown;
  if (fs::exists(folder / "config.toml", unknown)) return;
  const auto warn = [&](bool is_needed, const char* file, const char* what) {
    if (!is_needed || fs::exists(folder / file, unknown)) return;
    log_warning("export",
                "{} is not in the folder of its run, so the model will not say {}: copy {} of that "
                "folder to \"{}\" and export again",
                printable(found.path.string()), what, file, printable(folder.string()));
  };
  warn(data.csv.encodes(), "columns.json", "how its table is encoded");
  warn(!data.text.tokenizer.empty(), "texts.txt", "which tokenizer its texts need");
}

}  // namespace

int export_command(Options& options) {
  resolve_verbosity(options);
  if (options.from.empty() && !options.arguments.empty()) {
    options.from = options.arguments.front();
    options.arguments.erase(options.arguments.begin());
  }
  PT_CHECK(!options.from.empty(), kUsage,
           "no checkpoint given; use --from with a checkpoint or the folder of a run");
  PT_CHECK(!options.output.empty() || !options.adapter.empty(), kUsage,
           "no output given; use --output FILE, or - for standard output");
  const std::string output = options.output;
  const bool to_stdout = output == "-", overwrite = options.overwrite;
  if (!to_stdout && !output.empty()) check_output(options, output, /*replaces_own=*/false);
  const FoundCheckpoint found = read_steadily(options.from);
  for (const std::string& reason : found.refused) log_warning("export", "{}", reason);
  put_back_earlier_model(found);
  take_over(found, "export", options);
  resolve_model(options, "export");
  const LoadedModel model = load_model(options.run.model);
  PT_CHECK(fingerprint(model.file) == found.checkpoint.run.model_fingerprint, kUsage,
           "{} is not the network of the checkpoint; give the right file with --model",
           printable(options.run.model.path));
  check_one_file(model.file, output);
  if (!to_stdout) check_replaced_model(model, output);
  check_adapter(options);
  const NamedTensors weights = exported_weights(found.checkpoint);
  const auto read = [&](const std::string& name) {
    const auto tensor = weights.find(name);
    return tensor == weights.end() ? HostTensor() : tensor->second;
  };
  if (output.empty()) {
    write_adapters(options.adapter, model, read);
    log_info("export", "saved    {} from {} (step {})", printable(options.adapter),
             found.path.string(), found.checkpoint.step);
    return 0;
  }
  const fs::path file =
      to_stdout ? fs::temp_directory_path() / fmt::format("pipetrain-{}.onnx", ::getpid())
                : fs::path(output);
  warn_of_missing_files(found, options.run.data);
  const OnnxMetadata metadata =
      describe_training(found.checkpoint.step > 0, training_of(found), model.file.metadata);
  for (const std::string& change :
       export_weights(model, read, metadata, file.string(), overwrite, options.adapter))
    log_info("export", "note     {}", change);
  if (to_stdout) {
    std::cout << FileBytes::open(file.string()).text();
    std::cout.flush();
    const bool arrived = std::cout.good();
    fs::remove(file);
    PT_CHECK(arrived, kResource, "cannot write to standard output: it is full or closed");
  }
  log_info("export", "saved    {} from {} (step {})", to_stdout ? "standard output" : output,
           found.path.string(), found.checkpoint.step);
  return 0;
}

}  // namespace pipetrain
