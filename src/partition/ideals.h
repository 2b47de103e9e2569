// The ideals (down-sets) of a network: every set of operators that can be the first part of a
// pipeline. Planning over ideals instead of the positions of one order is exact for the network.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "partition/cost_graph.h"
#include "partition/stage_cost.h"

namespace pipetrain {

/// Ideals in ascending size; position 0 is the empty one, count() the whole network. Has what
/// DeviceSearch asks of its ranges. Cf. Tarnawski et al., "Efficient algorithms for device
/// placement of DNN graph operators" (2020).
class IdealRanges {
 public:
  /// Nothing when there are more than `most` ideals.
  static std::optional<IdealRanges> of(const CostGraph& graph, std::size_t most);

  int count() const { return static_cast<int>(sums_.size()) - 1; }
  /// One ideal contains the other.
  bool related(int first, int last) const {
    const std::uint64_t* a = words(first);
    const std::uint64_t* b = words(last);
    for (std::size_t i = 0; i < width_; ++i) {
      if ((a[i] & ~b[i]) != 0) return false;
    }
    return true;
  }
  /// Of the nodes in `last` and not in `first`, which must be related.
  RangeCost range(int first, int last) const;
  std::size_t forward_bytes(int cut) const { return forward_bytes_[static_cast<std::size_t>(cut)]; }
  std::size_t backward_bytes(int cut) const {
    return backward_bytes_[static_cast<std::size_t>(cut)];
  }
  std::size_t cut_bytes(int cut) const { return forward_bytes(cut) + backward_bytes(cut); }
  std::size_t input_bytes(int first) const { return forward_bytes(first); }
  /// An order of all nodes that takes those of each given ideal before the others; ascending
  /// positions.
  std::vector<int> order_through(const std::vector<int>& positions) const;

 private:
  const std::uint64_t* words(int position) const {
    return bits_.data() + static_cast<std::size_t>(position) * width_;
  }
  bool contains(int position, int node) const {
    return (words(position)[static_cast<std::size_t>(node) / 64] >>
                (static_cast<std::size_t>(node) % 64) &
            1) != 0;
  }
  void add_costs(const CostGraph& graph);

  std::size_t width_ = 0;  // 64-bit words of an ideal
  std::vector<std::uint64_t> bits_;
  std::vector<RangeCost> sums_;
  std::vector<std::size_t> forward_bytes_, backward_bytes_;
  std::vector<std::size_t> transient_;  // [node]; empty: none
  std::vector<int> order_;              // some order of the nodes
};

}  // namespace pipetrain
