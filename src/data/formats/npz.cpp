// Archives of NumPy arrays, and single arrays with their labels beside them.
#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>

#include "base/error.h"
#include "data/files/zip_archive.h"
#include "data/rows/class_labels.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

constexpr std::string_view kExtension = ".npy";

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

constexpr std::pair<std::string_view, SourcePart> kParts[] = {
    {"train", SourcePart::kTrain},    {"training", SourcePart::kTrain},
    {"val", SourcePart::kValidation}, {"validation", SourcePart::kValidation},
    {"dev", SourcePart::kValidation}, {"valid", SourcePart::kValidation},
    {"test", SourcePart::kTest},
};

// "x.npy.gz" is called "x" and ends in ".npy.gz"; a file that is called otherwise has no ending.
struct ArrayFile {
  std::string name, ending;
};
ArrayFile split_file_name(const std::string& file) {
  const std::string name = std::filesystem::path(file).filename().string();
  for (const char* packed : {"", ".gz", ".xz"}) {
    const std::string ending = std::string(kExtension) + packed;
    if (name.ends_with(ending)) return {name.substr(0, name.size() - ending.size()), ending};
  }
  return {std::filesystem::path(name).stem().string(), ""};
}

// Labels that are strings, as classes; none where the array has other elements.
std::optional<RawColumn> labels_of_words(const std::string& name, const std::string& shown,
                                         const FileBytes& content) {
  const std::vector<std::string> words = parse_npy_words(content.bytes(), shown);
  if (words.empty()) return std::nullopt;
  ClassNumbers classes = number_classes(words);
  const Shape rows{static_cast<std::int64_t>(words.size())};
  return RawColumn{name,  HostTensor::of<std::int64_t>(rows, classes.numbers),
                   shown, ColumnRole::kLabel,
                   {},    std::move(classes.names),
                   {}};
}

// Sorts arrays by the part that their key names.
class ArrayParts {
 public:
  ArrayParts(const std::string& path, std::string format)
      : out_{path, std::move(format), {}, {}, {}} {}

  void add(const std::string& key, const PartName& name, const std::string& shown,
           const FileBytes& content) {
    const NpyHeader header = parse_npy_header(content.bytes(), shown);
    auto& part = parts_[static_cast<std::size_t>(name.part.value_or(SourcePart::kTrain))];
    if (role_of_name(name.base) == ColumnRole::kLabel) {
      if (auto labels = labels_of_words(name.base, shown, content)) {
        part.push_back(*std::move(labels));
        return;
      }
    }
    if (header.dtype == DType::kUndefined || header.shape.rank() == 0) {
      out_.notes.push_back(fmt::format("array \"{}\" is left out: {}", printable(key),
                                       header.shape.rank() == 0
                                           ? "it is a single value"
                                           : "its type is " + printable(header.descr)));
      return;
    }
    part.push_back(
        {name.base, parse_npy(content.bytes(), shown), shown, role_of_name(name.base), {}, {}, {}});
  }

  RawData result() {
    auto& [train, validation, test] = parts_;
    PT_CHECK(!train.empty() || !validation.empty() || !test.empty(), kData,
             "\"{}\" holds no NumPy arrays", printable(out_.path));
    // Test data alone are what `eval` is given.
    if (train.empty()) train = std::move(!test.empty() ? test : validation);
    if (!validation.empty() && !test.empty()) {
      out_.notes.push_back("of its validation and test parts, the validation part is used");
    }
    out_.train.columns = std::move(train);
    out_.validation.columns = std::move(!validation.empty() ? validation : test);
    return std::move(out_);
  }

 private:
  RawData out_;
  std::array<std::vector<RawColumn>, 3> parts_;
};

}  // namespace

PartName split_part_name(const std::string& key) {
  const std::string small = lower(key);
  for (const auto& [word, part] : kParts) {
    const std::string before = std::string(word) + "_", after = "_" + std::string(word);
    if (small.starts_with(before) && key.size() > before.size()) {
      return {key.substr(before.size()), part};
    }
    if (small.ends_with(after) && key.size() > after.size()) {
      return {key.substr(0, key.size() - after.size()), part};
    }
  }
  return {key, std::nullopt};
}

