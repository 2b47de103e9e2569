// Regular expressions of tokenizer.json, which are written for Oniguruma, matched by PCRE2: only
// what means the same to both is accepted.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace pipetrain {

/// A part of a text: [begin, end) in bytes.
struct TextRange {
  std::size_t begin = 0, end = 0;
};

class Pattern {
 public:
  /// Error (kData) for what is no expression, or would mean something else to PCRE2.
  explicit Pattern(std::string_view expression);
  ~Pattern();
  Pattern(Pattern&&) noexcept;

  /// All matches in a text that is UTF-8, from left to right; empty ones are left out.
  std::vector<TextRange> matches(std::string_view text) const;

 private:
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
};

}  // namespace pipetrain
