// pipetrain new: writes an untrained ONNX model.
#include <cstdio>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/commands/commands.h"
#include "zoo/zoo.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

// Up to this size, initialisation takes seconds and the model is one file: a protobuf message holds
// at most 2 GB.
constexpr std::int64_t kMostWeightsByDefault = 450'000'000;

std::string list_of_networks() {
  std::string out;
  for (const ZooNetwork& network : zoo_networks()) {
    out += fmt::format("\n  {:<10}{}", network.name, network.summary);
  }
  return out;
}

const ZooNetwork& network_named(const std::vector<std::string>& arguments) {
  PT_CHECK(!arguments.empty(), kUsage,
           "no network given, for example: pipetrain new mlp -o mlp.onnx; one of:{}",
           list_of_networks());
  PT_CHECK(arguments.size() == 1, kUsage, "unexpected argument \"{}\"; see: pipetrain new --help",
           printable(arguments[1]));
  if (const ZooNetwork* found = find_zoo_network(arguments[0])) return *found;
  std::vector<std::string> names;
  for (const ZooNetwork& network : zoo_networks()) names.emplace_back(network.name);
  const std::string near = nearest(arguments[0], names);
  PT_FAIL(kUsage, "unknown network \"{}\"{}; one of:{}", printable(arguments[0]),
          near.empty() ? "" : fmt::format(", did you mean {}?", near), list_of_networks());
}

bool has_weights(const Options& options, const ZooModel& model) {
  if (options.weights != "auto") return options.weights == "random";
  return model.trained_numbers <= kMostWeightsByDefault;
}

void check_target(const fs::path& path, bool overwrite) {
  if (is_special(path)) return;
  const fs::path folder = path.parent_path();
  PT_CHECK(folder.empty() || fs::is_directory(folder), kUsage,
           "--output: there is no folder \"{}\"", printable(folder.string()));
  PT_CHECK(!fs::is_directory(path), kUsage, "--output: \"{}\" is a folder; name a file in it",
           printable(path.string()));
  PT_CHECK(overwrite || !fs::exists(path), kUsage,
           "\"{}\" exists; give --overwrite or another --output", printable(path.string()));
}

void write_to_standard_output(const ZooModel& model) {
  const std::string bytes = model.onnx.bytes();
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size();
  PT_CHECK(written && std::fflush(stdout) == 0, kResource,
           "cannot write the model to standard output");
}

/// Example options that train a network on the user's data.
const char* data_options(ZooData data) {
  return data == ZooData::kText ? "--data FILE.txt --format text" : "--data FILE.npz";
}

}  // namespace

int new_command(Options& options) {
  resolve_verbosity(options);
  const ZooNetwork& network = network_named(options.arguments);
  const bool to_standard_output = options.output == "-";
  const fs::path path =
      options.output.empty() ? std::string(network.name) + ".onnx" : options.output;
  if (!to_standard_output) check_target(path, options.overwrite);

  const ZooModel model = build_zoo_network(network, {.image = options.image,
                                                     .channels = options.channels,
                                                     .classes = options.classes,
                                                     .width = options.width,
                                                     .depth = options.depth,
                                                     .heads = options.heads,
                                                     .vocab = options.vocab,
                                                     .context = options.context,
                                                     .seed = options.run.optimization.seed});
  const bool with_weights = has_weights(options, model);
  const bool has_data_file = !with_weights || model.trained_numbers > kMostWeightsByDefault;
  PT_CHECK(!has_data_file || !(to_standard_output || is_special(path)), kUsage,
           "a model with weights in a separate file cannot go to {}; give a file with --output",
           to_standard_output ? "standard output" : "a pipe or a device");
  if (to_standard_output) {
    write_to_standard_output(model);
    return 0;
  }
  if (has_data_file) check_target(path.string() + ".data", options.overwrite);
  const std::uint64_t hole = with_weights ? 0 : model.onnx.write_hollow(path);
  if (with_weights) model.onnx.write(path);
  const std::string file = printable(path.string());
  log_info("new", "wrote {}: {}, {} trainable parameters, {}", file, network.name,
           model.trained_numbers, model.signature);
  if (with_weights) {
    log_info("new", "next: pipetrain --model {}   (synthetic data; your own: {})", file,
             data_options(network.data));
    return 0;
  }
  log_info("new",
           "the weights are all zero: {}.data is a sparse file of {} that takes no disk space; the "
           "model is for planning only (--weights random initializes and stores them)",
           file, bytes_text(hole));
  log_info("new", "next: pipetrain plan --model {}", file);
  return 0;
}

}  // namespace pipetrain
