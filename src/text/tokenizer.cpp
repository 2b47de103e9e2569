#include "text/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/read_budget.h"
#include "base/units.h"

namespace pipetrain {

namespace {

constexpr std::uintmax_t kLargestFile = std::uintmax_t{64} << 20;

std::string read_small_file(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  PT_CHECK(fs::exists(path, error), kData, "there is no tokenizer file \"{}\"", printable(path));
  PT_CHECK(fs::is_regular_file(path, error), kData,
           "\"{}\" is no file; give a tokenizer.json, a vocab.txt or a SentencePiece model",
           printable(path));
  PT_CHECK(fs::file_size(path, error) <= kLargestFile, kData,
           "\"{}\" is larger than any tokenizer ({})", printable(path), bytes_text(kLargestFile));
  return read_file(path, ErrorKind::kData, kLargestFile);
}

std::size_t special_tokens_in(const Template& parts) {
  std::size_t count = 0;
  for (const TemplatePart& part : parts) count += part.ids.size();
  return count;
}

/// Lengths of two texts that fit together: the longer one is cut first.
void share_length(std::size_t& first, std::size_t& second, std::size_t most) {
  if (first + second <= most) return;
  std::size_t &shorter = first <= second ? first : second,
              &longer = first <= second ? second : first;
  longer = shorter > most ? shorter : std::max(shorter, most - shorter);
  if (shorter + longer <= most) return;
  shorter = most / 2;
  longer = shorter + most % 2;
}

}  // namespace

TokenIds Tokenizer::encode(std::string_view text) const {
  WordCache cache;
  TokenIds out;
  encode(text, cache, out);
  return out;
}

TokenIds Tokenizer::begin(std::string_view text) const {
  TokenIds out;
  for (const TemplatePart& part : single_) {
    out.insert(out.end(), part.ids.begin(), part.ids.end());
    if (part.text == 0) break;
  }
  const TokenIds ids = encode(text);
  out.insert(out.end(), ids.begin(), ids.end());
  return out;
}

TypedTokens Tokenizer::assemble(TokenIds first, std::optional<TokenIds> second,
                                std::size_t most) const {
  const Template& parts = second ? pair_ : single_;
  const std::size_t specials = special_tokens_in(parts);
  std::size_t lengths[2] = {first.size(), second ? second->size() : 0};
  const std::size_t room = most > specials ? most - specials : 0;
  if (second) {
    share_length(lengths[0], lengths[1], room);
  } else {
    lengths[0] = std::min(lengths[0], room);
  }
  TypedTokens out;
  for (const TemplatePart& part : parts) {
    const TokenIds& ids = part.text < 0 ? part.ids : part.text == 0 ? first : *second;
    const std::size_t count =
        part.text < 0 ? ids.size() : lengths[static_cast<std::size_t>(part.text)];
    out.ids.insert(out.ids.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
    out.types.resize(out.ids.size(), part.type);
  }
  if (out.ids.size() > most) {
    out.ids.resize(most);
    out.types.resize(most);
  }
  return out;
}

void Tokenizer::choose_special_tokens() {
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>",
                           "<｜end▁of▁sentence｜>", "[SEP]"}) {
    if (!end_of_text_) end_of_text_ = find(name);
  }
  padding_ = end_of_text_.value_or(0);
  for (const char* name : {"<pad>", "[PAD]"}) padding_ = find(name).value_or(padding_);
}

std::shared_ptr<const Tokenizer> parse_tokenizer(std::string_view content) {
  const std::size_t begin = content.find_first_not_of(" \t\r\n");
  if (begin != std::string_view::npos && content[begin] == '{')
    return parse_tokenizer_json(content);
  // A SentencePiece model begins with a field of a message, which no line of a vocabulary does.
  if (content.starts_with('\n')) return parse_sentence_piece(content);
  PT_CHECK(content.find('\0') == std::string_view::npos, kData,
           "it is no tokenizer.json, no vocab.txt and no SentencePiece model");
  return parse_vocabulary_text(content);
}

TokenizerFile open_tokenizer(const std::string& path) {
  const std::string content = read_small_file(path);
  TokenizerFile out;
  out.name = std::filesystem::path(path).filename().string();
  out.sha256 = sha256(content);
  try {
    const ReadBudget budget(content.size(), kReadingTokenizer);
    out.tokenizer = parse_tokenizer(content);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("\"{}\": {}", printable(path), error.message()));
  }
  return out;
}

}  // namespace pipetrain
