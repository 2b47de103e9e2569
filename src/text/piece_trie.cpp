#include "text/piece_trie.h"

#include <algorithm>

namespace pipetrain {

PieceTrie::PieceTrie(std::vector<std::pair<std::string_view, std::int32_t>> pieces) {
  std::sort(pieces.begin(), pieces.end());
  struct Open {
    std::uint32_t node;
    std::size_t begin, end, depth;  // pieces that share their first bytes
  };
  nodes_.emplace_back();
  std::vector<Open> level = {{0, 0, pieces.size(), 0}};
  while (!level.empty()) {
    std::vector<Open> next;
    for (Open open : level) {
      if (open.begin < open.end && pieces[open.begin].first.size() == open.depth)
        nodes_[open.node].id = pieces[open.begin++].second;
      nodes_[open.node].first = static_cast<std::uint32_t>(nodes_.size());
      while (open.begin < open.end) {
        const char byte = pieces[open.begin].first[open.depth];
        std::size_t end = open.begin;
        while (end < open.end && pieces[end].first[open.depth] == byte) ++end;
        const auto at = static_cast<std::uint32_t>(nodes_.size());
        nodes_.push_back({0, 0, static_cast<std::uint8_t>(byte), -1});
        ++nodes_[open.node].children;
        if (open.node == 0) roots_[static_cast<unsigned char>(byte)] = at;
        next.push_back({at, open.begin, end, open.depth + 1});
        open.begin = end;
      }
    }
    level = std::move(next);
  }
}

}  // namespace pipetrain
