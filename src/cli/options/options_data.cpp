// Options of the data: where they are, how they are read, in which order they come.
#include <cmath>
#include <filesystem>

#include "cli/options/option_table.h"

namespace pipetrain {

namespace {

constexpr const char* kReadCommands = "train profile plan simulate eval predict verify data";

/// What is read, and what of it is held out.
void describe_files(Table& table, DataOptions& data) {
  table
      .path("--data", data.path, PathUse::kRead, "PATH|synthetic",
            "training data: images in folders, npz, CSV, tokens, text and others; see --format",
            kDataCommands)
      .decides(Numbers::kOfContent);
  table.specs.back().in_short_help = true;
  OptionSpec& format =
      table
          .text("--format", data.format, "NAME",
                "of the data, instead of what is detected: " + format_names(), kReadCommands)
          .decides(Numbers::kOfContent);
  Table formats;
  formats
      .choice_of<DType>("--token-dtype", data.token_dtype,
                        {{"u8", DType::kUint8}, {"u16", DType::kUint16}, {"u32", DType::kUint32}},
                        "of a token file without header", kReadCommands)
      .decides(Numbers::kOfContent)
      .key = "dtype";
  formats
      .text("--label-column", data.csv.label_column, "NAME|N|none",
            "of a table; the last by default", kReadCommands)
      .decides(Numbers::kOfContent)
      .key = "label";
  Table::nest(format, std::move(formats));
  table.path("--val-data", data.validation_path, PathUse::kRead, "PATH", "validation data", "train")
      .decides(Numbers::kNone)
      .aliases = {"--valid-data"};
  OptionSpec& split =
      table
          .add("--val-split", "X|N",
               "what to hold out of the training data: a share, or samples from 1 on", "train")
          .decides(Numbers::kOfContent);
  split.aliases = {"--val-rows"};
  split.set = [&data](const std::string& v) {
    const double value = parse_real("--val-split", v);
    PT_CHECK(value >= 0 && (value < 1 || value == std::floor(value)), kUsage,
             "--val-split takes a share below 1 or a whole number of samples, not {}",
             printable(v));
    data.validation_split = value < 1 ? value : 0;
    data.validation_rows = value < 1 ? 0 : static_cast<std::size_t>(value);
  };
  split.get = [&data] {
    return data.validation_rows > 0 ? fmt::format("{}", data.validation_rows)
                                    : fmt::format("{}", data.validation_split);
  };
}

/// Which samples come, and when.
void describe_order(Table& table, Options& options) {
  DataOptions& data = options.run.data;
  std::string& weights = options.run.optimization.sample_weights;
  table.automatic("--workers", data.workers, "threads that read data ahead", "train", /*most=*/1024)
      .decides(Numbers::kNone)
      .aliases = {"--num-workers"};
  table.flag("--shuffle", options.run.optimization.shuffle, "a new order every epoch", "train")
      .decides(Numbers::kRecorded);
  table
      .path("--sample-weights", weights, PathUse::kRead, "balanced|FILE",
            "draw samples by weights, a line for each; balanced: every class equally often",
            "train")
      .recorded_as([&weights] {
        if (weights.empty()) return std::vector<Assignment>();
        return std::vector<Assignment>{
            {"sample-weights", std::filesystem::path(weights).filename().string()}};
      });
  table
      .flag("--drop-last", options.run.optimization.drop_last,
            "leave out a last batch that is short", kTrainCommands)
      .decides(Numbers::kOfRun);
  table.integer("--limit", data.limit, 0, "use only the first N samples; 0: all", kDataCommands)
      .decides(Numbers::kOfContent);
}

}  // namespace

void describe_data(Table& table, Options& options) {
  table.group = "Data";
  DataOptions& data = options.run.data;
  describe_files(table, data);
  OptionSpec& bind =
      table.add("--bind", "NAME=KEY", "which array feeds which input or label", kDataCommands)
          .decides(Numbers::kOfContent);
  bind.repeatable = true;
  bind.set = [&data](const std::string& v) {
    data.bind.bindings.push_back(split_pair("--bind", v));
  };
  bind.get = [&data] {
    std::vector<std::string> all;
    for (const auto& [name, key] : data.bind.bindings) all.push_back(name + "=" + key);
    return fmt::format("{}", fmt::join(all, " "));
  };
  OptionSpec& normalize =
      table
          .add("--normalize", "auto|none|max|X|imagenet|M,M,M/S,S,S",
               "scale of float inputs; means and deviations are of each channel", kDataCommands)
          .decides(Numbers::kOfContent);
  normalize.set = [&data](const std::string& v) {
    data.bind.normalization = Normalization::parse(v);
  };
  normalize.get = [&data] { return data.bind.normalization.text(); };
  OptionSpec& augment =
      table
          .add("--augment", "NAME[:X],…",
               "change training images at random: " + Augmentation::names(), kTrainCommands)
          .decides(Numbers::kUnrecorded);
  augment.set = [&data](const std::string& v) {
    data.bind.image.augmentation = Augmentation::parse(v);
  };
  augment.get = [&data] { return data.bind.image.augmentation.text(); };
  table
      .choice_of<ImageFit>(
          "--resize", data.bind.image.fit,
          {{"crop", ImageFit::kCrop}, {"stretch", ImageFit::kStretch}, {"pad", ImageFit::kPad}},
          "images of another size: center-cropped, stretched or padded", kReadCommands)
      .decides(Numbers::kOfContent);
  table
      .choice_of<BadSample>("--on-bad-sample", data.bind.on_bad_sample,
                            {{"error", BadSample::kError}, {"skip", BadSample::kSkip}},
                            "stop at samples that cannot be used, or leave them out", kDataCommands)
      .decides(Numbers::kOfContent);
  describe_order(table, options);
}

}  // namespace pipetrain
