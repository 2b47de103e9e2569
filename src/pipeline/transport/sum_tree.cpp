#include "pipeline/transport/sum_tree.h"

#include <algorithm>
#include <array>
#include <bit>
#include <set>

namespace pipetrain {

constexpr std::size_t kBlock = 1024;

bool are_subtrees(const std::vector<int>& process_of) {
  const std::set<int> processes(process_of.begin(), process_of.end());
  const std::size_t count = processes.size();
  if (!std::has_single_bit(count) || !std::has_single_bit(process_of.size())) return false;
  const std::set<int> first(process_of.begin(),
                            process_of.begin() + static_cast<std::ptrdiff_t>(count));
  for (std::size_t r = 0; r < process_of.size(); ++r) {
    if (process_of[r] != process_of[r % count]) return false;
  }
  return first == processes;
}

void sum_in_order(std::span<const float* const> parts, std::size_t count, float* out) {
  std::array<float, kBlock> sums;
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t floats = std::min(kBlock, count - first);
    std::copy_n(parts[0] + first, floats, sums.begin());
    for (const float* part : parts.subspan(1)) {
      for (std::size_t i = 0; i < floats; ++i) sums[i] += part[first + i];
    }
    std::copy_n(sums.begin(), floats, out + first);
  }
}

void sum_as_tree(std::span<const float* const> parts, std::size_t count, float* out) {
  std::vector<float> sums(parts.size() * kBlock);
  std::vector<bool> present;
  for (const float* part : parts) present.push_back(part != nullptr);
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t floats = std::min(kBlock, count - first);
    for (std::size_t p = 0; p < parts.size(); ++p) {
      if (parts[p]) std::copy_n(parts[p] + first, floats, sums.begin() + p * kBlock);
    }
    join_as_tree(present, [&](std::size_t to, std::size_t from) {
      float* sum = sums.data() + to * kBlock;
      const float* more = sums.data() + from * kBlock;
      for (std::size_t i = 0; i < floats; ++i) sum[i] += more[i];
    });
    std::copy_n(sums.begin(), floats, out + first);
  }
}

}  // namespace pipetrain
