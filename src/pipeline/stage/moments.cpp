#include "pipeline/stage/moments.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "pipeline/transport/sum_tree.h"

namespace pipetrain {

void Moments::reset(std::size_t channels, bool of_weights) {
  count_ = 0;
  of_weights_ = of_weights;
  mean_.assign(channels, 0);
  squares_.assign(channels, 0);
}

void Moments::merge(std::span<const float> mean, std::span<const float> variance, double count) {
  if (of_weights_ && count_ > 0) return;
  const double total = count_ + count;
  for (std::size_t c = 0; c < mean.size(); ++c) {
    const double delta = mean[c] - mean_[c];
    squares_[c] += variance[c] * count + delta * delta * count_ * count / total;
    mean_[c] += delta * count / total;
  }
  count_ = total;
}

void Moments::merge(const Moments& other) {
  if (other.count_ == 0 || (of_weights_ && count_ > 0)) return;
  const double total = count_ + other.count_;
  for (std::size_t c = 0; c < mean_.size(); ++c) {
    const double delta = other.mean_[c] - mean_[c];
    squares_[c] += other.squares_[c] + delta * delta * count_ * other.count_ / total;
    mean_[c] += delta * other.count_ / total;
  }
  count_ = total;
}

void Moments::apply(double momentum, std::span<float> running_mean,
                    std::span<float> running_variance) {
  if (count_ == 0) return;
  for (std::size_t c = 0; c < running_mean.size(); ++c) {
    const double variance = squares_[c] / std::max(1.0, count_ - 1);
    running_mean[c] = static_cast<float>(momentum * running_mean[c] + (1 - momentum) * mean_[c]);
    running_variance[c] =
        static_cast<float>(momentum * running_variance[c] + (1 - momentum) * variance);
  }
  count_ = 0;
  std::fill(mean_.begin(), mean_.end(), 0.0);
  std::fill(squares_.begin(), squares_.end(), 0.0);
}

std::vector<double> Moments::numbers() const {
  std::vector<double> out = {count_};
  out.insert(out.end(), mean_.begin(), mean_.end());
  out.insert(out.end(), squares_.begin(), squares_.end());
  return out;
}

void Moments::join(std::span<Moments* const> parts) {
  std::vector<bool> present;
  for (std::size_t p = 0; p < std::bit_ceil(parts.size()); ++p)
    present.push_back(p < parts.size() && parts[p]->count_ > 0);
  join_as_tree(std::move(present), [&](std::size_t to, std::size_t from) {
    parts[to]->merge(*parts[from]);
    parts[from]->reset(parts[from]->mean_.size(), parts[from]->of_weights_);
  });
}

Moments Moments::of(std::span<const double> numbers, bool of_weights) {
  Moments out;
  out.of_weights_ = of_weights;
  const std::size_t channels = numbers.size() / 2;
  out.count_ = numbers.front();
  out.mean_.assign(numbers.begin() + 1,
                   numbers.begin() + 1 + static_cast<std::ptrdiff_t>(channels));
  out.squares_.assign(numbers.end() - static_cast<std::ptrdiff_t>(channels), numbers.end());
  return out;
}

}  // namespace pipetrain
