// The search space of PipeDream's optimizer: the antichains of a profile's graph, each of which
// stands for a cut. A chain of n layers has n of them, a network of many branches more than any
// memory holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "partition/pipedream_profile.h"

namespace pipetrain {

/// Rows of bits.
class BitTable {
 public:
  BitTable(std::size_t rows, std::size_t columns)
      : words_((columns + 63) / 64), bits_(rows * words_, 0) {}

  bool get(int row, int column) const { return (word(row, column) >> (column % 64) & 1) != 0; }
  void set(int row, int column) { bits_[offset(row, column)] |= std::uint64_t{1} << (column % 64); }
  void clear(int row, int column) {
    bits_[offset(row, column)] &= ~(std::uint64_t{1} << (column % 64));
  }
  /// Whether `row` and row `from` of `other` have a bit in common.
  bool meets(int row, const BitTable& other, int from) const {
    const std::uint64_t* a = bits_.data() + static_cast<std::size_t>(row) * words_;
    const std::uint64_t* b = other.bits_.data() + static_cast<std::size_t>(from) * words_;
    for (std::size_t w = 0; w < words_; ++w) {
      if ((a[w] & b[w]) != 0) return true;
    }
    return false;
  }
  /// Sets in `row` every bit that `other` has in `from`.
  void add(int row, const BitTable& other, int from) {
    for (std::size_t w = 0; w < words_; ++w) {
      bits_[static_cast<std::size_t>(row) * words_ + w] |=
          other.bits_[static_cast<std::size_t>(from) * words_ + w];
    }
  }

 private:
  std::size_t offset(int row, int column) const {
    return static_cast<std::size_t>(row) * words_ + static_cast<std::size_t>(column) / 64;
  }
  std::uint64_t word(int row, int column) const { return bits_[offset(row, column)]; }

  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

/// A cut: all nodes that lead to one of `outputs`, and these, are before it.
struct PipeDreamState {
  /// The antichain and PipeDream's augmentation of it, nodes of the profile: whose outputs it
  /// believes to cross the cut. Inside a block of several branches this counts the fork as well,
  /// even if nobody after the cut reads it.
  std::vector<int> outputs;
  double output_bytes = 0;
  // Of all nodes before the cut:
  double seconds = 0;
  double parameter_bytes = 0;
  double activation_bytes = 0;
};

struct PipeDreamStates {
  /// Ancestors come first; the last one holds the whole network.
  std::vector<PipeDreamState> states;
  /// Ancestors of every state, ascending.
  std::vector<std::vector<int>> ancestors;
  /// is_ancestor.get(j, k): k is an ancestor of j.
  BitTable is_ancestor;
  /// before.get(j, node): the node is before cut j.
  BitTable before;

  int count() const { return static_cast<int>(states.size()); }
};

/// The states as PipeDream's optimizer makes them: inputs and unused outputs ("__getitem__" that
/// nobody reads) are left out, and the search begins at the first other source. An Error
/// (kResource) for more states than `most`.
PipeDreamStates pipedream_states(const PipeDreamProfile& profile, int most = 4096);

}  // namespace pipetrain
