// Images in folders: DIR/CLASS/*.png, or DIR/train/CLASS/*.png and DIR/val/CLASS/*.png, or all in
// one folder without classes.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "data/formats/image_rows.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

namespace fs = std::filesystem;

constexpr int kDeepest = 32;

bool is_image_file(const fs::path& path) {
  std::string name = path.filename().string();
  if (name.starts_with(".")) return false;
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return has_image_name(name);
}

// True where a link leads to a folder that the link is in: its content would come again and again.
bool leads_back(const fs::directory_entry& entry) {
  std::error_code error;
  if (!entry.is_symlink(error) || !entry.is_directory(error)) return false;
  const fs::path target = fs::canonical(entry.path(), error);
  if (error) return false;
  for (fs::path place = entry.path().parent_path();; place = place.parent_path()) {
    // Each folder on the way, since that may lead through other links.
    const fs::path real = fs::canonical(place.empty() ? "." : place, error);
    if (error) return false;
    const auto [end, rest] = std::mismatch(target.begin(), target.end(), real.begin(), real.end());
    if (end == target.end()) return true;
    if (place.empty() || place == place.root_path()) return false;
  }
}

// Folders below `folder`, by name.
std::map<std::string, fs::path> folders_in(const fs::path& folder) {
  std::map<std::string, fs::path> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && !name.starts_with(".") && !leads_back(entry))
      out.emplace(name, entry.path());
  }
  return out;
}

// All images below `folder`, in byte order of their paths.
std::vector<std::string> images_below(const fs::path& folder) {
  std::vector<std::string> out;
  constexpr auto kOptions = fs::directory_options::skip_permission_denied |
                            fs::directory_options::follow_directory_symlink;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, kOptions, error), end; !error && at != end;
       at.increment(error)) {
    if (at.depth() > kDeepest || leads_back(*at)) at.disable_recursion_pending();
    if (is_image_file(at->path()) && at->is_regular_file(error)) out.push_back(at->path().string());
  }
  PT_CHECK(!error, kData, "cannot read the directory \"{}\": {}", printable(folder.string()),
           error.message());
  std::sort(out.begin(), out.end());
  return out;
}

RawSplit read_folder(const fs::path& folder, std::vector<std::string>& notes) {
  std::vector<std::string> files, classes;
  std::vector<std::int64_t> labels;
  for (const auto& [name, path] : folders_in(folder)) {
    const std::vector<std::string> below = images_below(path);
    if (below.empty()) {
      notes.push_back(fmt::format("folder \"{}\" has no images and is ignored", printable(name)));
      continue;
    }
    labels.insert(labels.end(), below.size(), static_cast<std::int64_t>(classes.size()));
    files.insert(files.end(), below.begin(), below.end());
    classes.push_back(name);
  }
  const bool flat = classes.empty();
  if (flat) files = images_below(folder);
  PT_CHECK(!files.empty(), kData, "\"{}\" has no images; supported: PNG, JPEG, WebP, BMP, PPM",
           printable(folder.string()));
  RawSplit out;
  const std::string name = folder.string();
  out.columns.push_back({"x",
                         {},
                         name,
                         ColumnRole::kInput,
                         {},
                         {},
                         {},
                         make_image_rows(std::make_shared<ImageFiles>(std::move(files)))});
  if (flat) {
    notes.push_back("no class folders, so no labels");
    return out;
  }
  const Shape rows{static_cast<std::int64_t>(labels.size())};
  out.columns.push_back({"y",
                         HostTensor::of<std::int64_t>(rows, labels),
                         name,
                         ColumnRole::kLabel,
                         {},
                         std::move(classes),
                         {}});
  return out;
}

}  // namespace

bool has_images(const std::string& folder) {
  std::error_code error;
  constexpr auto kOptions = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator at(folder, kOptions, error), end; !error && at != end;
       at.increment(error)) {
    if (is_image_file(at->path())) return true;
  }
  return false;
}

RawData read_image_folder(const std::string& path) {
  RawData out{path, "folder of images", {}, {}, {}};
  if (!fs::is_directory(path)) {
    PT_CHECK(fs::exists(path), kData, "there is no data file \"{}\"", printable(path));
    out.format = "one image";
    std::vector<std::string> files = list_files(path);
    out.train.columns.push_back({"x",
                                 {},
                                 path,
                                 ColumnRole::kInput,
                                 {},
                                 {},
                                 {},
                                 make_image_rows(std::make_shared<ImageFiles>(std::move(files)))});
    return out;
  }
  std::optional<fs::path> train, validation, test;
  const auto folders = folders_in(path);
  bool other = false;
  for (const auto& [name, folder] : folders) {
    if (name == "train" || name == "training") {
      train = folder;
    } else if (name == "val" || name == "valid" || name == "validation") {
      validation = folder;
    } else if (name == "test" || name == "testing") {
      test = folder;
    } else {
      other = true;
    }
  }
  if (other || !train) {
    out.train = read_folder(path, out.notes);
    return out;
  }
  out.train = read_folder(*train, out.notes);
  if (!validation) validation = test;
  if (validation && has_images(validation->string())) {
    out.validation = read_folder(*validation, out.notes);
  }
  return out;
}

}  // namespace pipetrain
