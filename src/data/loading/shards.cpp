#include "data/loading/shards.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/setting.h"
#include "data/rows/readers.h"

namespace pipetrain {

std::vector<std::vector<std::string>> divide_files(const std::string& pattern, int replicas) {
  PT_CHECK(is_glob(pattern), kUsage,
           "{} files needs a pattern of data files, such as {} 'shards/part-*.npz', not {}",
           setting("data-sharding"), setting("data"), printable(pattern));
  const std::vector<std::string> files = list_files(pattern);
  const auto other = std::ranges::find_if(files, names_other_part);
  PT_CHECK(other == files.end() || std::ranges::all_of(files, names_other_part), kUsage,
           "{} files: {} would be trained on; give a pattern of the training files alone, and the "
           "others with {}",
           setting("data-sharding"), printable(*other), setting("val-data"));
  PT_CHECK(files.size() >= static_cast<std::size_t>(replicas), kUsage,
           "{} files: {} file{} match{} {}, too few for {} replicas; divide the data into more "
           "files, or use fewer replicas",
           setting("data-sharding"), files.size(), files.size() == 1 ? "" : "s",
           files.size() == 1 ? "es" : "", printable(pattern), replicas);
  std::vector<std::vector<std::string>> out(static_cast<std::size_t>(replicas));
  for (std::size_t f = 0; f < files.size(); ++f) out[f % out.size()].push_back(files[f]);
  return out;
}

ShardedDataset::ShardedDataset(std::vector<Shard> shards) : shards_(std::move(shards)), first_{0} {
  for (const Shard& shard : shards_) {
    first_.push_back(first_.back() + shard.samples);
    if (shard.is_here() && columns_.empty()) columns_ = shard.files.front()->columns();
  }
}

ShardedDataset::File ShardedDataset::file_of(std::size_t sample) const {
  const auto next = std::upper_bound(first_.begin(), first_.end(), sample);
  const auto s = static_cast<std::size_t>(next - first_.begin()) - 1;
  std::size_t first = first_[s];
  for (const auto& file : shards_[s].files) {
    if (sample < first + file->size()) return {file.get(), first};
    first += file->size();
  }
  return {};
}

std::size_t ShardedDataset::place_of(std::size_t sample) const {
  const File file = file_of(sample);
  return file.data ? file.first + file.data->place_of(sample - file.first) : sample;
}

/// Neighbours that lie in one file are read together.
template <class Gather>
void ShardedDataset::gather_by_file(std::span<const std::size_t> indices, Tensor out,
                                    const Gather& gather) const {
  if (indices.empty()) return;
  const std::size_t sample_bytes = out.bytes() / indices.size();
  std::vector<std::size_t> in_file;
  for (std::size_t i = 0; i < indices.size();) {
    const File file = file_of(indices[i]);
    std::size_t end = i;
    in_file.clear();
    for (; end < indices.size(); ++end) {
      const File other = file_of(indices[end]);
      if (other.data != file.data) break;
      in_file.push_back(indices[end] - other.first);
    }
    Tensor part = out;
    part.data = static_cast<std::byte*>(out.data) + i * sample_bytes;
    std::vector<std::int64_t> dims = out.type.shape.dims();
    dims[0] = static_cast<std::int64_t>(end - i);
    part.type.shape = Shape(std::move(dims));
    if (file.data) {
      gather(*file.data, in_file, part);
    } else {
      std::memset(part.data, 0, part.bytes());
    }
    i = end;
  }
}

void ShardedDataset::gather(std::span<const std::size_t> indices, std::size_t column,
                            Tensor out) const {
  gather_by_file(indices, out, [&](const Dataset& data, const auto& in_file, Tensor part) {
    data.gather(in_file, column, part);
  });
}

void ShardedDataset::gather_augmented(std::uint64_t step, std::span<const std::size_t> indices,
                                      std::size_t column, Tensor out) const {
  gather_by_file(indices, out, [&](const Dataset& data, const auto& in_file, Tensor part) {
    data.gather_augmented(step, in_file, column, part);
  });
}

}  // namespace pipetrain
