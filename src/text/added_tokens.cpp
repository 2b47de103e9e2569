#include "text/added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "text/unicode.h"

namespace pipetrain {

namespace {

std::string_view last_character(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  return text.substr(begin);
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_word_character(first_character(last_character(text)).code);
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && is_word_character(first_character(text).code);
}

std::size_t spaces_at_end(std::string_view text) {
  const std::size_t whole = text.size();
  while (!text.empty()) {
    const std::string_view last = last_character(text);
    if (!is_white_space(first_character(last).code)) break;
    text.remove_suffix(last.size());
  }
  return whole - text.size();
}

std::size_t spaces_at_start(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const DecodedCharacter one = first_character(text.substr(at));
    if (!is_white_space(one.code)) break;
    at += one.bytes;
  }
  return at;
}

}  // namespace

void AddedTokens::add(AddedToken token) {
  PT_CHECK(token.content.size() <= kLongest, kData, "an added token is longer than {} bytes",
           kLongest);
  if (token.content.empty()) return;
  const auto place =
      std::lower_bound(lengths_.begin(), lengths_.end(), token.content.size(), std::greater<>());
  if (place == lengths_.end() || *place != token.content.size())
    lengths_.insert(place, token.content.size());
  begins_[static_cast<unsigned char>(token.content[0])] = true;
  index_[token.content] = static_cast<TokenId>(tokens_.size());
  tokens_.push_back(std::move(token));
}

const AddedToken* AddedTokens::longest_at(std::string_view text) const {
  if (!begins_[static_cast<unsigned char>(text[0])]) return nullptr;
  for (const std::size_t length : lengths_) {
    if (length > text.size()) continue;
    const auto found = index_.find(text.substr(0, length));
    if (found != index_.end()) return &tokens_[found->second];
  }
  return nullptr;
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text) const {
  std::vector<Part> out;
  std::size_t done = 0;  // bytes that are in a part
  for (std::size_t at = 0; at < text.size() && !empty();) {
    const AddedToken* token = longest_at(text.substr(at));
    if (!token) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + token->content.size();
    at = end;
    const bool within = ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end));
    if (token->single_word && within) continue;
    if (token->left_strip) begin = std::max(done, begin - spaces_at_end(text.substr(0, begin)));
    if (token->right_strip) end += spaces_at_start(text.substr(end));
    if (done < begin) out.push_back({{done, begin}, std::nullopt});
    out.push_back({{begin, end}, token->id});
    done = end;
  }
  if (done < text.size()) out.push_back({{done, text.size()}, std::nullopt});
  return out;
}

}  // namespace pipetrain
