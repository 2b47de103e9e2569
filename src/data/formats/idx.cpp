// MNIST's IDX format: 00 00 type rank, then big-endian extents, then big-endian elements
// (http://yann.lecun.com/exdb/mnist describes it).
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/setting.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

namespace fs = std::filesystem;

DType dtype_of_code(unsigned code) {
  switch (code) {
    case 0x08:
      return DType::kUint8;
    case 0x09:
      return DType::kInt8;
    case 0x0B:
      return DType::kInt16;
    case 0x0C:
      return DType::kInt32;
    case 0x0D:
      return DType::kFloat32;
    case 0x0E:
      return DType::kFloat64;
    default:
      return DType::kUndefined;
  }
}

HostTensor parse_idx(std::span<const std::byte> bytes, const std::string& name) {
  const std::string shown = printable(name);
  PT_CHECK(bytes.size() >= 4 && little_endian(bytes.first(2)) == 0, kData,
           "\"{}\" is not an IDX file: it does not begin with two zero bytes", shown);
  const auto code = std::to_integer<unsigned>(bytes[2]);
  const auto rank = std::to_integer<std::size_t>(bytes[3]);
  const DType dtype = dtype_of_code(code);
  PT_CHECK(dtype != DType::kUndefined && rank >= 1 && rank <= 8, kData,
           "\"{}\" is not an IDX file: type 0x{:02x} and rank {} make no sense", shown, code, rank);
  const std::size_t begin = 4 + 4 * rank;
  PT_CHECK(bytes.size() >= begin, kData, "\"{}\" is a truncated IDX file", shown);
  std::vector<std::int64_t> dims;
  std::size_t count = 1;
  const auto data = bytes.subspan(begin);
  const std::size_t size = size_of(dtype);
  for (std::size_t axis = 0; axis < rank; ++axis) {
    const std::uint64_t extent = big_endian(bytes.subspan(4 + 4 * axis, 4));
    dims.push_back(static_cast<std::int64_t>(extent));
    // Beyond the file's size the product is wrong anyway, and must not overflow.
    PT_CHECK(extent > 0 && count <= data.size() / size / extent, kData,
             "\"{}\" is a truncated or damaged IDX file: its extents {} ask for more than its {} "
             "bytes",
             shown, Shape(dims).text(), data.size());
    count *= extent;
  }
  PT_CHECK(count * size == data.size(), kData,
           "\"{}\" is a damaged IDX file: its extents {} ask for {} bytes, it has {}", shown,
           Shape(dims).text(), count * size, data.size());
  HostTensor out(TensorType{dtype, Shape(std::move(dims)), Layout::kRowMajor});
  std::memcpy(out.view().data, data.data(), data.size());
  swap_bytes({static_cast<std::byte*>(out.view().data), data.size()}, size);
  return out;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// The labels that belong to an images file: train-images-idx3-ubyte → train-labels-idx1-ubyte.
std::optional<std::string> labels_beside(const fs::path& images) {
  std::string name = images.filename().string();
  if (name.find("images") == std::string::npos) return std::nullopt;
  replace_all(name, "images", "labels");
  replace_all(name, "idx3", "idx1");
  std::string other = name;
  if (name.ends_with(".gz")) {
    other.resize(name.size() - 3);
  } else {
    other += ".gz";
  }
  for (const std::string& candidate : {name, other}) {
    const fs::path path = images.parent_path() / candidate;
    if (fs::is_regular_file(path)) return path.string();
  }
  return std::nullopt;
}

RawSplit read_pair(const std::string& images, std::vector<std::string>& notes) {
  RawSplit out;
  const auto add = [&](const std::string& file, const char* name, ColumnRole role) {
    const FileBytes content = FileBytes::open_inflated(file);
    out.columns.push_back({name, parse_idx(content.bytes(), file), file, role, {}, {}, {}});
  };
  add(images, "x", ColumnRole::kInput);
  if (out.columns[0].values.shape().rank() == 1) {
    out.columns[0].role = ColumnRole::kLabel;
    out.columns[0].name = "y";
    return out;
  }
  if (const auto labels = labels_beside(images)) {
    add(*labels, "y", ColumnRole::kLabel);
  } else {
    notes.push_back(
        fmt::format("no labels file beside \"{}\"", fs::path(images).filename().string()));
  }
  return out;
}

/// The images of a folder for one purpose, of which there may be several copies: compressed, or
/// with a dot in place of a dash. Empty: there are none.
std::string only_images(const std::string& folder, const std::vector<std::string>& files,
                        const char* purpose) {
  const auto name_of_set = [](const std::string& file) {
    std::string name = bare_name(file);
    std::ranges::replace(name, '.', '-');
    return name;
  };
  std::vector<std::string> names, sets;
  for (const std::string& file : files) {
    if (std::ranges::find(sets, name_of_set(file)) != sets.end()) continue;
    sets.push_back(name_of_set(file));
    names.push_back(printable(fs::path(file).filename().string()));
  }
  PT_CHECK(
      sets.size() <= 1, kUsage,
      "\"{}\" has the {} images of {} sets: {}; give one file of training images as {}, and one "
      "of validation images as {}",
      printable(folder), purpose, sets.size(), fmt::join(names, ", "), setting("data"),
      setting("val-data"));
  return files.empty() ? "" : files.front();  // the plain file sorts before its .gz
}

}  // namespace

RawData read_idx(const std::string& path) {
  RawData out{path, "MNIST IDX", {}, {}, {}};
  if (!fs::is_directory(path)) {
    out.train = read_pair(only_file(path, "idx"), out.notes);
    return out;
  }
  std::vector<std::string> files = list_files(path), training, validation;
  const auto has = [](const std::string& file, std::string_view part) {
    return fs::path(file).filename().string().find(part) != std::string::npos;
  };
  std::erase_if(files, [&](const std::string& file) { return !has(file, "images"); });
  const auto has_usual_name = [](const std::string& file) {
    const std::string name = bare_name(file);
    return name.ends_with("ubyte") || name.ends_with("idx3") || name.ends_with("idx");
  };
  if (std::ranges::any_of(files, has_usual_name))
    std::erase_if(files, [&](const std::string& file) { return !has_usual_name(file); });
  for (const std::string& file : files)
    (has(file, "t10k") || has(file, "test") ? validation : training).push_back(file);
  std::string train = only_images(path, training, "training");
  std::string test = only_images(path, validation, "validation");
  PT_CHECK(!train.empty() || !test.empty(), kData,
           "\"{}\" has no IDX images: looked for names like train-images-idx3-ubyte(.gz)",
           printable(path));
  if (train.empty()) std::swap(train, test);
  out.train = read_pair(train, out.notes);
  if (!test.empty()) out.validation = read_pair(test, out.notes);
  return out;
}

}  // namespace pipetrain
