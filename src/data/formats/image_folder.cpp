// Images in folders: DIR/CLASS/*.png, or DIR/train/CLASS/*.png and DIR/val/CLASS/*.png, or all in
// one folder without classes, or DIR/images/*.jpg with DIR/masks/*.png of the same names, or
// DIR/images/train/*.jpg with DIR/masks/train/*.png, and the same of val.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/formats/image_rows.h"
#include "data/rows/class_labels.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

namespace fs = std::filesystem;

constexpr int kDeepest = 32;

std::string lower_name(const fs::path& path) {
  std::string name = path.filename().string();
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

bool is_image_file(const fs::path& path) {
  const std::string name = lower_name(path);
  return !name.starts_with(".") && has_image_name(name);
}

// Images in formats that are not read.
bool is_other_image(const fs::path& path) {
  constexpr std::string_view kEndings[] = {".gif", ".tif", ".tiff", ".heic", ".heif", ".avif",
                                           ".jp2", ".jxl", ".svg",  ".pbm",  ".tga"};
  const std::string name = lower_name(path);
  return !name.starts_with(".") &&
         std::ranges::any_of(kEndings, [&](std::string_view end) { return name.ends_with(end); });
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

void check_folder(const fs::path& folder, const std::error_code& error) {
  PT_CHECK(!error, kData, "cannot read the directory \"{}\": {}", printable(folder.string()),
           error.message());
}

// Folders below `folder`, by name.
std::map<std::string, fs::path> folders_in(const fs::path& folder) {
  std::map<std::string, fs::path> out;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  check_folder(folder, error);
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory(error) && !name.starts_with(".") && !leads_back(entry))
      out.emplace(name, entry.path());
  }
  return out;
}

// Calls `visit` for the files below `folder`, also behind links, until it returns false.
template <class Visit>
std::error_code visit_files(const fs::path& folder, const Visit& visit) {
  constexpr auto kOptions = fs::directory_options::skip_permission_denied |
                            fs::directory_options::follow_directory_symlink;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, kOptions, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code dangles;
    if (!at->is_directory(dangles) || at.depth() > kDeepest || leads_back(*at))
      at.disable_recursion_pending();
    if (at->is_regular_file(dangles) && !visit(at->path())) break;
  }
  return error;
}

struct FoundImages {
  std::vector<std::string> files;   // in byte order of their paths
  std::vector<std::string> others;  // in formats that are not read
};

// All images below `folder`.
FoundImages images_below(const fs::path& folder) {
  FoundImages out;
  check_folder(folder, visit_files(folder, [&](const fs::path& file) {
                 if (is_image_file(file)) out.files.push_back(file.string());
                 if (is_other_image(file)) out.others.push_back(file.string());
                 return true;
               }));
  std::sort(out.files.begin(), out.files.end());
  std::sort(out.others.begin(), out.others.end());
  return out;
}

/// `which`: where or what they are.
void warn_of_ignored(const std::vector<std::string>& images, std::string_view which, RawData& out) {
  if (images.empty()) return;
  const bool one = images.size() == 1;
  out.warnings.push_back(fmt::format("{} image{} {} {} ignored: {}{}", images.size(),
                                     one ? "" : "s", which, one ? "is" : "are",
                                     printable(images[0]), one ? "" : ", …"));
  out.notes.push_back(out.warnings.back());
}

// Images that lie in none of the folders that are read.
void warn_of_images_beside(const fs::path& folder, std::string_view folders, RawData& out) {
  std::vector<std::string> found;
  for (const std::string& file : list_files(folder.string())) {
    if (is_image_file(file)) found.push_back(file);
  }
  warn_of_ignored(found, fmt::format("beside the folders of {}", folders), out);
}

// The masks beside the images of a folder that has just these two folders: not a class of images.
struct MaskFolders {
  fs::path images, masks;
};
std::optional<MaskFolders> mask_folders_in(const fs::path& folder) {
  constexpr std::string_view kImages[] = {"images", "image", "imgs", "img"};
  constexpr std::string_view kMasks[] = {"masks", "mask", "labels", "annotations", "segmentation"};
  MaskFolders out;
  const auto folders = folders_in(folder);
  for (const auto& [name, path] : folders) {
    if (std::ranges::find(kImages, lower_name(path)) != std::end(kImages)) out.images = path;
    if (std::ranges::find(kMasks, lower_name(path)) != std::end(kMasks)) out.masks = path;
  }
  if (folders.size() != 2 || out.images.empty() || out.masks.empty()) return {};
  return out;
}

