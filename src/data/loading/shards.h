// Data files divided among the replicas of a stage: each trains on its own files, and a process
// opens those of its replicas alone (TensorFlow's between-graph replication).
//
//   part-0 part-1 part-2 part-3 part-4   2 replicas: part-0, 2, 4 and part-1, 3
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/rows/dataset.h"

namespace pipetrain {

/// The files of each replica, every n-th in the order of their names. `pattern`: of file names.
/// Errors: kUsage for fewer files than replicas, for files of another part of the data among them
/// and for what is no pattern, kData.
std::vector<std::vector<std::string>> divide_files(const std::string& pattern, int replicas);

/// The samples of one replica; without files: those of another process, of which only their number
/// is known.
struct Shard {
  std::vector<std::shared_ptr<const Dataset>> files;
  std::size_t samples = 0;

  bool is_here() const { return !files.empty(); }
};

/// All shards, one after the other. Samples of other processes are zeros.
class ShardedDataset final : public Dataset {
 public:
  /// At least one shard is here.
  explicit ShardedDataset(std::vector<Shard> shards);
  std::size_t size() const override { return first_.back(); }
  std::span<const Column> columns() const override { return columns_; }
  std::size_t place_of(std::size_t sample) const override;
  void gather(std::span<const std::size_t> indices, std::size_t column, Tensor out) const override;
  void gather_augmented(std::uint64_t step, std::span<const std::size_t> indices,
                        std::size_t column, Tensor out) const override;

 private:
  /// A file's data set, and the number of its first sample.
  struct File {
    const Dataset* data = nullptr;
    std::size_t first = 0;
  };
  /// Which file has a sample; null: another process has it.
  File file_of(std::size_t sample) const;
  template <class Gather>
  void gather_by_file(std::span<const std::size_t> indices, Tensor out, const Gather& gather) const;

  std::vector<Shard> shards_;
  std::vector<std::size_t> first_;  // [shards + 1]: number of the first sample
  std::span<const Column> columns_;
};

}  // namespace pipetrain
