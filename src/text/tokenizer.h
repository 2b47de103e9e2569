// Tokenizers: texts to the ids of a model's vocabulary and back, from the files of Hugging Face's
// tokenizers (tokenizer.json), of BERT (vocab.txt) and of SentencePiece (tokenizer.model).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace pipetrain {

using TokenId = std::uint32_t;
using TokenIds = std::vector<TokenId>;
/// Finds by string views, too.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};
template <class Value>
using ByText = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;
using Vocabulary = ByText<TokenId>;
/// Ids of words that occurred before.
using WordCache = ByText<TokenIds>;

/// What a complete sample consists of: texts, and special tokens around them.
struct TemplatePart {
  int text = -1;  // 0: the first text, 1: the second, -1: special tokens
  TokenIds ids = {};
  std::uint8_t type = 0;  // what token_type_ids says of it
};
using Template = std::vector<TemplatePart>;

/// Tokens of a sample with their types.
struct TypedTokens {
  TokenIds ids;
  std::vector<std::uint8_t> types;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// The tokens of a text, without those at its ends. Bytes that are not UTF-8 become U+FFFD.
  /// May be called from several threads, each with a cache of its own.
  virtual void encode(std::string_view text, WordCache& cache, TokenIds& out) const = 0;
  TokenIds encode(std::string_view text) const;
  /// The bytes that tokens stand for; special tokens are left out. Any bytes at all may lack a part
  /// of a character at their ends.
  virtual std::string decode(std::span<const TokenId> ids) const = 0;

  /// "byte-level BPE", "WordPiece, lower-cased", …
  const std::string& kind() const { return kind_; }
  /// One more than the largest id.
  std::size_t vocabulary() const { return vocabulary_; }
  std::optional<TokenId> end_of_text() const { return end_of_text_; }
  /// Of a special token's text or a piece of the vocabulary.
  virtual std::optional<TokenId> find(std::string_view token) const = 0;
  /// What fills short samples; masked, so that any token will do.
  TokenId padding() const { return padding_; }
  /// What a text (or a pair) has around it, by the file.
  const Template& single() const { return single_; }
  const Template& pair() const { return pair_; }
  /// Whether the file says what texts have around them; if not, that is nothing.
  bool names_special_tokens() const { return names_special_tokens_; }
  /// A text as the beginning of a sample: with what precedes it, and not with what follows.
  TokenIds begin(std::string_view text) const;
  /// The tokens of a sample of one text or two, of which at most `most` are left: what is too much
  /// is cut off the longer text.
  TypedTokens assemble(TokenIds first, std::optional<TokenIds> second, std::size_t most) const;

 protected:
  /// Takes the end-of-text and the padding token from among the usual names.
  void choose_special_tokens();

  std::string kind_;
  std::size_t vocabulary_ = 0;
  std::optional<TokenId> end_of_text_;
  TokenId padding_ = 0;
  Template single_ = {{0}}, pair_ = {{0}, {1, {}, 1}};
  bool names_special_tokens_ = true;
};

/// What to say of a tokenizer without names_special_tokens().
constexpr std::string_view kNoSpecialTokens =
    "no special tokens are put around texts or between pairs: a SentencePiece model does not say "
    "which";

struct TokenizerFile {
  std::string name;    // without its folder
  std::string sha256;  // of its content
  std::shared_ptr<const Tokenizer> tokenizer;
};

/// Reads a tokenizer's file, of a kind that its content tells. Errors (kData) name the file, and
/// what in it is not supported.
TokenizerFile open_tokenizer(const std::string& path);
std::shared_ptr<const Tokenizer> parse_tokenizer(std::string_view content);

/// The one of texts whose tokens are their bytes.
std::shared_ptr<const Tokenizer> byte_tokenizer();
constexpr std::size_t kByteTokens = 256;

// One reader per format, without the file's name in errors.
std::shared_ptr<const Tokenizer> parse_tokenizer_json(std::string_view content);
std::shared_ptr<const Tokenizer> parse_vocabulary_text(std::string_view content);
std::shared_ptr<const Tokenizer> parse_sentence_piece(std::string_view content);

}  // namespace pipetrain