// The file of each image's mask: of the same name, also with "_mask" behind it, in the subfolder of
// the same name; or in any, where neither another image nor another mask is called so.
std::vector<std::string> masks_of(const std::vector<std::string>& images, const MaskFolders& from) {
  using Names = std::map<std::string, std::vector<std::string>>;  // without endings; of files
  const auto place = [](const std::string& file, const fs::path& folder) {
    return fs::path(file).lexically_relative(folder).replace_extension().string();
  };
  const auto stem = [](const std::string& file) { return fs::path(file).stem().string(); };
  Names by_place, by_stem, images_by_stem;
  for (const std::string& file : images_below(from.masks).files) {
    by_place[place(file, from.masks)].push_back(file);
    by_stem[stem(file)].push_back(file);
  }
  for (const std::string& image : images) images_by_stem[stem(image)].push_back(image);
  const auto find = [](const Names& names, const std::string& name) {
    const auto found = names.find(name);
    return found != names.end() ? found : names.find(name + "_mask");
  };
  std::vector<std::string> out;
  for (const std::string& image : images) {
    auto found = find(by_place, place(image, from.images));
    const bool elsewhere = found == by_place.end();
    if (elsewhere) found = find(by_stem, stem(image));
    PT_CHECK(found != (elsewhere ? by_stem : by_place).end(), kData,
             "the image \"{}\" has no mask in \"{}\"", printable(image),
             printable(from.masks.string()));
    const std::vector<std::string>& masks = found->second;
    PT_CHECK(masks.size() == 1, kData, "the image \"{}\" has two masks, \"{}\" and \"{}\"; {}",
             printable(image), printable(masks[0]), printable(masks[1]),
             elsewhere ? "put them into subfolders that are called as those of the images"
                       : "remove one of them");
    const std::vector<std::string>& others = images_by_stem[stem(image)];
    PT_CHECK(!elsewhere || others.size() == 1, kData,
             "the mask \"{}\" may belong to \"{}\" and to \"{}\"; put masks into subfolders that "
             "are called as those of the images",
             printable(masks[0]), printable(others[0]), printable(others[1]));
    out.push_back(masks[0]);
  }
  return out;
}

// Classes of pixels: (masks, height, width).
HostTensor read_masks(const std::vector<std::string>& files) {
  HostTensor out;
  std::uint8_t* to = nullptr;
  for (const std::string& file : files) {
    const FileBytes content = FileBytes::open(file);
    const std::string name = fmt::format("\"{}\"", printable(file));
    const Image mask = read_and_check([&] { return decode_mask(content.bytes(), name); },
                                      [&] { content.check(); });
    const auto height = static_cast<std::int64_t>(mask.height);
    const auto width = static_cast<std::int64_t>(mask.width);
    if (!out) {
      out = HostTensor(
          TensorType{DType::kUint8, Shape{static_cast<std::int64_t>(files.size()), height, width}});
      to = out.span<std::uint8_t>().data();
    }
    PT_CHECK(out.shape()[1] == height && out.shape()[2] == width, kData,
             "the mask {} has {} x {} pixels, the first one {} x {}; bring images and masks to one "
             "size",
             name, width, height, out.shape()[2], out.shape()[1]);
    to = std::copy(mask.pixels.begin(), mask.pixels.end(), to);
  }
  return out;
}

// Masks of 0 and 255 alone are drawings of the classes 0 and 1. Beside other values, in the other
// part too, 255 is a value like them: pixels that the loss passes over, often.
void number_drawings(RawData& data) {
  std::vector<RawColumn*> masks;
  for (RawSplit* split : {&data.train, &data.validation}) {
    for (RawColumn& column : split->columns) {
      if (column.role == ColumnRole::kLabel && column.dtype() == DType::kUint8)
        masks.push_back(&column);
    }
  }
  const bool two = std::ranges::all_of(masks, [](const RawColumn* column) {
    return std::ranges::all_of(column->values.span<std::uint8_t>(),
                               [](std::uint8_t value) { return value == 0 || value == 255; });
  });
  for (const RawColumn* column : masks) {
    for (std::uint8_t& value : column->values.span<std::uint8_t>()) {
      if (two) value = value ? 1 : 0;
      data.train.masks_are_numbered |= value > 1;
    }
  }
}

