// Options of the data: where they are, how they are read, in which order they come.
#include <cmath>
#include <filesystem>

#include "cli/options/option_table.h"

namespace pipetrain {

namespace {

std::string without_blanks(std::string text) {
  std::erase(text, ' ');
  return text;
}

constexpr const char* kTokenizerCommands =
    "train profile plan simulate eval predict verify data generate";
constexpr const char* kReadCommands = "train profile plan simulate eval predict verify data";

/// How the columns of a table become numbers.
void describe_columns(Table& table, CsvOptions& csv) {
  using Categories = CsvOptions::Categories;
  using Missing = CsvOptions::Missing;
  using Scale = CsvOptions::Scale;
  table
      .list("--feature-columns", csv.features, "NAME|N,…",
            "input columns of a CSV; default: all but the label", kReadCommands)
      .affects(ResultEffect::kContent)
      .key = "features";
  table.list("--drop-columns", csv.drop, "NAME|N,…", "columns of a CSV to leave out", kReadCommands)
      .affects(ResultEffect::kContent)
      .key = "drop";
  table
      .choice_of<Categories>("--categories", csv.categories,
                             {{"none", Categories::kNone},
                              {"one-hot", Categories::kOneHot},
                              {"codes", Categories::kCodes}},
                             "how to encode words in a CSV: a column per word, or numbers from 0",
                             kReadCommands)
      .affects(ResultEffect::kContent)
      .key = "categories";
  table
      .choice_of<Missing>(
          "--missing", csv.missing,
          {{"error", Missing::kError}, {"mean", Missing::kMean}, {"marker", Missing::kMarker}},
          "missing cells of a CSV: refuse, fill with the mean or the most frequent "
          "word, or fill and mark in a column of their own",
          kReadCommands)
      .affects(ResultEffect::kContent)
      .key = "missing";
  table
      .choice_of<Scale>("--scale", csv.scale,
                        {{"none", Scale::kNone}, {"standard", Scale::kStandard}},
                        "scale number columns of a CSV to mean 0 and deviation 1 on the training "
                        "part",
                        kReadCommands)
      .affects(ResultEffect::kContent)
      .key = "scale";
}

/// The tokenizer of texts, and what becomes of them.
void describe_texts(Table& table, TextOptions& text) {
  using Layout = TextOptions::Layout;
  using Document = TextOptions::Document;
  OptionSpec& tokenizer =
      table
          .path("--tokenizer", text.tokenizer, PathUse::kRead, "FILE",
                "tokenizer of texts: tokenizer.json (byte-level BPE, WordPiece), vocab.txt or a "
                "SentencePiece model",
                kTokenizerCommands)
          .affects(ResultEffect::kContent)
          .completes({}, {"json", "txt", "model"});
  Table texts;
  texts
      .text("--text-column", text.column, "NAME", "column of the texts in JSON Lines or CSV",
            kReadCommands)
      .affects(ResultEffect::kContent)
      .key = "column";
  texts.text("--text-pair", text.pair, "NAME", "column of second texts, for pairs", kReadCommands)
      .affects(ResultEffect::kContent)
      .key = "pair";
  texts
      .choice_of<Layout>(
          "--text-layout", text.layout,
          {{"auto", Layout::kAuto}, {"pack", Layout::kPack}, {"pad", Layout::kPad}},
          "texts one after the other, cut into samples, or a padded sample for each; auto: pad "
          "where there are labels",
          kReadCommands)
      .affects(ResultEffect::kContent)
      .key = "layout";
  texts
      .integer("--text-length", text.length, 1,
               "tokens of a sample; default: the model's, or the longest text's", kReadCommands)
      .affects(ResultEffect::kContent)
      .key = "length";
  texts
      .choice_of<Document>(
          "--text-document", text.document,
          {{"auto", Document::kAuto}, {"file", Document::kFile}, {"line", Document::kLine}},
          "what one text is in plain files; auto: the file when packed, else the line",
          kReadCommands)
      .affects(ResultEffect::kContent)
      .key = "document";
  texts
      .text("--text-end", text.end_of_text, "TOKEN",
            "token after each text; default: the tokenizer's end-of-text token", kTokenizerCommands)
      .affects(ResultEffect::kContent)
      .key = "end";
  Table::nest(tokenizer, std::move(texts));
}

/// What is read, and what of it is used for validation.
void describe_files(Table& table, DataOptions& data) {
  table
      .path("--data", data.path, PathUse::kRead, "PATH|synthetic",
            "training data: image folders, npz, CSV, tokens, text and others; see --format",
            kDataCommands)
      .affects(ResultEffect::kContent)
      .means("eval predict",
             "data, which has to be given: image folders, npz, CSV, tokens, text and others; see "
             "--format; default: none")
      .means("profile plan simulate verify",
             "data to take input shapes and the loss from; see --format")
      .aliases = {"--data-dir"};
  table.specs.back().in_short_help = true;
  OptionSpec& format =
      table
          .text("--format", data.format, "NAME",
                "data format, instead of detecting it: " + format_names(), kReadCommands)
          .affects(ResultEffect::kContent)
          .completes(split_list_of(without_blanks(format_names())));
  Table formats;
  formats
      .choice_of<DType>("--token-dtype", data.token_dtype,
                        {{"u8", DType::kUint8}, {"u16", DType::kUint16}, {"u32", DType::kUint32}},
                        "element type of a token file without header", kReadCommands)
      .affects(ResultEffect::kContent)
      .key = "dtype";
  formats
      .text("--label-column", data.csv.label_column, "NAME|N|none",
            "label column of a CSV; default: one named label, target, class or y, else the last",
            kReadCommands)
      .affects(ResultEffect::kContent)
      .key = "label";
  describe_columns(formats, data.csv);
  Table::nest(format, std::move(formats));
  table.path("--val-data", data.validation_path, PathUse::kRead, "PATH", "validation data", "train")
      .affects(ResultEffect::kNone)
      .aliases = {"--valid-data"};
  OptionSpec& split = table
                          .add("--val-split", "X|P%|N",
                               "part of the training data to use for validation: a fraction below "
                               "1, a percentage or a number of samples",
                               "train data")
                          .affects(ResultEffect::kContent)
                          .means("data",
                                 "with inspect, fit the columns of a table as training with this "
                                 "--val-split and --seed does");
  split.aliases = {"--val-rows"};
  split.set = [&data](const std::string& v) {
    const bool percent = v.ends_with('%');
    const double number = parse_real("--val-split", percent ? v.substr(0, v.size() - 1) : v);
    const double value = percent ? number / 100 : number;
    constexpr double kMostSamples = 1e15;
    PT_CHECK(
        value >= 0 && value <= kMostSamples &&
            (value < 1 || (!percent && value == std::floor(value))),
        kUsage,
        "--val-split takes a fraction below 1, a percentage or a whole number of samples, not {}",
        printable(v));
    PT_CHECK(
        value < 1 || v.find('.') == std::string::npos, kUsage,
        "--val-split {} is no fraction below 1; for that many samples write it without a point",
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
  table.automatic("--workers", data.workers, "threads that load data ahead", "train", /*most=*/1024)
      .affects(ResultEffect::kNone)
      .aliases = {"--num-workers"};
  table
      .flag("--shuffle", options.run.optimization.shuffle, "shuffle the samples every epoch",
            "train")
      .affects(ResultEffect::kRecorded);
  table
      .path("--sample-weights", weights, PathUse::kRead, "balanced|FILE",
            "draw samples by weights: a file with a line for each row of the data, or balanced: "
            "every class equally often",
            "train")
      .recorded_as([&weights] {
        if (weights.empty()) return std::vector<Assignment>();
        return std::vector<Assignment>{
            {"sample-weights", std::filesystem::path(weights).filename().string()}};
      });
  table.integer("--limit", data.limit, 0, "use only the first N samples; 0: all", kReadCommands)
      .affects(ResultEffect::kContent)
      .means("data", "with inspect, fit the columns of a table as training with this --limit does");
}

}  // namespace

void describe_data(Table& table, Options& options) {
  table.group = "Data";
  DataOptions& data = options.run.data;
  describe_files(table, data);
  describe_texts(table, data.text);
  OptionSpec& bind =
      table
          .add("--bind", "NAME=KEY", "use array KEY of the data for an input or label of the model",
               kDataCommands)
          .affects(ResultEffect::kContent);
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
               "how to scale float inputs; M are means and S standard deviations per channel",
               kDataCommands)
          .affects(ResultEffect::kContent);
  normalize.set = [&data](const std::string& v) {
    data.bind.normalization = Normalization::parse(v);
  };
  normalize.get = [&data] { return data.bind.normalization.text(); };
  OptionSpec& augment =
      table
          .add("--augment", "NAME[:X],…",
               "augment training samples at random: " + Augmentation::names(), kTrainCommands)
          .recorded_as([&data] {
            const Augmentation& all = data.bind.image.augmentation;
            const bool none = all.empty() && !all.mixing().any();
            return std::vector<Assignment>{{"augment", none ? "none" : all.text()}};
          });
  augment.set = [&data](const std::string& v) {
    data.bind.image.augmentation = Augmentation::parse(v);
  };
  augment.get = [&data] { return data.bind.image.augmentation.text(); };
  augment.completes(Augmentation::words());
  OptionSpec& resize =
      table
          .choice_of<ImageFit>(
              "--resize", data.bind.image.fit, image_fits(),
              "how to fit images of another size, scaled bilinearly with antialiasing: crop (to "
              "cover the model's size, cropped at the center), stretch (with another aspect "
              "ratio), or pad (to lie within it, with zeros around)",
              kReadCommands)
          .affects(ResultEffect::kContent);
  resize.set = [&data, set = resize.set](const std::string& v) {
    set(v);
    data.bind.image.fit_is_given = true;
  };
  describe_order(table, options);
}

}  // namespace pipetrain
