// How one word becomes tokens: merges of byte pairs (BPE), or the longest pieces of a vocabulary
// (WordPiece).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace pipetrain {

class WordModel {
 public:
  virtual ~WordModel() = default;
  virtual void encode_word(std::string_view word, TokenIds& out) const = 0;
};

/// Byte-level BPE; its pieces are bytes, not the characters that stand for them in files.
class BytePairs final : public WordModel {
 public:
  struct Merge {
    TokenId left = 0, right = 0, merged = 0;
  };
  struct Options {
    std::optional<TokenId> unknown;  // for bytes that have no piece; none: they are left out
    bool fuse_unknown = false;
    bool whole_words = false;  // a word that is a piece is not merged together
  };
  /// `merges` in the order of their ranks.
  BytePairs(Vocabulary pieces, const std::vector<Merge>& merges, Options options);
  void encode_word(std::string_view word, TokenIds& out) const override;

 private:
  struct Merged {
    std::uint32_t rank = 0;
    TokenId id = 0;
  };
  static std::uint64_t key(TokenId left, TokenId right) {
    return std::uint64_t{left} << 32 | right;
  }
  void merge(TokenIds& symbols) const;

  Vocabulary pieces_;
  std::array<std::optional<TokenId>, 256> bytes_;
  std::unordered_map<std::uint64_t, Merged> merges_;
  Options options_;
};

class WordPieces final : public WordModel {
 public:
  /// `prefix`: of pieces that continue a word. Words of more than `most_characters` are unknown.
  WordPieces(Vocabulary pieces, TokenId unknown, std::string prefix, std::size_t most_characters);
  void encode_word(std::string_view word, TokenIds& out) const override;

 private:
  Vocabulary first_, next_;  // pieces that begin a word, and others without their prefix
  TokenId unknown_;
  std::size_t most_characters_;
  std::size_t longest_ = 0;
};

}  // namespace pipetrain
