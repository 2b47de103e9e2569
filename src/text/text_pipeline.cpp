#include "text/text_pipeline.h"

#include <algorithm>
#include <array>
#include <list>
#include <utility>

#include "text/unicode.h"

namespace pipetrain {

namespace {

constexpr std::size_t kLongestCached = 64;
constexpr std::size_t kMostCached = std::size_t{1} << 17;

bool is_ideograph(char32_t code) {
  static constexpr std::array<std::pair<char32_t, char32_t>, 8> kBlocks = {{{0x4e00, 0x9fff},
                                                                            {0x3400, 0x4dbf},
                                                                            {0x20000, 0x2a6df},
                                                                            {0x2a700, 0x2b73f},
                                                                            {0x2b740, 0x2b81f},
                                                                            {0x2b920, 0x2ceaf},
                                                                            {0xf900, 0xfaff},
                                                                            {0x2f800, 0x2fa1f}}};
  return std::any_of(kBlocks.begin(), kBlocks.end(), [&](const auto& block) {
    return code >= block.first && code <= block.second;
  });
}

std::u32string without_controls(const std::u32string& text) {
  std::u32string out;
  for (const char32_t code : text) {
    const bool blank = code == '\t' || code == '\n' || code == '\r' || is_white_space(code);
    const bool control = code != '\t' && code != '\n' && code != '\r' && is_other(code);
    if (code == 0 || code == kReplacementCharacter || control) continue;
    out += blank ? U' ' : code;
  }
  return out;
}

std::u32string apply(NormalizerStep step, std::u32string text) {
  std::u32string out;
  switch (step) {
    case NormalizerStep::kFormC:
      return normalized(text, NormalForm::kC);
    case NormalizerStep::kFormD:
      return normalized(text, NormalForm::kD);
    case NormalizerStep::kFormKC:
      return normalized(text, NormalForm::kKC);
    case NormalizerStep::kFormKD:
      return normalized(text, NormalForm::kKD);
    case NormalizerStep::kLower:
      for (const char32_t code : text) append_lower(out, code);
      return out;
    case NormalizerStep::kCleanControls:
      return without_controls(text);
    case NormalizerStep::kSpaceIdeographs:
      for (const char32_t code : text) {
        if (is_ideograph(code)) {
          out += {U' ', code, U' '};
        } else {
          out += code;
        }
      }
      return out;
    case NormalizerStep::kRemoveAccents:
      out = normalized(text, NormalForm::kD);
      std::erase_if(out, is_nonspacing_mark);
      return out;
  }
  return text;
}

bool is_form(NormalizerStep step) { return step <= NormalizerStep::kFormKD; }

using Words = std::vector<std::string_view>;

Words divide(const Words& words, const WordSplit& split) {
  Words out;
  const auto add = [&](std::string_view word, TextRange range, bool matches) {
    if (range.begin < range.end && !(split.removes && matches != split.inverted))
      out.push_back(word.substr(range.begin, range.end - range.begin));
  };
  for (const std::string_view word : words) {
    std::size_t done = 0;
    for (const TextRange& match : split.pattern.matches(word)) {
      add(word, {done, match.begin}, false);
      add(word, match, true);
      done = match.end;
    }
    add(word, {done, word.size()}, false);
  }
  return out;
}

}  // namespace

std::string normalize(std::string_view text, const std::vector<NormalizerStep>& steps) {
  const bool ascii = std::all_of(text.begin(), text.end(),
                                 [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (steps.empty() || (ascii && std::all_of(steps.begin(), steps.end(), is_form)))
    return std::string(text);
  std::u32string characters = characters_of(text);
  for (const NormalizerStep step : steps) characters = apply(step, std::move(characters));
  return utf8_of(characters);
}

std::vector<WordSplit> bert_splits() {
  std::vector<WordSplit> out;
  out.push_back({Pattern(R"(\s+)"), /*removes=*/true});
  out.push_back({Pattern(R"([!-/:-@\[-`\{-~\p{P}])")});
  return out;
}

WordSplit gpt2_split() {
  return {Pattern(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)")};
}

PipelineTokenizer::PipelineTokenizer(std::string kind, TextPipeline pipeline, Vocabulary tokens,
                                     std::vector<std::string> pieces, std::vector<bool> specials)
    : pipeline_(std::move(pipeline)),
      tokens_(std::move(tokens)),
      pieces_(std::move(pieces)),
      specials_(std::move(specials)) {
  kind_ = std::move(kind);
  vocabulary_ = pieces_.size();
  choose_special_tokens();
}

void PipelineTokenizer::encode(std::string_view text, WordCache& cache, TokenIds& out) const {
  const std::string whole = valid_utf8(text);
  for (const AddedTokens::Part& outer : pipeline_.raw.split(whole)) {
    if (outer.id) {
      out.push_back(*outer.id);
      continue;
    }
    const auto [begin, end] = outer.range;
    const std::string part =
        normalize(std::string_view(whole).substr(begin, end - begin), pipeline_.normalizers);
    for (const AddedTokens::Part& inner : pipeline_.normalized.split(part)) {
      if (inner.id) {
        out.push_back(*inner.id);
      } else {
        encode_part(
            std::string_view(part).substr(inner.range.begin, inner.range.end - inner.range.begin),
            cache, out);
      }
    }
  }
}

void PipelineTokenizer::encode_part(std::string_view text, WordCache& cache, TokenIds& out) const {
  Words words = {text};
  for (const WordSplit& split : pipeline_.splits) words = divide(words, split);
  std::list<std::string> longer;
  if (pipeline_.space_before) {
    for (std::string_view& word : words) {
      if (!word.starts_with(' ')) word = longer.emplace_back(" " + std::string(word));
    }
  }
  for (const WordSplit& split : pipeline_.later_splits) words = divide(words, split);
  for (const std::string_view word : words) {
    if (const auto known = cache.find(word); known != cache.end()) {
      out.insert(out.end(), known->second.begin(), known->second.end());
      continue;
    }
    const std::size_t before = out.size();
    pipeline_.model->encode_word(word, out);
    if (word.size() <= kLongestCached && cache.size() < kMostCached) {
      const auto first = out.begin() + static_cast<std::ptrdiff_t>(before);
      cache.emplace(word, TokenIds(first, out.end()));
    }
  }
}

std::string PipelineTokenizer::decode(std::span<const TokenId> ids) const {
  std::string out;
  for (const TokenId id : ids) {
    if (id < pieces_.size() && !specials_[id]) out += pieces_[id];
  }
  return out;
}

std::optional<TokenId> PipelineTokenizer::find(std::string_view token) const {
  const auto found = tokens_.find(token);
  return found == tokens_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace pipetrain
