#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "base/atomic_file.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/setting.h"
#include "train/checkpoint.h"
#include "train/manifest.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRecordFile = "replicas.safetensors";
constexpr std::size_t kLongestManifest = std::size_t{64} << 20;

std::string read_text(const fs::path& path) {
  return read_file(path, ErrorKind::kData, kLongestManifest);
}

std::map<int, NamedTensors> by_version(NamedTensors tensors, const fs::path& path) {
  std::map<int, NamedTensors> out;
  for (auto& [key, tensor] : tensors) {
    const std::size_t slash = key.find('/');
    int version = -1;
    const auto [end, error] =
        std::from_chars(key.data(), key.data() + std::min(slash, key.size()), version);
    PT_CHECK(slash != std::string::npos && error == std::errc() && end == key.data() + slash, kData,
             "{}: \"{}\" does not begin with a version", printable(path.string()), printable(key));
    out[version][key.substr(slash + 1)] = std::move(tensor);
  }
  return out;
}

/// A checkpoint's path from which its folder and its run's can be told: one that was given from
/// inside these ("step-000400", "../step-000400", ".") does not name them.
fs::path with_its_folders(const fs::path& given) {
  const fs::path path = given.has_filename() ? given : given.parent_path();
  const fs::path folder = path.parent_path();
  const auto names_none = [](const fs::path& part) {
    return part.empty() || part == "." || part == "..";
  };
  if (!names_none(path.filename()) && !names_none(folder.filename())) return path;
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error).lexically_normal();
  if (error) return path;
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

/// The checkpoint that "latest" or "best" names, which must still be the one that it was.
fs::path named_in(const fs::path& file) {
  const std::string line = read_text(file);
  const std::size_t blank = line.find(' ');
  const fs::path path = file.parent_path() / line.substr(0, blank);
  PT_CHECK(blank != std::string::npos && line.starts_with("step-") &&
               line.find('/') == std::string::npos &&
               line.substr(blank + 1) == sha256(read_text(path / "manifest.json")) + "\n",
           kData, "{} does not name a checkpoint", printable(file.string()));
  return path;
}

/// "weights.safetensors", or of one of several processes: "weights-3.safetensors".
bool is_file_of(std::string_view file, std::string_view kind) {
  constexpr std::string_view kEnd = ".safetensors";
  if (!file.starts_with(kind) || !file.ends_with(kEnd)) return false;
  file.remove_prefix(kind.size());
  file.remove_suffix(kEnd.size());
  return file.empty() || (file.size() > 1 && file[0] == '-' &&
                          file.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

/// The checkpoints of a run's folder, or a folder of checkpoints itself.
fs::path folder_at(const fs::path& given) {
  std::error_code error;
  const fs::path inside = given / "checkpoints";
  return fs::is_directory(inside, error) ? inside : given;
}

/// Reads what checkpoint_write.cpp has written of the updates.
void read_updates(const NamedTensors& tensors, const fs::path& path, ReplicaRecord& record) {
  const auto column = [&](const char* name, DType dtype, std::int64_t width) {
    const auto found = tensors.find(name);
    PT_CHECK(found != tensors.end() && found->second.dtype() == dtype &&
                 found->second.type().count() % width == 0,
             kData, "{} has no table of {}", printable(path.string()), name);
    return found->second;
  };
  HostTensor parts = column("parts", DType::kInt64, 2);
  const std::span<std::int64_t> numbers = parts.span<std::int64_t>();
  for (std::size_t i = 0; i < numbers.size(); i += 2)
    record.parts.push_back({numbers[i], numbers[i + 1]});
  HostTensor rates = column("rates", DType::kFloat64, 1);
  record.rates.assign(rates.span<double>().begin(), rates.span<double>().end());
}

}  // namespace

Checkpoint read_checkpoint(const fs::path& path) {
  const fs::path manifest = path / "manifest.json";
  std::vector<FileRecord> files;
  Checkpoint checkpoint = parse_manifest(read_text(manifest), manifest, files);
  for (const FileRecord& file : files) {
    NamedTensors tensors = read_safetensors(path / file.name, file);
    if (is_file_of(file.name, "weights")) {
      checkpoint.weights.merge(tensors);
    } else if (is_file_of(file.name, "optimizer")) {
      checkpoint.optimizer.merge(tensors);
    } else if (file.name == "best.safetensors") {
      checkpoint.best_weights = std::move(tensors);
    } else if (file.name == "stashed.safetensors") {
      checkpoint.stashed = by_version(std::move(tensors), path / file.name);
    } else if (file.name == kRecordFile && checkpoint.replicas) {
      read_updates(tensors, path / file.name, *checkpoint.replicas);
    } else {
      PT_FAIL(kData, "{} contains an unknown file, maybe of another version of pipetrain: {}",
              printable(path.string()), printable(file.name));
    }
  }
  return checkpoint;
}

std::optional<Checkpoint> newest_record(const fs::path& given) {
  std::error_code error;
  const bool is_one = fs::exists(given / "manifest.json", error);
  for (const fs::path& path :
       is_one ? std::vector{given} : list_own_checkpoints(folder_at(given))) {
    try {
      const fs::path manifest = path / "manifest.json";
      std::vector<FileRecord> files;
      Checkpoint checkpoint = parse_manifest(read_text(manifest), manifest, files);
      for (const FileRecord& file : files) {
        if (file.name != kRecordFile || !checkpoint.replicas) continue;
        read_updates(read_safetensors(path / file.name, file), path / file.name,
                     *checkpoint.replicas);
      }
      return checkpoint;
    } catch (const Error&) {
      continue;
    }
  }
  return {};
}

std::optional<FoundCheckpoint> newest_checkpoint(const fs::path& folder) {
  FoundCheckpoint found;
  for (const fs::path& path : list_own_checkpoints(folder)) {
    try {
      found.checkpoint = read_checkpoint(path);
      found.path = path;
      return found;
    } catch (const Error& error) {
      found.refused.push_back(error.message());
    }
  }
  PT_CHECK(found.refused.empty(), kData,
           "no checkpoint of the run in {} can be read; the newest: {}", printable(folder.string()),
           found.refused.front());
  return {};
}

FoundCheckpoint find_checkpoint(const fs::path& given) {
  std::error_code error;
  if (fs::is_regular_file(given, error)) {
    const fs::path path = named_in(given);
    return {with_its_folders(path), read_checkpoint(path), {}};
  }
  PT_CHECK(fs::is_directory(given, error), kUsage, "there is no checkpoint at \"{}\"",
           printable(given.string()));
  if (fs::exists(given / "manifest.json", error))
    return {with_its_folders(given), read_checkpoint(given), {}};
  std::optional<FoundCheckpoint> found = newest_checkpoint(folder_at(given));
  PT_CHECK(found, kUsage,
           "there is no complete checkpoint in \"{}\"; to start a new run in that case: {}=auto",
           printable(given.string()), setting("resume"));
  found->path = with_its_folders(found->path);
  return *std::move(found);
}

}  // namespace pipetrain
