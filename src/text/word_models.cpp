#include "text/word_models.h"

#include <algorithm>
#include <queue>

#include "text/unicode.h"

namespace pipetrain {

BytePairs::BytePairs(Vocabulary pieces, const std::vector<Merge>& merges, Options options)
    : pieces_(std::move(pieces)), options_(options) {
  for (std::size_t byte = 0; byte < bytes_.size(); ++byte) {
    const char c = static_cast<char>(byte);
    const auto found = pieces_.find(std::string_view(&c, 1));
    if (found != pieces_.end()) bytes_[byte] = found->second;
  }
  std::uint32_t rank = 0;
  for (const Merge& each : merges)
    merges_[key(each.left, each.right)] = {rank++, each.merged};  // of two equal ones, the later
}

void BytePairs::encode_word(std::string_view word, TokenIds& out) const {
  if (options_.whole_words) {
    if (const auto found = pieces_.find(word); found != pieces_.end()) {
      out.push_back(found->second);
      return;
    }
  }
  TokenIds symbols;
  symbols.reserve(word.size());
  bool after_unknown = false;
  for (const char c : word) {
    const std::optional<TokenId> id = bytes_[static_cast<unsigned char>(c)];
    if (id) symbols.push_back(*id);
    if (!id && options_.unknown && !(after_unknown && options_.fuse_unknown))
      symbols.push_back(*options_.unknown);
    after_unknown = !id;
  }
  merge(symbols);
  out.insert(out.end(), symbols.begin(), symbols.end());
}

/// Merges the pair of the lowest rank, the leftmost of equal ones, until none is left.
void BytePairs::merge(TokenIds& symbols) const {
  constexpr std::size_t kNone = SIZE_MAX;
  struct Link {
    std::size_t previous, next;
    bool there;
  };
  struct Candidate {
    std::uint32_t rank;
    std::size_t at;
    TokenId id;
    bool operator<(const Candidate& other) const {  // the largest is taken first
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  const std::size_t count = symbols.size();
  std::vector<Link> links(count);
  std::priority_queue<Candidate> queue;
  const auto find = [&](std::size_t at) {
    const std::size_t next = links[at].next;
    const auto found =
        next == kNone ? merges_.end() : merges_.find(key(symbols[at], symbols[next]));
    return found;
  };
  const auto propose = [&](std::size_t at) {
    if (const auto found = find(at); found != merges_.end())
      queue.push({found->second.rank, at, found->second.id});
  };
  for (std::size_t i = 0; i < count; ++i)
    links[i] = {i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1, true};
  for (std::size_t i = 0; i + 1 < count; ++i) propose(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    if (!links[best.at].there) continue;
    const auto found = find(best.at);
    if (found == merges_.end() || found->second.id != best.id) continue;  // merged meanwhile
    Link& link = links[best.at];
    symbols[best.at] = best.id;
    links[link.next].there = false;
    link.next = links[link.next].next;
    if (link.next != kNone) links[link.next].previous = best.at;
    if (link.previous != kNone) propose(link.previous);
    propose(best.at);
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (links[i].there) symbols[kept++] = symbols[i];
  }
  symbols.resize(kept);
}

WordPieces::WordPieces(Vocabulary pieces, TokenId unknown, std::string prefix,
                       std::size_t most_characters)
    : unknown_(unknown), most_characters_(most_characters) {
  for (const auto& [piece, id] : pieces) {
    longest_ = std::max(longest_, piece.size());
    if (piece.starts_with(prefix)) next_[piece.substr(prefix.size())] = id;
    first_[piece] = id;
  }
}

void WordPieces::encode_word(std::string_view word, TokenIds& out) const {
  // Where a piece may end.
  std::vector<std::size_t> ends;
  for (std::size_t at = 0; at < word.size();) {
    at += first_character(word.substr(at)).bytes;
    ends.push_back(at);
    if (ends.size() > most_characters_) {
      out.push_back(unknown_);
      return;
    }
  }
  const std::size_t before = out.size();
  std::size_t begin = 0;
  for (std::size_t first_end = 0; first_end < ends.size();) {
    const Vocabulary& pieces = begin == 0 ? first_ : next_;
    std::size_t last = std::min(ends.size(), first_end + longest_);
    while (last > first_end) {
      const auto found = pieces.find(word.substr(begin, ends[last - 1] - begin));
      if (found != pieces.end()) {
        out.push_back(found->second);
        break;
      }
      --last;
    }
    if (last == first_end) {
      out.resize(before);
      out.push_back(unknown_);
      return;
    }
    begin = ends[last - 1];
    first_end = last;
  }
}

}  // namespace pipetrain
