// SentencePiece's unigram and BPE models: Kudo and Richardson, "SentencePiece: A simple and
// language independent subword tokenizer and detokenizer for neural text processing", EMNLP 2018.
#include <algorithm>
#include <array>
#include <limits>
#include <queue>
#include <utility>

#include "base/error.h"
#include "text/piece_trie.h"
#include "text/sentence_piece_file.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace pipetrain {

namespace {

using PieceKind = SentencePieceFile::Kind;

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581 stands for a space
constexpr std::string_view kReplacement = "\xef\xbf\xbd";
constexpr float kUnknownPenalty = 10;

/// Bytes of the character that a first byte announces.
std::size_t announced_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

/// What the longest rule makes of the beginning of a text; of no bytes if there is none.
struct Replaced {
  std::string_view text;
  std::size_t bytes = 0;
};

/// Looks a text up in a double array (Yata's darts-clone), which may hold anything.
Replaced replace_prefix(const SentencePieceFile& file, std::string_view text) {
  constexpr int kMostRules = 32;
  Replaced out;
  const std::vector<std::uint32_t>& units = file.rules;
  const auto offset = [](std::uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); };
  if (units.empty()) return out;
  std::uint32_t at = offset(units[0]);
  int found = 0;
  for (std::size_t i = 0; i < text.size() && found < kMostRules; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    at ^= byte;
    if (at >= units.size() || (units[at] & (1u << 31 | 0xff)) != byte) break;
    const std::uint32_t unit = units[at];
    at ^= offset(unit);
    if ((unit >> 8 & 1) == 0) continue;
    if (at >= units.size()) break;
    const std::uint32_t place = units[at] & 0x7fffffff;
    if (place >= file.replacements.size()) break;
    out = {file.replacements.c_str() + place, i + 1};
    ++found;
  }
  return out;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(SentencePieceFile file) : file_(std::move(file)) {
    std::vector<std::pair<std::string_view, std::int32_t>> matched, defined;
    for (std::size_t id = 0; id < file_.pieces.size(); ++id) {
      const auto& [text, score, kind] = file_.pieces[id];
      ids_.emplace(text, static_cast<TokenId>(id));
      if (kind == PieceKind::kByte) add_byte(text, static_cast<TokenId>(id));
      if (kind == PieceKind::kNormal) {
        least_ = std::min(least_, score);
        most_ = std::max(most_, score);
      }
      if (kind == PieceKind::kUnknown || kind == PieceKind::kControl || kind == PieceKind::kByte)
        continue;
      matched.emplace_back(text, static_cast<std::int32_t>(id));
      if (kind == PieceKind::kUserDefined)
        defined.emplace_back(text, static_cast<std::int32_t>(id));
    }
    pieces_ = PieceTrie(std::move(matched));
    defined_ = PieceTrie(std::move(defined));
    const bool unigram = file_.model == SentencePieceFile::Model::kUnigram;
    kind_ = unigram ? "SentencePiece, unigram" : "SentencePiece, BPE";
    vocabulary_ = file_.pieces.size();
    names_special_tokens_ = false;
    if (file_.end_of_text >= 0) end_of_text_ = static_cast<TokenId>(file_.end_of_text);
    padding_ = file_.padding >= 0 ? static_cast<TokenId>(file_.padding) : end_of_text_.value_or(0);
  }

  void encode(std::string_view text, WordCache&, TokenIds& out) const override {
    const std::string whole = normalize(text);
    bool after_unknown = false;
    const auto add = [&](std::string_view piece, std::int32_t id) {
      const bool unknown = id == file_.unknown;
      if (unknown && file_.has_bytes) {
        for (const char byte : piece) out.push_back(bytes_[static_cast<unsigned char>(byte)]);
      } else if (!unknown || !after_unknown) {
        out.push_back(static_cast<TokenId>(id));
      }
      after_unknown = unknown;
    };
    if (file_.model == SentencePieceFile::Model::kUnigram) {
      best_path(whole, add);
    } else {
      merge_pairs(whole, add);
    }
  }

  std::string decode(std::span<const TokenId> ids) const override {
    std::string out;
    bool first = true;
    for (const TokenId id : ids) {
      if (id >= file_.pieces.size()) continue;
      const auto& [text, score, kind] = file_.pieces[id];
      if (kind == PieceKind::kControl) continue;
      if (kind == PieceKind::kByte) {
        out += static_cast<char>(byte_of(text));
      } else if (kind == PieceKind::kUnknown) {
        out += file_.unknown_surface;
      } else {
        add_spaced(out, text, first && file_.dummy_prefix);
      }
      first = false;
    }
    return out;
  }

