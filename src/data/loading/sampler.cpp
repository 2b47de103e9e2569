#include "data/loading/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "base/setting.h"

namespace pipetrain {

Sampler::Sampler(std::size_t samples, SamplerOptions options)
    : samples_(samples), options_(std::move(options)) {
  const std::size_t batch = options_.batch_size;
  PT_CHECK(batch > 0, kUsage, "{} must be at least 1", setting("batch-size"));
  if (!options_.shards.empty())
    samples_ = options_.shards.size() * *std::ranges::min_element(options_.shards);
  PT_CHECK(samples_ > 0, kData, "the data set has no samples");
  PT_CHECK(samples_ >= batch || !options_.drop_last, kData,
           "the data set has {} samples, fewer than one batch of {}: {} {} or less, or "
           "{}=false",
           samples_, batch, setting("batch-size"), samples_, setting("drop-last"));
  PT_CHECK(options_.weights.empty() || options_.weights.size() == samples_, kInternal,
           "{} weights for {} samples", options_.weights.size(), samples_);
  double sum = 0;
  for (const double weight : options_.weights) ends_.push_back(sum += weight);
  batches_per_epoch_ = options_.drop_last ? samples_ / batch : (samples_ - 1) / batch + 1;
}

std::size_t Sampler::batch_samples(std::uint64_t step) const {
  const std::size_t begin = step % batches_per_epoch_ * options_.batch_size;
  return std::min(options_.batch_size, samples_ - begin);
}

std::size_t Sampler::drawn_index(std::uint64_t epoch, std::uint64_t position) const {
  constexpr std::uint32_t kStream = 0x64726177;
  const PhiloxBlock bits =
      philox(philox_key(options_.seed),
             {{static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32),
               static_cast<std::uint32_t>(epoch), kStream}});
  const std::uint64_t number = std::uint64_t{bits.word[0]} << 21 | bits.word[1] >> 11;
  const double point = static_cast<double>(number) * 0x1p-53 * ends_.back();
  // The first part that ends after the point; parts of weight 0 are empty. Rounding may have moved
  // the point to the end of the last one.
  const auto last = std::lower_bound(ends_.begin(), ends_.end(), ends_.back());
  return static_cast<std::size_t>(
      std::min(std::upper_bound(ends_.begin(), ends_.end(), point), last) - ends_.begin());
}

/// Of the i-th sample of a batch of the epoch: micro-batch u is the shard's u / replicas-th.
std::size_t Sampler::sharded_index(std::uint64_t epoch, std::size_t batch, std::size_t i) const {
  const std::size_t replicas = options_.shards.size();
  const std::size_t unit = i / options_.micro_batch, shard = unit % replicas;
  const std::size_t position = batch * (options_.batch_size / replicas) +
                               unit / replicas * options_.micro_batch + i % options_.micro_batch;
  const std::size_t before =
      std::accumulate(options_.shards.begin(),
                      options_.shards.begin() + static_cast<std::ptrdiff_t>(shard), std::size_t{0});
  if (!options_.shuffle) return before + position;
  return before + shuffled_index(options_.seed + shard, epoch, options_.shards[shard], position);
}

std::vector<std::size_t> Sampler::batch_indices(std::uint64_t step) const {
  const std::size_t begin = step % batches_per_epoch_ * options_.batch_size;
  std::vector<std::size_t> out(batch_samples(step));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!options_.shards.empty()) {
      out[i] = sharded_index(epoch_of(step), begin / options_.batch_size, i);
      continue;
    }
    if (!ends_.empty()) {
      out[i] = drawn_index(epoch_of(step), begin + i);
      continue;
    }
    out[i] = options_.shuffle ? shuffled_index(options_.seed, epoch_of(step), samples_, begin + i)
                              : begin + i;
  }
  return out;
}

}  // namespace pipetrain
