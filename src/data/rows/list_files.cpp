// Lists the files of a path, a glob or a directory.
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/setting.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

/// Whether one of the words of a file's name ("valTexts-1.txt": val, Texts, txt) is among these.
bool has_word(const std::string& file, std::span<const std::string_view> words) {
  const std::string name = std::filesystem::path(file).filename().string();
  std::string word;
  for (std::size_t i = 0; i <= name.size(); ++i) {
    const char c = i < name.size() ? name[i] : '.';
    const bool is_letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
    const bool begins = !is_letter || (std::isupper(static_cast<unsigned char>(c)) && i > 0 &&
                                       std::islower(static_cast<unsigned char>(name[i - 1])));
    if (begins) {
      if (std::ranges::find(words, word) != words.end()) return true;
      word.clear();
    }
    if (is_letter) word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return false;
}

/// Of the names of one file, its own and those of links beside it, the ones that are read: one for
/// each part of the data that they name, or else the file's own. With others, its content would
/// come twice.
std::vector<std::string> without_repeats(std::vector<std::string> names, const std::string& own) {
  if (names.size() == 1) return names;
  // The plainest name first: of "train.csv" and "train-v3.csv", readers look for the former.
  std::ranges::sort(names, {},
                    [](const std::string& name) { return std::pair(name.size(), name); });
  std::vector<std::string> out;
  for (const auto& names_part : {names_other_part, names_training_part}) {
    const auto found = std::ranges::find_if(names, names_part);
    if (found != names.end() && std::ranges::count(out, *found) == 0) out.push_back(*found);
  }
  if (out.empty()) out.push_back(std::ranges::count(names, own) > 0 ? own : names[0]);
  return out;
}

}  // namespace

bool names_test_part(const std::string& file) {
  static constexpr std::array<std::string_view, 4> kWords = {"test", "tests", "testing", "testset"};
  return has_word(file, kWords);
}

bool names_other_part(const std::string& file) {
  static constexpr std::array<std::string_view, 8> kWords = {
      "val", "valid", "validation", "valset", "dev", "devset", "eval", "evaluation"};
  return has_word(file, kWords) || names_test_part(file);
}

void prefer_validation(std::vector<std::string>& files, std::vector<std::string>& notes) {
  if (std::ranges::all_of(files, names_test_part)) return;
  if (std::erase_if(files, names_test_part) > 0)
    notes.emplace_back("of its validation and test parts, the validation part is used");
}

FileParts divide_files(const std::vector<std::string>& files, std::vector<std::string>& notes) {
  FileParts parts;
  for (const std::string& file : files) {
    const bool other = files.size() > 1 && names_other_part(file);
    (other ? parts.validation : parts.train).push_back(file);
  }
  if (parts.train.empty())
    std::swap(parts.train, parts.validation);
  else
    prefer_validation(parts.validation, notes);
  return parts;
}

bool names_training_part(const std::string& file) {
  static constexpr std::array<std::string_view, 3> kWords = {"train", "training", "trainset"};
  return has_word(file, kWords);
}

std::string bare_name(const std::string& file) {
  std::string name = std::filesystem::path(file).filename().string();
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (name.ends_with(".gz") || name.ends_with(".xz")) name.resize(name.size() - 3);
  return name;
}

bool is_glob(const std::string& path) {
  return std::filesystem::path(path).filename().string().find_first_of("*?[") != std::string::npos;
}

std::vector<std::string> list_files(const std::string& path, TakesName takes) {
  namespace fs = std::filesystem;
  const fs::path place(path);
  std::error_code error;
  if (fs::is_regular_file(place, error) || path == "-") return {path};
  const bool directory = fs::is_directory(place, error);
  const bool glob = !directory && is_glob(path);
  if (!directory && !glob) return {path};
  fs::path folder = directory ? place : place.parent_path();
  if (folder.empty()) folder = ".";
  const std::string pattern = glob ? place.filename().string() : "*";
  fs::directory_iterator entries(folder, error);
  PT_CHECK(!error, kData, "cannot read the directory \"{}\": {}", printable(folder.string()),
           error.message());
  const fs::path here = fs::weakly_canonical(folder, error);
  std::map<std::string, std::vector<std::string>> files;  // by their own names: all names
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file(error) || fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD) != 0)
      continue;
    if (directory && takes && !takes(name)) continue;
    std::string own = name;
    if (entry.is_symlink(error)) {
      const fs::path target = fs::weakly_canonical(entry.path(), error);
      if (target.parent_path() == here) own = target.filename().string();
    }
    files[own].push_back(name);
  }
  std::vector<std::string> out;
  for (const auto& [own, names] : files) {
    for (const std::string& name : without_repeats(names, own))
      out.push_back((folder == "." && !directory ? fs::path(name) : folder / name).string());
  }
  PT_CHECK(!out.empty() || directory, kData, "no file matches \"{}\"", printable(path));
  std::sort(out.begin(), out.end());
  return out;
}

bool is_table_name(const std::string& name) {
  const std::string bare = bare_name(name);
  return bare.ends_with(".csv") || bare.ends_with(".tsv");
}

bool is_jsonl_name(const std::string& name) {
  return bare_name(name).find(".jsonl") != std::string::npos;
}

TableFiles table_files_in(const std::string& folder) {
  TableFiles out;
  for (const std::string& file : list_files(folder, is_table_name)) {
    const std::string stem = std::filesystem::path(bare_name(file)).stem().string();
    if (stem == "train") out.train = file;
    const bool validation =
        stem == "val" || stem == "valid" || stem == "validation" || stem == "dev";
    if (validation || (stem == "test" && out.validation.empty())) out.validation = file;
  }
  return out;
}

std::string only_file(const std::string& path, std::string_view format) {
  std::vector<std::string> files = list_files(path);
  PT_CHECK(files.size() == 1, kUsage, "\"{}\" are {} files, but {} {} reads one file",
           printable(path), files.size(), setting("format"), format);
  return std::move(files[0]);
}

}  // namespace pipetrain
