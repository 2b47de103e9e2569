// Which samples make up which batch: a pure function of (seed, epoch, batch), so that a resumed run
// needs only its step number, and the number of stages or threads cannot change the order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipetrain {

struct SamplerOptions {
  std::size_t batch_size = 64;
  std::uint64_t seed = 1;
  bool shuffle = true;
  bool drop_last = false;  // otherwise the last batch of an epoch may be short
  /// By sample, not all 0: an epoch draws as many samples as there are, each as often as its weight
  /// says, with replacement. Empty: every sample once.
  std::vector<double> weights = {};
  /// Samples of each replica's files, which follow one another in the data; empty: all replicas
  /// have the same data. Micro-batches of `micro_batch` samples take turns among the replicas, and
  /// an epoch ends with the smallest shard. Needs drop_last.
  std::vector<std::size_t> shards = {};
  std::size_t micro_batch = 0;
};

class Sampler {
 public:
  /// Error kData if an epoch would have no batch; kUsage for batch size 0.
  Sampler(std::size_t samples, SamplerOptions options);

  std::size_t batches_per_epoch() const { return batches_per_epoch_; }
  std::uint64_t epoch_of(std::uint64_t step) const { return step / batches_per_epoch_; }
  /// Samples in the batch of a step (counted from 0 over all epochs).
  std::size_t batch_samples(std::uint64_t step) const;
  /// Indices of the samples in the batch of a step.
  std::vector<std::size_t> batch_indices(std::uint64_t step) const;
  const SamplerOptions& options() const { return options_; }

 private:
  std::size_t samples_;
  std::size_t sharded_index(std::uint64_t epoch, std::size_t batch, std::size_t i) const;
  std::size_t drawn_index(std::uint64_t epoch, std::uint64_t position) const;

  SamplerOptions options_;
  std::vector<double> ends_;  // of the samples' parts of [0, sum of the weights)
  std::size_t batches_per_epoch_;
};

}  // namespace pipetrain
