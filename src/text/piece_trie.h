// Pieces of a vocabulary by their bytes: all that a text begins with are found in one pass.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pipetrain {

class PieceTrie {
 public:
  /// No piece is empty, none occurs twice.
  explicit PieceTrie(std::vector<std::pair<std::string_view, std::int32_t>> pieces = {});

  /// Calls take(length, id) for every piece that a text begins with, the shortest first.
  template <class Take>
  void prefixes(std::string_view text, const Take& take) const {
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node == 0) return;
      if (nodes_[node].id >= 0) take(i + 1, nodes_[node].id);
    }
  }
  /// The length of the longest of them; 0: none.
  std::size_t longest(std::string_view text) const {
    std::size_t out = 0;
    prefixes(text, [&](std::size_t length, std::int32_t) { out = length; });
    return out;
  }

 private:
  struct Node {
    std::uint32_t first = 0;  // of its children, which lie together in the order of their bytes
    std::uint16_t children = 0;
    std::uint8_t byte = 0;
    std::int32_t id = -1;
  };
  std::uint32_t child(std::uint32_t node, std::uint8_t byte) const {
    if (node == 0) return roots_[byte];
    for (std::uint32_t i = 0; i < nodes_[node].children; ++i) {
      const std::uint32_t at = nodes_[node].first + i;
      if (nodes_[at].byte == byte) return at;
    }
    return 0;
  }

  std::vector<Node> nodes_;
  std::array<std::uint32_t, 256> roots_{};  // children of the root; 0: none
};

}  // namespace pipetrain
