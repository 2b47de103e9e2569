// vocab.txt: a WordPiece of BERT on each line, the line being its id.
#include <algorithm>

#include "base/error.h"
#include "base/read_budget.h"
#include "text/text_pipeline.h"
#include "text/unicode.h"

namespace pipetrain {

namespace {

constexpr std::size_t kMostLines = 1 << 22;
constexpr std::uint64_t kBytesPerLine = 160;

std::vector<std::string> vocabulary_lines(std::string_view content) {
  std::vector<std::string> out;
  while (!content.empty()) {
    const std::size_t end = std::min(content.find('\n'), content.size());
    std::string_view line = content.substr(0, end);
    content.remove_prefix(std::min(end + 1, content.size()));
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r' || line.back() == '\t'))
      line.remove_suffix(1);
    ReadBudget::charge(kBytesPerLine + line.size());
    out.emplace_back(line);
  }
  PT_CHECK(out.size() <= kMostLines, kData, "it has more than {} lines", kMostLines);
  return out;
}

bool is_bracketed(std::string_view piece) { return piece.starts_with('[') && piece.ends_with(']'); }

/// Whether a piece has a letter that lower-casing changes.
bool has_capital(std::string_view piece) {
  std::u32string lower;
  const std::u32string characters = characters_of(piece);
  for (const char32_t code : characters) append_lower(lower, code);
  return lower != characters;
}

}  // namespace

std::shared_ptr<const Tokenizer> parse_vocabulary_text(std::string_view content) {
  const std::vector<std::string> lines = vocabulary_lines(content);
  Vocabulary tokens;
  std::vector<std::string> pieces;
  for (std::size_t id = 0; id < lines.size(); ++id) {
    tokens[lines[id]] = static_cast<TokenId>(id);
    pieces.push_back(lines[id].starts_with("##") ? lines[id].substr(2) : " " + lines[id]);
  }
  const auto id = [&](const char* name) {
    const auto found = tokens.find(std::string_view(name));
    PT_CHECK(found != tokens.end(), kData,
             "it is no vocabulary of WordPiece: it has no line \"{}\"", name);
    return found->second;
  };
  const TokenId unknown = id("[UNK]"), begin = id("[CLS]"), end = id("[SEP]");
  TextPipeline pipeline;
  std::vector<bool> specials(pieces.size());
  for (const char* name : {"[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"}) {
    const auto found = tokens.find(std::string_view(name));
    if (found == tokens.end()) continue;
    AddedToken token;
    token.id = found->second;
    token.content = name;
    pipeline.raw.add(std::move(token));
    specials[found->second] = true;
  }
  const bool cased = std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return !is_bracketed(line) && has_capital(line);
  });
  pipeline.normalizers = {NormalizerStep::kCleanControls, NormalizerStep::kSpaceIdeographs};
  if (!cased) {
    pipeline.normalizers.push_back(NormalizerStep::kRemoveAccents);
    pipeline.normalizers.push_back(NormalizerStep::kLower);
  }
  pipeline.splits = bert_splits();
  pipeline.model = std::make_unique<WordPieces>(tokens, unknown, "##", 100);
  auto out = std::make_shared<PipelineTokenizer>(cased ? "WordPiece" : "WordPiece, lower-cased",
                                                 std::move(pipeline), std::move(tokens),
                                                 std::move(pieces), std::move(specials));
  const TemplatePart first = {-1, {begin}, 0}, after = {-1, {end}, 0}, last = {-1, {end}, 1};
  out->set_templates({first, {0, {}, 0}, after}, {first, {0, {}, 0}, after, {1, {}, 1}, last});
  return out;
}

}  // namespace pipetrain
