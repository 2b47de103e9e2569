// Tokens that are found in a text before anything else is done with it: <|endoftext|>, [MASK].
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/pattern.h"
#include "text/word_models.h"

namespace pipetrain {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;                      // not within a word
  bool left_strip = false, right_strip = false;  // takes the white space beside it
  bool normalized = false;                       // looked for in the normalized text
  bool special = false;                          // not part of what is decoded
};

class AddedTokens {
 public:
  static constexpr std::size_t kLongest = 1024;  // bytes

  /// A later token of the same content wins. Error (kData) for one that is too long.
  void add(AddedToken token);
  bool empty() const { return tokens_.empty(); }

  struct Part {
    TextRange range;
    std::optional<TokenId> id;  // none: text between tokens
  };
  /// The text in parts: the leftmost tokens, the longest of those that begin together.
  std::vector<Part> split(std::string_view text) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  Vocabulary index_;                  // by content
  std::vector<std::size_t> lengths_;  // of contents, the largest first
  bool begins_[256] = {};             // by a token's first byte
};

}  // namespace pipetrain
