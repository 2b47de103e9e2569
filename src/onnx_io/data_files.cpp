#include "onnx_io/data_files.h"

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "onnx_io/file_map.h"
#include "onnx_io/model_file.h"
#include "onnx_io/wire_scan.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

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
std::set<std::string> locations_used_by(const fs::path& path) {
  std::set<std::string> out;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return out;
  try {
    const Buffer buffer = read_model_file(path);
    const std::span<const std::byte> bytes(buffer.data(), buffer.bytes());
    scan_wire(bytes, path.string());
    const FileMap map(bytes);
    const auto add = [&](const LocatedTensor& tensor) {
      const LocatedEntry* location = tensor.find_entry("location");
      if (tensor.external && location) out.insert(location->value);
    };
    const auto add_nodes = [&](const std::vector<LocatedNode>& nodes) {
      for (const LocatedNode& node : nodes) std::ranges::for_each(node.tensors, add);
    };
    for (const auto& [name, tensor] : map.initializers) add(tensor);
    add_nodes(map.nodes);
    for (const auto& [label, nodes] : map.functions) add_nodes(nodes);
  } catch (const std::exception&) {
    // Not a model of ours, or larger than the memory: then nothing belongs to it.
  }
  return out;
}

}  // namespace

bool is_used_by_others(const std::string& location, const fs::path& model) {
  const fs::path folder = model.has_parent_path() ? model.parent_path() : fs::path(".");
  std::error_code error, unknown;
  const fs::path itself = fs::canonical(folder, unknown) / model.filename();
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    const fs::path& other = i->path();
    if (other.extension() != ".onnx" || other.filename() == model.filename()) continue;
    // A hard link is another model once one of the two has been replaced; a symbolic one is not.
    if (fs::is_symlink(other, unknown) && fs::canonical(other, unknown) == itself) continue;
    if (locations_used_by(other).contains(location)) return true;
  }
  return false;
}

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

void choose_names(std::map<std::string, DataFile>& files, const fs::path& output,
                  const fs::path& source, bool overwrite_input) {
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
  // "best.onnx.data" goes with a model "best.onnx": who writes or deletes that would take it.
  const auto is_named_after_another = [&](const std::string& location) {
    return !in_place && location.ends_with(".onnx.data") && location != output_name + ".data";
  };
  const auto may_keep = [&](const std::string& location) {
    if (!is_plain_name(location) || taken.contains(location) || is_named_after_another(location))
      return false;
    if (!fs::exists(fs::symlink_status(directory / location, ignored))) return true;
    return replaced.contains(location) && (in_place || !is_input(location)) &&
           !is_used_by_others(location, output);
  };
  const auto is_of_another = [&](const std::string& name) {
    return fs::exists(fs::symlink_status(directory / name, ignored)) &&
           (!replaced.contains(name) || is_used_by_others(name, output));
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
