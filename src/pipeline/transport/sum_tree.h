// One tree of sums for any number of replicas. Micro-batch u belongs to leaf u mod V of a binary
// tree whose shape does not depend on who has the leaves:
//
//   V = 8        ((0+4) + (2+6)) + ((1+5) + (3+7))
//   2 replicas   \__ leaves 0 2 4 6 __/   \__ leaves 1 3 5 7 __/
//
// V is a power of two, and so is every number of replicas that divides it: the leaves of a replica
// are a whole subtree, and the sums of the replicas are its upper part.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace pipetrain {

/// Joins numbers of leaves, or of replicas: calls join(to, from) for `from` to be added to `to`,
/// and leaves the sum in the first. `present`: those that have something; at least the first of any
/// two that are joined has, if one has.
template <class Join>
void join_as_tree(std::vector<bool> present, const Join& join) {
  for (std::size_t half = present.size() / 2; half > 0; half /= 2) {
    for (std::size_t k = 0; k < half; ++k) {
      if (present[k + half]) join(k, k + half);
    }
  }
}

/// Whether the replicas of each process are a subtree, and those of the processes alike.
/// `process_of`: by replica.
bool are_subtrees(const std::vector<int>& process_of);

/// Sums parts of `count` floats, one after another; at least one. `out` may be one of the parts.
void sum_in_order(std::span<const float* const> parts, std::size_t count, float* out);

/// Sums parts of `count` floats as a tree; null: a part without any. Some part is not null. `out`
/// may be one of the parts.
void sum_as_tree(std::span<const float* const> parts, std::size_t count, float* out);

}  // namespace pipetrain
