// tokenizer.json of Hugging Face's tokenizers: byte-level BPE and WordPiece. What is not supported
// is refused by its name in the file.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/read_budget.h"
#include "text/text_pipeline.h"
#include "text/unicode.h"

namespace pipetrain {

namespace {

using JsonValue = nlohmann::json;

constexpr int kDeepestJson = 32;
constexpr std::uint64_t kBytesPerValue = 128;
constexpr std::uint64_t kMostIds = 1 << 22;
constexpr std::size_t kMostSteps = 64;

JsonValue parse_limited(std::string_view text) {
  return JsonValue::parse(text, [](int depth, JsonValue::parse_event_t, const JsonValue&) {
    PT_CHECK(depth <= kDeepestJson, kData, "its values are nested more than {} deep", kDeepestJson);
    ReadBudget::charge(kBytesPerValue);
    return true;
  });
}

[[noreturn]] void refuse(const char* what, const std::string& name) {
  PT_FAIL(kData, "its {} \"{}\" is not supported", what, printable(name));
}

std::string type_of(const JsonValue& json) { return json.at("type").get<std::string>(); }

/// A field that may be missing or null.
template <class Value>
Value value_or(const JsonValue& json, const char* key, Value otherwise) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return otherwise;
  if constexpr (std::is_integral_v<Value> && !std::is_same_v<Value, bool>) {
    // 1e30 has no value as an integer.
    PT_CHECK(found->is_number_integer(), kData, "its {} is {}, not an integer", key,
             printable(found->dump()));
  }
  return found->get<Value>();
}

void refuse_text(const JsonValue& model, const char* key) {
  if (!value_or<std::string>(model, key, "").empty()) refuse("model's setting", key);
}

TokenId id_of(const JsonValue& json) {
  const std::int64_t id = json.is_number_integer() ? json.get<std::int64_t>() : -1;
  PT_CHECK(id >= 0 && id < static_cast<std::int64_t>(kMostIds), kData,
           "it has the id {}, which is out of range", printable(json.dump()));
  return static_cast<TokenId>(id);
}

/// The parts of a sequence, or a single step; none for null.
std::vector<const JsonValue*> steps_of(const JsonValue& json, const char* list) {
  std::vector<const JsonValue*> open = {&json}, out;
  while (!open.empty()) {
    const JsonValue& one = *open.back();
    open.pop_back();
    if (one.is_null()) continue;
    if (type_of(one) != "Sequence") {
      out.push_back(&one);
      PT_CHECK(out.size() <= kMostSteps, kData, "it has more than {} {}", kMostSteps, list);
      continue;
    }
    const JsonValue& parts = one.at(list);
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) open.push_back(&*part);
  }
  return out;
}

// ---- normalizers, words ----

std::vector<NormalizerStep> bert_normalizer(const JsonValue& json) {
  std::vector<NormalizerStep> out;
  const bool lower = value_or(json, "lowercase", true);
  if (value_or(json, "clean_text", true)) out.push_back(NormalizerStep::kCleanControls);
  if (value_or(json, "handle_chinese_chars", true)) out.push_back(NormalizerStep::kSpaceIdeographs);
  if (value_or(json, "strip_accents", lower)) out.push_back(NormalizerStep::kRemoveAccents);
  if (lower) out.push_back(NormalizerStep::kLower);
  return out;
}

std::vector<NormalizerStep> read_normalizers(const JsonValue& json) {
  static constexpr std::array<std::pair<std::string_view, NormalizerStep>, 5> kKnown = {
      {{"NFC", NormalizerStep::kFormC},
       {"NFD", NormalizerStep::kFormD},
       {"NFKC", NormalizerStep::kFormKC},
       {"NFKD", NormalizerStep::kFormKD},
       {"Lowercase", NormalizerStep::kLower}}};
  std::vector<NormalizerStep> out;
  for (const JsonValue* step : steps_of(json, "normalizers")) {
    const std::string type = type_of(*step);
    if (type == "BertNormalizer") {
      for (const NormalizerStep each : bert_normalizer(*step)) out.push_back(each);
      continue;
    }
    const auto known = std::find_if(kKnown.begin(), kKnown.end(),
                                    [&](const auto& each) { return each.first == type; });
    if (known == kKnown.end()) refuse("normalizer", type);
    out.push_back(known->second);
  }
  return out;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       static_cast<unsigned char>(c) >= 0x80 || c == ' ';
    if (!plain) out += '\\';
    out += c;
  }
  return out;
}

