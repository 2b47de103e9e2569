// pipetrain data: inspects, converts and generates data sets.
#include "base/error.h"
#include "base/log.h"
#include "cli/commands/commands.h"
#include "cli/commands/run_folder.h"
#include "cli/output/output.h"
#include "data/formats/made_data.h"
#include "data/formats/write_data.h"

namespace pipetrain {
namespace {

constexpr std::size_t kGlyphs = 10000;
constexpr std::size_t kSpiralPoints = 2000;

// The one argument behind "inspect" and the like.
std::string argument_of(const Options& options, const char* usage) {
  PT_CHECK(options.arguments.size() == 2, kUsage, "usage: pipetrain data {}", usage);
  return options.arguments[1];
}

void check_data_target(const Options& options, const char* usage) {
  PT_CHECK(!options.output.empty() && options.output != "-", kUsage,
           "give a file with --output, for example: pipetrain data {}", usage);
  check_output(options, options.output, /*replaces_own=*/false);
}

RawData made_data(const std::string& kind, const Options& options) {
  const std::uint64_t seed = options.run.optimization.seed;
  const auto samples = static_cast<std::size_t>(options.samples);
  RawData out;
  out.path = kind;
  if (kind == "glyphs") {
    const auto size = static_cast<std::size_t>(options.image > 0 ? options.image : 28);
    const std::size_t train = samples ? samples : kGlyphs;
    // A separate seed, so that more training samples do not change the validation samples.
    out.train = make_glyphs(train, seed, size);
    out.validation = make_glyphs(std::max<std::size_t>(1, train / 5), ~seed, size);
    return out;
  }
  if (kind == "spirals") {
    out.train = make_spirals(samples ? samples : kSpiralPoints, seed);
    return out;
  }
  PT_CHECK(kind == "bytes", kUsage,
           "unknown data set \"{}\"; one of: glyphs (images of digits), spirals (points of two "
           "classes), bytes (byte tokens of texts)",
           printable(kind));
  PT_CHECK(!options.from.empty(), kUsage,
           "give the texts with --from, for example: pipetrain data make bytes --from "
           "/usr/share/common-licenses -o text.bin");
  DataOptions text;
  text.format = "text";
  return read_source(options.from, text);
}

/// What `data inspect` says. A table with words or gaps is described as if they were encoded, with
/// what training needs to know.
std::string description_of(const std::string& path, const DataOptions& options) {
  if (options.csv.encodes()) return describe(read_source(path, options));
  try {
    return describe(read_source(path, options));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData) throw;
    DataOptions encoded = options;
    encoded.csv.categories = CsvOptions::Categories::kCodes;
    encoded.csv.missing = CsvOptions::Missing::kMean;
    RawData raw;
    try {
      raw = read_source(path, encoded);
    } catch (const Error&) {
      throw error;
    }
    if (raw.train.encoding.empty()) throw;
    return describe(raw) + fmt::format("  to train with it: {}\n", error.message());
  }
}

/// What fits columns as training does says nothing of what is written.
void check_writes_all(const Options& options) {
  const DataOptions& data = options.run.data;
  PT_CHECK(data.limit == 0 && data.validation_rows == 0 && data.validation_split == 0, kUsage,
           "--val-split and --limit are for data inspect: all samples are written; leave them out");
}

int write_to_output(const RawData& data, const Options& options) {
  const WriteDataOptions how{.image = static_cast<std::size_t>(options.image),
                             .channels = static_cast<std::size_t>(options.channels),
                             .how = options.run.data.bind.image};
  const std::string written = write_data(data, options.output, how);
  log_info("data", "wrote {}: {}", printable(options.output), written);
  if (!data.validation.empty() && !options.output.ends_with(".npz"))
    log_warning("data", "{} has the training part only; {}", printable(options.output),
                data.train.shards ? "convert the validation files by themselves"
                                  : "an .npz file holds the validation part too");
  return 0;
}

}  // namespace

int data_command(Options& options) {
  resolve_verbosity(options);
  PT_CHECK(!options.arguments.empty(), kUsage,
           "data inspect PATH, data convert PATH --output FILE, or data make "
           "glyphs|spirals|bytes --output FILE");
  const std::string& what = options.arguments[0];
  if (what == "inspect") {
    const std::string path = argument_of(options, "inspect images/");
    options.run.data.seed = options.run.optimization.seed;
    print(description_of(path, options.run.data));
    return 0;
  }
  if (what == "convert") {
    constexpr const char* kConvert = "convert images/ --output images.npz";
    const std::string path = argument_of(options, kConvert);
    check_writes_all(options);
    check_data_target(options, kConvert);
    return write_to_output(read_source(path, options.run.data), options);
  }
  if (what == "make") {
    constexpr const char* kMake = "make glyphs --output glyphs.npz";
    const std::string kind = argument_of(options, kMake);
    check_writes_all(options);
    check_data_target(options, kMake);
    return write_to_output(made_data(kind, options), options);
  }
  const std::string near = nearest(what, {"inspect", "convert", "make"});
  PT_FAIL(kUsage, "unknown action \"{}\"{}; one of: inspect, convert, make", printable(what),
          near.empty() ? "" : fmt::format(", did you mean {}?", near));
}

}  // namespace pipetrain
