#include "onnx_io/data_files.h"

#include <algorithm>

#include "base/error.h"
#include "onnx_io/file_map.h"
#include "onnx_io/model_file.h"
#include "onnx_io/wire_scan.h"

namespace pipetrain {
namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::size_t kPiece = std::size_t{1} << 20;

bool is_plain_name(const std::string& location) {
  return !location.empty() && location[0] != '.' && location.size() <= 200 &&
         std::ranges::all_of(location, [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return byte >= 0x20 && byte != 0x7f && c != '/' && c != '\\';
         });
}

/// The data files that the model now at `path` refers to; none if there is no such model.
std::set<std::string> locations_used_by(const std::filesystem::path& path) {
  std::set<std::string> out;
  if (!std::filesystem::is_regular_file(path)) return out;
  try {
    const Buffer buffer = read_model_file(path);
    const std::span<const std::byte> bytes(buffer.data(), buffer.bytes());
    scan_wire(bytes, path.string());
    for (const auto& [name, tensor] : FileMap(bytes).initializers) {
      const LocatedEntry* location = tensor.find_entry("location");
      if (tensor.external && location) out.insert(location->value);
    }
  } catch (const Error&) {
    // Not a model of ours to replace: then nothing belongs to it.
  }
  return out;
}

}  // namespace

void DataFile::replace(std::uint64_t offset, TensorMaker make) {
  overlays_.insert_or_assign(offset, std::move(make));
}

std::uint64_t DataFile::append(std::size_t bytes, TensorMaker make) {
  const std::uint64_t from = std::max(end_, source_.bytes());
  const std::uint64_t offset = (from + kAlignment - 1) / kAlignment * kAlignment;
  end_ = offset + bytes;
  appended_.emplace_back(offset, std::move(make));
  return offset;
}

void DataFile::write(AtomicFile& out) const {
  out.reserve(std::max(end_, source_.bytes()));
  std::vector<std::byte> piece(kPiece);
  const auto copy_until = [&](std::uint64_t end) {
    while (out.written() < end) {
      const std::span<std::byte> part(piece.data(),
                                      std::min<std::uint64_t>(kPiece, end - out.written()));
      source_.read(out.written(), part);
      out.write(part);
    }
  };
  for (const auto& [offset, make] : overlays_) {
    copy_until(offset);
    out.write(bytes_of(make()));
  }
  copy_until(source_.bytes());
  for (const auto& [offset, make] : appended_) {
    out.write(std::string(offset - out.written(), '\0'));
    out.write(bytes_of(make()));
  }
}

void choose_names(std::map<std::string, DataFile>& files, const std::filesystem::path& output,
                  const std::filesystem::path& source, bool overwrite_input) {
  namespace fs = std::filesystem;
  if (files.empty()) return;
  const fs::path source_directory = source.has_parent_path() ? source.parent_path() : fs::path(".");
  const std::string source_name = source.filename().string();
  const fs::path directory = output.has_parent_path() ? output.parent_path() : fs::path(".");
  std::error_code ignored;
  const bool same_directory = fs::equivalent(directory, source_directory, ignored);
  const std::string output_name = output.filename().string();
  const std::set<std::string> replaced = locations_used_by(output);
  const bool in_place = overwrite_input && fs::equivalent(output, source, ignored);
  std::set<std::string> taken = {output_name};
  // True if the name, beside the output, is one of the files that are read.
  const auto is_input = [&](const std::string& name) {
    return std::ranges::any_of(files, [&](const auto& entry) {
      return fs::equivalent(directory / name, source_directory / entry.first, ignored);
    });
  };
  const auto may_keep = [&](const std::string& location) {
    if (!is_plain_name(location) || taken.contains(location)) return false;
    if (!fs::exists(fs::symlink_status(directory / location, ignored))) return true;
    return replaced.contains(location) && (in_place || !is_input(location));
  };
  const auto is_of_another = [&](const std::string& name) {
    return !replaced.contains(name) && fs::exists(fs::symlink_status(directory / name, ignored));
  };
  std::size_t number = 0;
  for (auto& [location, file] : files) {
    if (same_directory && !file.changed()) continue;
    std::string name = location;
    const bool named_after_source =
        file.changed() && source_name != output_name && location.starts_with(source_name + ".");
    if (named_after_source || !may_keep(location)) {
      do {
        name = number == 0 ? output_name + ".data" : fmt::format("{}.{}.data", output_name, number);
        ++number;
      } while (taken.contains(name) || is_input(name) || is_of_another(name));
    }
    taken.insert(name);
    file.new_name = name;
  }
}

}  // namespace pipetrain