WordSplit read_split(const JsonValue& json) {
  const JsonValue& pattern = json.at("pattern");
  const std::string behavior = value_or<std::string>(json, "behavior", "Isolated");
  if (behavior != "Isolated" && behavior != "Removed") refuse("behavior of Split", behavior);
  const bool literal = pattern.contains("String");
  std::string text = pattern.at(literal ? "String" : "Regex").get<std::string>();
  return {Pattern(literal ? escaped(text) : text), behavior == "Removed",
          value_or(json, "invert", false)};
}

/// Returns whether words are bytes.
bool read_splits(const JsonValue& json, TextPipeline& out) {
  bool bytes = false;
  for (const JsonValue* step : steps_of(json, "pretokenizers")) {
    const std::string type = type_of(*step);
    PT_CHECK(!bytes, kData, "its pre-tokenizer \"{}\" after ByteLevel is not supported",
             printable(type));
    if (type == "Split") {
      out.splits.push_back(read_split(*step));
    } else if (type == "Digits") {
      const bool each = value_or(*step, "individual_digits", false);
      out.splits.push_back({Pattern(each ? R"(\p{N})" : R"(\p{N}+)")});
    } else if (type == "WhitespaceSplit") {
      out.splits.push_back({Pattern(R"(\s+)"), /*removes=*/true});
    } else if (type == "BertPreTokenizer") {
      for (WordSplit& split : bert_splits()) out.splits.push_back(std::move(split));
    } else if (type == "ByteLevel") {
      bytes = true;
      out.space_before = value_or(*step, "add_prefix_space", true);
      if (value_or(*step, "use_regex", true)) out.later_splits.push_back(gpt2_split());
    } else {
      refuse("pre-tokenizer", type);
    }
  }
  return bytes;
}

// ---- models ----

/// The bytes that the characters of a byte-level piece stand for; nothing if one stands for none.
class ByteCharacters {
 public:
  ByteCharacters() {
    char32_t next = 256;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
      bytes_[itself ? byte : next++] = static_cast<char>(byte);
    }
  }
  std::optional<std::string> bytes_of(std::string_view piece) const {
    std::string out;
    while (!piece.empty()) {
      const DecodedCharacter one = first_character(piece);
      const auto found = bytes_.find(one.code);
      if (!one.valid || found == bytes_.end()) return std::nullopt;
      out += found->second;
      piece.remove_prefix(one.bytes);
    }
    return out;
  }

 private:
  std::unordered_map<char32_t, char> bytes_;
};

Vocabulary read_vocabulary(const JsonValue& model) {
  const JsonValue& json = model.at("vocab");
  PT_CHECK(json.is_object(), kData, "its vocabulary is no object of tokens and their ids");
  Vocabulary out;
  out.reserve(json.size());
  for (const auto& [token, id] : json.items()) out.emplace(token, id_of(id));
  return out;
}

std::pair<std::string, std::string> read_merge(const JsonValue& json) {
  if (json.is_array()) {
    PT_CHECK(json.size() == 2, kData, "it has the merge {}, which is no pair",
             printable(json.dump()));
    return {json[0].get<std::string>(), json[1].get<std::string>()};
  }
  const auto text = json.get<std::string>();
  const std::size_t space = text.find(' ');
  PT_CHECK(space != std::string::npos && text.find(' ', space + 1) == std::string::npos, kData,
           "it has the merge \"{}\", which is no pair", printable(text));
  return {text.substr(0, space), text.substr(space + 1)};
}

/// A token of the vocabulary, or one that is added to it.
TokenId unknown_token(const JsonValue& json, const Vocabulary& tokens, const std::string& name) {
  if (const auto found = tokens.find(name); found != tokens.end()) return found->second;
  if (const auto added = json.find("added_tokens"); added != json.end()) {
    for (const JsonValue& each : *added)
      if (each.at("content").get<std::string>() == name) return id_of(each.at("id"));
  }
  PT_FAIL(kData, "its unknown token \"{}\" is not in its vocabulary", printable(name));
}