std::vector<PartName> split_part_names(const std::vector<std::string>& keys) {
  std::vector<PartName> names;
  std::ranges::transform(keys, std::back_inserter(names), split_part_name);
  const bool all =
      std::ranges::all_of(names, [](const PartName& name) { return name.part.has_value(); });
  std::map<std::string_view, std::set<std::optional<SourcePart>>> parts_of;
  for (const PartName& name : names) parts_of[name.base].insert(name.part);
  std::set<std::optional<SourcePart>> with_others;
  for (const auto& [base, parts] : parts_of) {
    if (parts.size() > 1) with_others.insert(parts.begin(), parts.end());
  }
  std::vector<PartName> out;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::optional<SourcePart> part = names[i].part;
    const bool is_part = !part || part == SourcePart::kTrain || all || with_others.contains(part);
    out.push_back(is_part ? names[i] : PartName{keys[i], std::nullopt});
  }
  return out;
}

ColumnRole role_of_name(const std::string& name) {
  constexpr std::string_view kLabels[] = {"y",       "label", "labels",      "target",
                                          "targets", "class", "fine_labels", "classes"};
  const std::string small = lower(name.substr(name.rfind('/') + 1));
  if (std::ranges::find(kLabels, small) != std::end(kLabels)) return ColumnRole::kLabel;
  if (small == "x" || small == "images" || small == "features") return ColumnRole::kInput;
  return ColumnRole::kUnknown;
}

RawData read_npz(const std::string& path) {
  const ZipArchive archive(FileBytes::open_inflated(only_file(path, "npz")), path);
  ArrayParts parts(path, "NumPy archive (npz)");
  std::vector<std::string> keys;
  std::vector<const ZipEntry*> entries;
  for (const ZipEntry& entry : archive.entries()) {
    if (!entry.name.ends_with(kExtension)) continue;
    keys.push_back(entry.name.substr(0, entry.name.size() - kExtension.size()));
    entries.push_back(&entry);
  }
  const std::vector<PartName> names = split_part_names(keys);
  for (std::size_t i = 0; i < keys.size(); ++i)
    parts.add(keys[i], names[i], fmt::format("{}[{}]", path, keys[i]), archive.read(*entries[i]));
  return parts.result();
}

RawData read_npy(const std::string& path) {
  if (std::filesystem::is_directory(path)) {
    ArrayParts parts(path, "NumPy arrays (npy)");
    const std::vector<std::string> files = list_files(
        path, [](const std::string& name) { return !split_file_name(name).ending.empty(); });
    std::vector<std::string> keys;
    for (const std::string& file : files) keys.push_back(split_file_name(file).name);
    const std::vector<PartName> names = split_part_names(keys);
    for (std::size_t i = 0; i < files.size(); ++i)
      parts.add(keys[i], names[i], files[i], FileBytes::open_inflated(files[i]));
    return parts.result();
  }
  RawData out{path, "NumPy array (npy)", {}, {}, {}};
  const auto add = [&](const std::string& file, const std::string& name, ColumnRole role) {
    const FileBytes content = FileBytes::open_inflated(file);
    if (role == ColumnRole::kLabel) {
      if (auto labels = labels_of_words(name, file, content)) {
        out.train.columns.push_back(*std::move(labels));
        return;
      }
    }
    out.train.columns.push_back({name, parse_npy(content.bytes(), file), file, role, {}, {}, {}});
  };
  const std::string source = only_file(path, "npy");
  const std::filesystem::path inputs(source);
  const auto [stem, ending] = split_file_name(source);
  add(source, stem, ColumnRole::kInput);
  constexpr std::pair<std::string_view, std::string_view> kBeside[] = {
      {"x", "y"},           {"X", "y"},           {"X", "Y"},
      {"images", "labels"}, {"inputs", "labels"}, {"inputs", "targets"},
      {"data", "labels"}};
  for (const auto& [input, label] : kBeside) {
    const std::size_t at = stem.find(input);
    // The word must stand alone: "x_train" has an x, "mixed" has none.
    if (at == std::string::npos ||
        (at > 0 && std::isalpha(static_cast<unsigned char>(stem[at - 1]))) ||
        (at + input.size() < stem.size() &&
         std::isalpha(static_cast<unsigned char>(stem[at + input.size()])))) {
      continue;
    }
    std::string name = stem;
    name.replace(at, input.size(), label);
    const std::filesystem::path beside =
        inputs.parent_path() / (name + (ending.empty() ? std::string(kExtension) : ending));
    if (!std::filesystem::is_regular_file(beside)) continue;
    add(beside.string(), name, ColumnRole::kLabel);
    out.notes.push_back(fmt::format("labels from \"{}\" beside it", beside.filename().string()));
    break;
  }
  return out;
}

}  // namespace pipetrain