  std::optional<TokenId> find(std::string_view token) const override {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  static unsigned byte_of(std::string_view text) {  // "<0x0A>"
    const auto digit = [&](std::size_t at) -> unsigned {
      const char c = at < text.size() ? text[at] : '\0';
      if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
      PT_CHECK(c >= 'A' && c <= 'F', kData, "\"{}\" is no piece for a byte", printable(text));
      return static_cast<unsigned>(c - 'A' + 10);
    };
    return digit(3) * 16 + digit(4);
  }
  void add_byte(std::string_view text, TokenId id) {
    PT_CHECK(text.size() == 6 && text.starts_with("<0x") && text.ends_with('>'), kData,
             "\"{}\" is no piece for a byte", printable(text));
    bytes_[byte_of(text)] = id;
  }

  static void add_spaced(std::string& out, std::string_view text, bool drop_first) {
    if (drop_first && text.starts_with(kSpace)) text.remove_prefix(kSpace.size());
    while (!text.empty()) {
      const bool space = text.starts_with(kSpace);
      out += space ? ' ' : text[0];
      text.remove_prefix(space ? kSpace.size() : 1);
    }
  }

  /// What the beginning of a text becomes, and how many bytes that takes.
  Replaced first_part(std::string_view text) const {
    if (const std::size_t defined = defined_.longest(text))
      return {text.substr(0, defined), defined};
    if (const Replaced replaced = replace_prefix(file_, text); replaced.bytes > 0) return replaced;
    const DecodedCharacter one = first_character(text);
    if (!one.valid) return {kReplacement, 1};
    return {text.substr(0, one.bytes), one.bytes};
  }

  std::string normalize(std::string_view text) const {
    std::string out;
    while (file_.remove_extra_spaces && !text.empty()) {
      const Replaced part = first_part(text);
      if (part.text != " ") break;
      text.remove_prefix(part.bytes);
    }
    if (text.empty()) return out;
    const std::string_view space = file_.escape_spaces ? kSpace : " ";
    if (file_.dummy_prefix && !file_.space_as_suffix) out += space;
    bool after_space = file_.remove_extra_spaces;
    while (!text.empty()) {
      Replaced part = first_part(text);
      text.remove_prefix(part.bytes);
      while (after_space && part.text.starts_with(' ')) part.text.remove_prefix(1);
      for (const char c : part.text) {
        if (c == ' ') {
          out += space;
        } else {
          out += c;
        }
      }
      if (!part.text.empty()) after_space = part.text.ends_with(' ');
      if (!file_.remove_extra_spaces) after_space = false;
    }
    while (file_.remove_extra_spaces && out.ends_with(space)) out.erase(out.size() - space.size());
    if (file_.dummy_prefix && file_.space_as_suffix) out += space;
    return out;
  }

  /// Viterbi's algorithm: the pieces whose scores have the largest sum.
  template <class Add>
  void best_path(std::string_view text, const Add& add) const {
    struct End {
      std::int32_t id = -1;
      float score = 0;
      std::size_t begin = SIZE_MAX;
    };
    std::vector<End> ends(text.size() + 1);
    std::size_t begin = 0;
    const auto propose = [&](std::size_t length, float score, std::int32_t id) {
      End& end = ends[begin + length];
      const float sum = score + ends[begin].score;
      if (end.begin == SIZE_MAX || sum > end.score) end = {id, sum, begin};
    };
    while (begin < text.size()) {
      const std::size_t character = std::min(announced_length(text[begin]), text.size() - begin);
      bool has_character = false;
      pieces_.prefixes(text.substr(begin), [&](std::size_t length, std::int32_t id) {
        const auto& piece = file_.pieces[static_cast<std::size_t>(id)];
        if (piece.kind == PieceKind::kUnused) return;
        // What the user has defined is always chosen.
        const float score = piece.kind == PieceKind::kUserDefined
                                ? static_cast<float>(length) * most_ - 0.1f
                                : piece.score;
        propose(length, score, id);
        has_character |= length == character;
      });
      if (!has_character) propose(character, least_ - kUnknownPenalty, file_.unknown);
      begin += character;
    }
    std::vector<std::pair<std::string_view, std::int32_t>> path;
    for (std::size_t end = text.size(); end > 0; end = ends[end].begin)
      path.emplace_back(text.substr(ends[end].begin, end - ends[end].begin), ends[end].id);
    for (auto piece = path.rbegin(); piece != path.rend(); ++piece)
      add(piece->first, piece->second);
  }

  // ---- BPE: the pair whose piece has the largest score is merged first ----

  struct Symbol {
    std::string_view text;  // empty: merged into the one before
    std::size_t previous = SIZE_MAX, next = SIZE_MAX;
    bool frozen = false;
  };
  struct Pair {
    float score;
    std::size_t left, right, size;
    bool operator<(const Pair& other) const {  // the largest is taken first
      return score != other.score ? score < other.score : left > other.left;
    }
  };
  using Parts = ByText<std::pair<std::string_view, std::string_view>>;

  std::optional<std::int32_t> matched(std::string_view text) const {
    const auto found = ids_.find(text);
    if (found == ids_.end()) return std::nullopt;
    const PieceKind kind = file_.pieces[found->second].kind;
    if (kind == PieceKind::kUnknown || kind == PieceKind::kControl || kind == PieceKind::kByte)
      return std::nullopt;
    return static_cast<std::int32_t>(found->second);
  }

  std::vector<Symbol> symbols_of(std::string_view text) const {
    std::vector<Symbol> out;
    while (!text.empty()) {
      Symbol symbol;
      const std::size_t defined = defined_.longest(text);
      symbol.frozen = defined > 0;
      symbol.text = text.substr(0, defined > 0 ? defined : announced_length(text[0]));
      text.remove_prefix(symbol.text.size());
      if (!out.empty()) symbol.previous = out.size() - 1;
      if (!text.empty()) symbol.next = out.size() + 1;
      out.push_back(symbol);
    }
    return out;
  }

  template <class Add>
  void merge_pairs(std::string_view text, const Add& add) const {
    std::vector<Symbol> symbols = symbols_of(text);
    std::priority_queue<Pair> queue;
    Parts unused;  // how merged pieces that are not used fall apart again
    const auto propose = [&](std::size_t left, std::size_t right) {
      if (left == SIZE_MAX || right == SIZE_MAX) return;
      const Symbol &a = symbols[left], &b = symbols[right];
      if (a.frozen || b.frozen) return;
      const std::string_view both(a.text.data(), a.text.size() + b.text.size());
      const auto id = matched(both);
      if (!id) return;
      const auto& piece = file_.pieces[static_cast<std::size_t>(*id)];
      queue.push({piece.score, left, right, both.size()});
      if (piece.kind == PieceKind::kUnused) unused[std::string(both)] = {a.text, b.text};
    };
    for (std::size_t i = 1; i < symbols.size(); ++i) propose(i - 1, i);
    while (!queue.empty()) {
      const Pair best = queue.top();
      queue.pop();
      Symbol &left = symbols[best.left], &right = symbols[best.right];
      if (left.text.empty() || right.text.empty() ||
          left.text.size() + right.text.size() != best.size)
        continue;
      left.text = std::string_view(left.text.data(), best.size);
      left.next = right.next;
      if (right.next != SIZE_MAX) symbols[right.next].previous = best.left;
      right.text = {};
      propose(left.previous, best.left);
      propose(best.left, left.next);
    }
    for (std::size_t i = 0; i < symbols.size() && i != SIZE_MAX; i = symbols[i].next)
      add_parts(symbols[i].text, unused, add);
  }

  template <class Add>
  void add_parts(std::string_view whole, const Parts& unused, const Add& add) const {
    std::vector<std::string_view> open = {whole};
    while (!open.empty()) {
      const std::string_view text = open.back();
      open.pop_back();
      const auto found = ids_.find(text);
      const auto id =
          found == ids_.end() ? file_.unknown : static_cast<std::int32_t>(found->second);
      const auto parts = file_.pieces[static_cast<std::size_t>(id)].kind == PieceKind::kUnused
                             ? unused.find(text)
                             : unused.end();
      if (parts == unused.end()) {
        add(text, id);
        continue;
      }
      open.push_back(parts->second.second);
      open.push_back(parts->second.first);
    }
  }

  SentencePieceFile file_;
  Vocabulary ids_;
  PieceTrie pieces_, defined_;
  std::array<TokenId, 256> bytes_{};
  float least_ = std::numeric_limits<float>::max(), most_ = std::numeric_limits<float>::min();
};

}  // namespace

std::shared_ptr<const Tokenizer> parse_sentence_piece(std::string_view content) {
  return std::make_shared<SentencePieceTokenizer>(SentencePieceFile::parse(content));
}

}  // namespace pipetrain
