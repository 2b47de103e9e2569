#include "data/sampler.h"

#include <algorithm>

#include "base/error.h"
#include "base/random.h"

namespace pipetrain {

Sampler::Sampler(std::size_t samples, SamplerOptions options)
    : samples_(samples), options_(options) {
  const std::size_t batch = options_.batch_size;
  PT_CHECK(batch > 0, kUsage, "--batch-size must be at least 1");
  PT_CHECK(samples_ > 0, kData, "the data set has no samples");
  PT_CHECK(samples_ >= batch || !options_.drop_last, kData,
           "the data set has {} samples, less than one batch of {}: --batch-size {} or less, or "
           "--drop-last=false",
           samples_, batch, samples_);
  batches_per_epoch_ = options_.drop_last ? samples_ / batch : (samples_ - 1) / batch + 1;
}

std::size_t Sampler::batch_samples(std::uint64_t step) const {
  const std::size_t begin = step % batches_per_epoch_ * options_.batch_size;
  return std::min(options_.batch_size, samples_ - begin);
}

std::vector<std::size_t> Sampler::batch_indices(std::uint64_t step) const {
  const std::size_t begin = step % batches_per_epoch_ * options_.batch_size;
  std::vector<std::size_t> out(batch_samples(step));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = options_.shuffle ? shuffled_index(options_.seed, epoch_of(step), samples_, begin + i)
                              : begin + i;
  }
  return out;
}

}  // namespace pipetrain