std::unique_ptr<WordModel> read_byte_pairs(const JsonValue& json, const Vocabulary& tokens) {
  const JsonValue& model = json.at("model");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    refuse_text(model, key);
  if (value_or(model, "dropout", 0.0) != 0) refuse("model's setting", "dropout");
  if (value_or(model, "byte_fallback", false)) refuse("model's setting", "byte_fallback");
  const auto id = [&](const std::string& token) {
    const auto found = tokens.find(token);
    PT_CHECK(found != tokens.end(), kData, "\"{}\" is merged, but not in its vocabulary",
             printable(token));
    return found->second;
  };
  std::vector<BytePairs::Merge> merges;
  for (const JsonValue& each : model.at("merges")) {
    const auto [left, right] = read_merge(each);
    merges.push_back({id(left), id(right), id(left + right)});
  }
  Vocabulary pieces;
  const ByteCharacters characters;
  for (const auto& [token, number] : tokens) {
    if (const auto bytes = characters.bytes_of(token)) pieces.emplace(*bytes, number);
  }
  BytePairs::Options options;
  options.fuse_unknown = value_or(model, "fuse_unk", false);
  options.whole_words = value_or(model, "ignore_merges", false);
  const std::string unknown = value_or<std::string>(model, "unk_token", "");
  if (!unknown.empty()) options.unknown = unknown_token(json, tokens, unknown);
  return std::make_unique<BytePairs>(std::move(pieces), merges, options);
}

std::unique_ptr<WordModel> read_word_pieces(const JsonValue& json, const Vocabulary& tokens) {
  const JsonValue& model = json.at("model");
  const TokenId unknown =
      unknown_token(json, tokens, value_or<std::string>(model, "unk_token", "[UNK]"));
  const auto most = value_or<std::int64_t>(model, "max_input_chars_per_word", 100);
  PT_CHECK(most >= 0, kData, "its max_input_chars_per_word is negative");
  return std::make_unique<WordPieces>(
      tokens, unknown, value_or<std::string>(model, "continuing_subword_prefix", "##"),
      static_cast<std::size_t>(most));
}

// ---- what is around a sample ----

Template read_template(const JsonValue& parts, const JsonValue& specials) {
  Template out;
  for (const JsonValue& part : parts) {
    const bool special = part.contains("SpecialToken");
    const JsonValue& json = part.at(special ? "SpecialToken" : "Sequence");
    TemplatePart one;
    const auto type = value_or<std::int64_t>(json, "type_id", 0);
    PT_CHECK(type >= 0 && type < 128, kData, "its template has the type {}", type);
    one.type = static_cast<std::uint8_t>(type);
    const auto name = json.at("id").get<std::string>();
    if (special) {
      for (const JsonValue& id : specials.at(name).at("ids")) one.ids.push_back(id_of(id));
      PT_CHECK(one.ids.size() <= kMostSteps, kData,
               "its template's token \"{}\" has more than {} ids", printable(name), kMostSteps);
    } else {
      PT_CHECK(name == "A" || name == "B", kData, "its template has the text \"{}\"",
               printable(name));
      one.text = name == "A" ? 0 : 1;
    }
    out.push_back(std::move(one));
  }
  PT_CHECK(out.size() <= kMostSteps, kData, "its template has more than {} parts", kMostSteps);
  return out;
}

/// Of one text, or of two.
void check_template(const Template& parts, int texts, std::int64_t vocabulary) {
  for (const TemplatePart& part : parts) {
    PT_CHECK(part.text < texts, kData, "its template of one text has the text \"B\"");
    for (const TokenId id : part.ids)
      PT_CHECK(id < vocabulary, kData, "its template has the id {}, but its vocabulary {} tokens",
               id, vocabulary);
  }
}

void read_templates(const JsonValue& json, PipelineTokenizer& out) {
  const auto set = [&out](Template single, Template pair) {
    const auto vocabulary = static_cast<std::int64_t>(out.vocabulary());
    check_template(single, 1, vocabulary);
    check_template(pair, 2, vocabulary);
    out.set_templates(std::move(single), std::move(pair));
  };
  for (const JsonValue* step : steps_of(json, "processors")) {
    const std::string type = type_of(*step);
    if (type == "ByteLevel") continue;  // changes positions in the text only
    if (type == "TemplateProcessing") {
      const JsonValue& specials = step->at("special_tokens");
      set(read_template(step->at("single"), specials), read_template(step->at("pair"), specials));
      continue;
    }
    if (type != "BertProcessing" && type != "RobertaProcessing") refuse("post-processor", type);
    const TokenIds begin = {id_of(step->at("cls").at(1))}, end = {id_of(step->at("sep").at(1))};
    const std::uint8_t second = type == "BertProcessing" ? 1 : 0;
    Template single = {{-1, begin, 0}, {0, {}, 0}, {-1, end, 0}}, pair = single;
    if (second == 0) pair.push_back({-1, end, 0});
    pair.push_back({1, {}, second});
    pair.push_back({-1, end, second});
    set(std::move(single), std::move(pair));
  }
}