RawSplit read_masked(const MaskFolders& from, RawData& whole) {
  FoundImages found = images_below(from.images);
  warn_of_ignored(found.others, "in formats that are not read", whole);
  PT_CHECK(!found.files.empty(), kData,
           "\"{}\" has no images; supported: PNG, JPEG, WebP, BMP, PPM",
           printable(from.images.string()));
  const HostTensor masks = read_masks(masks_of(found.files, from));
  const RequiredSize size{static_cast<std::size_t>(masks.shape()[1]),
                          static_cast<std::size_t>(masks.shape()[2])};
  whole.notes.push_back(fmt::format("labels from the masks in \"{}\"",
                                    printable(from.masks.lexically_relative(whole.path).string())));
  RawSplit out;
  out.columns.push_back(
      {"x",
       {},
       from.images.string(),
       ColumnRole::kInput,
       {},
       {},
       {},
       make_image_rows(std::make_shared<ImageFiles>(std::move(found.files)), size)});
  out.columns.push_back({"y", masks, from.masks.string(), ColumnRole::kLabel, {}, {}, {}});
  return out;
}

RawSplit read_folder(const fs::path& folder, RawData& whole) {
  if (const auto masks = mask_folders_in(folder)) return read_masked(*masks, whole);
  std::vector<std::string> files, classes, others;
  std::vector<std::int64_t> labels;
  const auto take = [&](const fs::path& from) {
    const FoundImages below = images_below(from);
    files.insert(files.end(), below.files.begin(), below.files.end());
    others.insert(others.end(), below.others.begin(), below.others.end());
    return below.files.size();
  };
  for (const auto& [name, path] : folders_in(folder)) {
    const std::size_t count = take(path);
    if (count == 0) {
      whole.notes.push_back(
          fmt::format("folder \"{}\" has no images and is ignored", printable(name)));
      continue;
    }
    labels.insert(labels.end(), count, static_cast<std::int64_t>(classes.size()));
    check_class_name(name, ClassNameIs::kFolder);
    classes.push_back(name);
  }
  const bool flat = classes.empty();
  if (flat) others.clear(), take(folder);
  if (!flat) warn_of_images_beside(folder, "classes", whole);
  warn_of_ignored(others, "in formats that are not read", whole);
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
    whole.notes.push_back("no class folders, so no labels");
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

// Folders of a folder that are parts of a data set, and others with images.
struct PartFolders {
  std::optional<fs::path> train, validation;
  std::vector<std::string> others;
};

PartFolders parts_in(const fs::path& whole) {
  PartFolders out;
  std::optional<fs::path> test;
  for (const auto& [name, folder] : folders_in(whole)) {
    if (name == "train" || name == "training") {
      out.train = folder;
    } else if (name == "val" || name == "valid" || name == "validation" || name == "dev") {
      out.validation = folder;
    } else if (name == "test" || name == "testing") {
      test = folder;
    } else if (has_images(folder.string())) {
      out.others.push_back(printable(name));
    }
  }
  if (!out.validation) out.validation = test;
  return out;
}

// The masks of a part of the images: in a folder of the same name.
MaskFolders masks_of_part(const MaskFolders& whole, const fs::path& images) {
  const fs::path masks = whole.masks / images.filename();
  PT_CHECK(fs::is_directory(masks), kData,
           "the images in \"{}\" have no masks: there is no folder \"{}\"",
           printable(images.string()), printable(masks.string()));
  return {images, masks};
}

}  // namespace

bool has_images(const std::string& folder) {
  bool found = false;
  visit_files(folder, [&](const fs::path& file) {
    found = is_image_file(file);
    return !found;
  });
  return found;
}

RawData read_image_folder(const std::string& path, bool masks_are_drawings) {
  RawData out{path, "folder of images", {}, {}, {}};
  if (!fs::is_directory(path)) {
    std::vector<std::string> files = list_files(path);
    PT_CHECK(files[0] == "-" || fs::exists(files[0]), kData, "there is no data file \"{}\"",
             printable(path));
    out.format = files.size() == 1 ? "one image" : "images";
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
  const std::optional<MaskFolders> masks = mask_folders_in(path);
  const fs::path images = masks ? masks->images : fs::path(path);
  const PartFolders parts = parts_in(images);
  // Without other parts, "train" is a class like its neighbours: a vehicle.
  const bool has_parts = parts.train && (parts.validation || (parts.others.empty() && !masks));
  const auto read = [&](const fs::path& part) {
    return masks ? read_masked(masks_of_part(*masks, part), out) : read_folder(part, out);
  };
  if (!has_parts) {
    out.train = read_folder(path, out);
    if (masks_are_drawings) number_drawings(out);
    return out;
  }
  if (!parts.others.empty())
    out.notes.push_back(fmt::format("beside the folders of the parts, {} {} not read",
                                    fmt::join(parts.others, ", "),
                                    parts.others.size() == 1 ? "is" : "are"));
  if (masks) warn_of_images_beside(images, "the parts", out);
  out.train = read(*parts.train);
  if (parts.validation && has_images(parts.validation->string()))
    out.validation = read(*parts.validation);
  if (masks_are_drawings) number_drawings(out);
  return out;
}

}  // namespace pipetrain
