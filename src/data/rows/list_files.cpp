// Lists the files of a path, a glob or a directory.
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <span>
#include <string_view>

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

}  // namespace

bool names_other_part(const std::string& file) {
  static constexpr std::array<std::string_view, 10> kWords = {
      "val",  "valid", "validation", "valset",  "eval",
      "test", "tests", "testing",    "testset", "evaluation"};
  return has_word(file, kWords);
}

bool names_training_part(const std::string& file) {
  static constexpr std::array<std::string_view, 3> kWords = {"train", "training", "trainset"};
  return has_word(file, kWords);
}

std::vector<std::string> list_files(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path place(path);
  std::error_code error;
  if (fs::is_regular_file(place, error) || path == "-") return {path};
  const bool directory = fs::is_directory(place, error);
  const bool glob =
      !directory && place.filename().string().find_first_of("*?[") != std::string::npos;
  if (!directory && !glob) return {path};
  fs::path folder = directory ? place : place.parent_path();
  if (folder.empty()) folder = ".";
  const std::string pattern = glob ? place.filename().string() : "*";
  std::vector<std::string> out;
  fs::directory_iterator entries(folder, error);
  PT_CHECK(!error, kData, "cannot read the directory \"{}\": {}", printable(folder.string()),
           error.message());
  const fs::path here = fs::weakly_canonical(folder, error);
  for (const auto& entry : entries) {
    // A link to a neighbour would bring the same content twice.
    if (entry.is_symlink(error) &&
        fs::weakly_canonical(entry.path(), error).parent_path() == here) {
      continue;
    }
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file(error) && fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD) == 0) {
      out.push_back((folder == "." && !directory ? fs::path(name) : entry.path()).string());
    }
  }
  PT_CHECK(!out.empty() || directory, kData, "no file matches \"{}\"", printable(path));
  std::sort(out.begin(), out.end());
  return out;
}

std::string only_file(const std::string& path, std::string_view format) {
  std::vector<std::string> files = list_files(path);
  PT_CHECK(files.size() == 1, kUsage, "\"{}\" are {} files, but {} {} reads one file",
           printable(path), files.size(), setting("format"), format);
  return std::move(files[0]);
}

}  // namespace pipetrain