AddedToken read_added_token(const JsonValue& json) {
  AddedToken out;
  out.id = id_of(json.at("id"));
  out.content = json.at("content").get<std::string>();
  out.single_word = value_or(json, "single_word", false);
  out.left_strip = value_or(json, "lstrip", false);
  out.right_strip = value_or(json, "rstrip", false);
  out.special = value_or(json, "special", false);
  out.normalized = value_or(json, "normalized", !out.special);
  return out;
}

class JsonReader {
 public:
  explicit JsonReader(const JsonValue& json) : json_(json) {}

  std::shared_ptr<const Tokenizer> read() {
    const JsonValue& model = json_.at("model");
    // Files of early versions do not name the type.
    const std::string type =
        value_or<std::string>(model, "type", model.contains("merges") ? "BPE" : "WordPiece");
    if (type != "BPE" && type != "WordPiece")
      PT_FAIL(kData,
              "its model \"{}\" is not supported; give the SentencePiece model where there is one",
              printable(type));
    TextPipeline pipeline;
    pipeline.normalizers = read_normalizers(json_.value("normalizer", JsonValue()));
    const bool bytes = read_splits(json_.value("pre_tokenizer", JsonValue()), pipeline);
    PT_CHECK(bytes == (type == "BPE"), kData,
             "its model {} {} the pre-tokenizer ByteLevel, which is not supported{}", type,
             bytes ? "with" : "without",
             bytes ? "" : "; give the SentencePiece model where there is one");
    Vocabulary tokens = read_vocabulary(model);
    pipeline.model = bytes ? read_byte_pairs(json_, tokens) : read_word_pieces(json_, tokens);
    read_pieces(tokens, bytes);
    if (const auto added = json_.find("added_tokens"); added != json_.end()) {
      for (const JsonValue& each : *added) add(read_added_token(each), tokens, pipeline);
    }
    const bool lower = std::count(pipeline.normalizers.begin(), pipeline.normalizers.end(),
                                  NormalizerStep::kLower) > 0;
    const char* kind = bytes ? "byte-level BPE" : lower ? "WordPiece, lower-cased" : "WordPiece";
    auto out = std::make_shared<PipelineTokenizer>(kind, std::move(pipeline), std::move(tokens),
                                                   std::move(pieces_), std::move(specials_));
    read_templates(json_.value("post_processor", JsonValue()), *out);
    return out;
  }

 private:
  void set_piece(TokenId id, std::string text, bool special) {
    if (pieces_.size() <= id) {
      ReadBudget::charge((id + 1 - pieces_.size()) * sizeof(std::string));
      pieces_.resize(id + 1);
      specials_.resize(id + 1);
    }
    pieces_[id] = std::move(text);
    specials_[id] = special;
  }

  void read_pieces(const Vocabulary& tokens, bool bytes) {
    const ByteCharacters characters;
    for (const auto& [token, id] : tokens) {
      std::optional<std::string> text;
      if (bytes) text = characters.bytes_of(token);
      // Words of WordPiece are apart, and their continuations are not.
      if (!bytes) text = token.starts_with("##") ? token.substr(2) : " " + token;
      set_piece(id, text.value_or(token), false);
    }
  }

  void add(AddedToken token, Vocabulary& tokens, TextPipeline& pipeline) {
    tokens.emplace(token.content, token.id);
    set_piece(token.id, token.content, token.special);
    if (token.normalized) {
      token.content = normalize(token.content, pipeline.normalizers);
      pipeline.normalized.add(std::move(token));
    } else {
      pipeline.raw.add(std::move(token));
    }
  }

  const JsonValue& json_;
  std::vector<std::string> pieces_;
  std::vector<bool> specials_;
};

}  // namespace

std::shared_ptr<const Tokenizer> parse_tokenizer_json(std::string_view content) {
  try {
    const JsonValue json = parse_limited(content);
    return JsonReader(json).read();
  } catch (const JsonValue::exception& error) {
    const std::string text = error.what();
    const std::size_t end = text.find("] ");
    PT_FAIL(kData, "it is no tokenizer.json: {}",
            printable(end == std::string::npos ? text : text.substr(end + 2)));
  }
}

}  // namespace pipetrain
