// Outputs that would replace an input of the same command, or each other.
#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "cli/options/options.h"
#include "data/rows/readers.h"

namespace pipetrain {
namespace {

/// The files of a folder or a glob that data are read from; otherwise the path itself.
std::vector<std::string> files_of_data(const std::string& path) {
  std::error_code unknown;
  try {
    if (!std::filesystem::is_directory(path, unknown)) return list_files(path);
    const TableFiles tables = table_files_in(path);
    if (!tables.train.empty()) return {tables.train, tables.validation};
    std::vector<std::string> files = list_files(path);
    if (has_images(path)) {  // beside which no reader takes these
      std::erase_if(files, [](const std::string& file) {
        return file.ends_with(".json") || file.ends_with(".csv");
      });
    }
    return files;
  } catch (const Error&) {
    return {path};  // the reader of the data will say what is wrong
  }
}

/// Whether two paths lead to the same file, which need not be there yet.
bool is_same_file(const std::string& one, const std::string& other) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  if (fs::equivalent(one, other, unknown)) return true;
  const auto resolved = [&](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(path, unknown), unknown);
  };
  return resolved(one) == resolved(other);
}

/// Error (kUsage) for a file that two options write: the later one would replace the other.
void check_each_has_a_file(const std::vector<OptionSpec>& specs) {
  std::vector<Assignment> outputs;
  for (const OptionSpec& spec : specs) {
    if (spec.path != PathUse::kWrite || !spec.value.starts_with("FILE")) continue;
    const std::string output = spec.get();
    if (output.empty() || output == "-" || is_special(output)) continue;
    for (const auto& [name, path] : outputs) {
      PT_CHECK(!is_same_file(path, output), kUsage, "{} and {} both name \"{}\"; give two files",
               name, spec.name, printable(output));
    }
    outputs.emplace_back(spec.name, output);
  }
}

}  // namespace

void check_outputs(const std::string& command, const Options& options) {
  namespace fs = std::filesystem;
  Options copy = options;
  std::vector<OptionSpec> specs = describe_options(copy);
  std::erase_if(specs, [&](const OptionSpec& spec) { return !spec.applies_to(command); });
  check_each_has_a_file(specs);
  std::vector<std::string> inputs = options.configs;
  const CommandSpec& described = *std::ranges::find(commands(), command, &CommandSpec::name);
  for (const std::string& argument : options.arguments) {
    if (std::ranges::count(described.words, argument) == 0) inputs.push_back(argument);
  }
  std::vector<std::string> data;
  for (const OptionSpec& spec : specs) {
    if (spec.path != PathUse::kRead) continue;
    const bool is_data = spec.name == "--data" || spec.name == "--val-data";
    (is_data ? data : inputs).push_back(spec.get());
  }
  const bool asks = std::ranges::count(specs, "--overwrite", &OptionSpec::name) > 0;
  for (const OptionSpec& spec : specs) {
    if (spec.path != PathUse::kWrite) continue;
    const std::string output = spec.get();
    std::error_code unknown;  // of what is no file: "-", "synthetic"
    PT_CHECK(!spec.value.starts_with("FILE") || output == "-" || !fs::is_directory(output, unknown),
             kUsage, "{}: \"{}\" is a folder; name a file in it", spec.name, printable(output));
    if (asks && (spec.name == "--output" || spec.name == "--adapter")) continue;
    if (!fs::is_regular_file(output, unknown)) continue;
    // A folder may have many files; it is read where there is something to lose.
    for (const std::string& path : std::exchange(data, {})) {
      const std::vector<std::string> files = files_of_data(path);
      inputs.insert(inputs.end(), files.begin(), files.end());
    }
    for (const std::string& input : inputs) {
      PT_CHECK(!fs::equivalent(input, output, unknown), kUsage,
               "{} \"{}\" is an input of this command; give another file", spec.name,
               printable(output));
    }
  }
}

}  // namespace pipetrain
