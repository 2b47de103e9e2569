// CIFAR-10 and CIFAR-100, binary version: rows of 1 label byte (CIFAR-100: coarse, then fine) and
// 3072 bytes, the planes red, green, blue of 32 × 32.
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPixels = 3 * 32 * 32;

std::size_t label_bytes(CifarKind kind) { return kind == CifarKind::kCifar10 ? 1 : 2; }

RawSplit read_files(const std::string& path, const std::vector<std::string>& files,
                    CifarKind kind) {
  const std::size_t labels = label_bytes(kind), row = labels + kPixels;
  std::vector<FileBytes> contents;
  std::size_t rows = 0;
  for (const std::string& file : files) {
    contents.push_back(FileBytes::open_inflated(file));
    const std::size_t size = contents.back().size();
    PT_CHECK(size > 0 && size % row == 0, kData,
             "\"{}\" is not a whole CIFAR-{} file: {} bytes are not rows of {}", printable(file),
             kind == CifarKind::kCifar10 ? 10 : 100, size, row);
    rows += size / row;
  }
  const auto count = static_cast<std::int64_t>(rows);
  HostTensor x(TensorType{DType::kUint8, Shape{count, 3, 32, 32}, Layout::kRowMajor});
  HostTensor y(TensorType{DType::kUint8, Shape{count}, Layout::kRowMajor});
  auto* pixels = x.view().as<std::byte>();
  auto* classes = y.view().as<std::byte>();
  for (const FileBytes& content : contents) {
    for (std::size_t at = 0; at < content.size(); at += row) {
      *classes++ = content.bytes()[at + labels - 1];
      std::memcpy(pixels, content.bytes().data() + at + labels, kPixels);
      pixels += kPixels;
    }
  }
  const std::string& name = files.size() == 1 ? files[0] : path;
  RawSplit out;
  out.columns.push_back({"x", std::move(x), name, ColumnRole::kInput, {}, {}, {}});
  out.columns.push_back({"y", std::move(y), name, ColumnRole::kLabel, {}, {}, {}});
  return out;
}

bool divides(const fs::path& path, std::size_t row) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return !error && size > 0 && size % row == 0;
}

}  // namespace

std::optional<CifarKind> recognise_cifar(const std::string& path) {
  const fs::path place(path);
  if (fs::is_directory(place)) {
    for (const char* name : {"data_batch_1.bin", "test_batch.bin"}) {
      if (divides(place / name, 1 + kPixels)) return CifarKind::kCifar10;
    }
    // nanoGPT also calls its files train.bin; CIFAR-100's come with a list of names.
    if (fs::exists(place / "fine_label_names.txt") && divides(place / "train.bin", 2 + kPixels)) {
      return CifarKind::kCifar100;
    }
    return std::nullopt;
  }
  const std::string name = place.filename().string();
  if ((name.starts_with("data_batch") || name.starts_with("test_batch")) &&
      divides(place, 1 + kPixels)) {
    return CifarKind::kCifar10;
  }
  if ((name == "train.bin" || name == "test.bin") && divides(place, 2 + kPixels) &&
      fs::exists(place.parent_path() / "fine_label_names.txt")) {
    return CifarKind::kCifar100;
  }
  return std::nullopt;
}

RawData read_cifar(const std::string& path, CifarKind kind) {
  RawData out{
      path, kind == CifarKind::kCifar10 ? "CIFAR-10 binary" : "CIFAR-100 binary", {}, {}, {}};
  if (kind == CifarKind::kCifar100) out.notes.push_back("labels are the 100 fine classes");
  const bool is_folder = fs::is_directory(path);
  std::vector<std::string> train, test;
  for (const std::string& file : list_files(path)) {
    const std::string name = fs::path(file).filename().string();
    if (is_folder && !name.ends_with(".bin")) continue;
    if (name.starts_with("test")) {
      test.push_back(file);
    } else if (!is_folder || name.starts_with("data_batch") || name.starts_with("train")) {
      train.push_back(file);
    }
  }
  PT_CHECK(!train.empty() || !test.empty(), kData,
           "\"{}\" has no CIFAR files: looked for data_batch_1.bin … or train.bin, test_batch.bin "
           "or test.bin",
           printable(path));
  if (train.empty()) std::swap(train, test);
  out.train = read_files(path, train, kind);
  if (!test.empty()) out.validation = read_files(path, test, kind);
  return out;
}

}  // namespace pipetrain
