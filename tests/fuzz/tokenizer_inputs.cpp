// Files of tokenizers, which then make tokens of some texts.
#include "base/error.h"
#include "base/read_budget.h"
#include "fuzz/inputs.h"
#include "support/sentence_piece_model.h"
#include "support/small_tokenizers.h"
#include "text/tokenizer.h"

namespace pipetrain::fuzz {
namespace {

std::vector<std::string> sentence_pieces() {
  return {sentence_piece_model(1), sentence_piece_model(2)};
}

std::vector<std::string> tokenizer_documents() {
  return {kBytePairs, kWordPieces,
          R"({"added_tokens": [{"id": 6, "content": "ab ", "rstrip": true, "single_word": true}],
       "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
       {"type": "Split", "pattern": {"Regex": "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"},
        "behavior": "Isolated", "invert": false},
       {"type": "ByteLevel", "add_prefix_space": true, "use_regex": false}]},
       "post_processor": {"type": "TemplateProcessing",
       "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
       "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
       "special_tokens": {"x": {"id": "x", "ids": [1], "tokens": ["a"]}}},
       "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġa": 4},
       "merges": ["a b", ["Ġ", "a"]]}})"};
}

std::vector<std::string> vocabularies() { return {"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##b\nbc\n!\n"}; }

void read_a_tokenizer(std::string_view content) {
  static const std::vector<std::string> texts = {
      "a ab, Ab!  abc\n\n a<|endoftext|>ab  x's 1234",
      "",
      "\xff\xc3(\xed\xa0\x80",
      "e\u0301 \u4f60\u597d \U0001f468\u200d\U0001f469 \u202eab",
      std::string(3000, 'a'),
      std::string(300, '\0') + std::string(3000, ' ')};
  try {
    const ReadBudget budget(content.size(), kReadingTokenizer);
    const auto tokenizer = parse_tokenizer(content);
    WordCache cache;
    TokenIds all;
    for (const std::string& text : texts) tokenizer->encode(text, cache, all);
    for (const TokenId id : all) {
      if (id >= tokenizer->vocabulary()) throw std::runtime_error("an id beyond the vocabulary");
    }
    tokenizer->decode(all);
    tokenizer->begin("ab");
    tokenizer->assemble(all, all, 100);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData) throw;
  }
}

}  // namespace

std::vector<Input> tokenizer_inputs() {
  return {{"tokenizer", tokenizer_documents, mutate_json, read_a_tokenizer},
          {"vocabulary", vocabularies, mutate_text, read_a_tokenizer},
          {"sentencepiece", sentence_pieces, mutate_bytes, read_a_tokenizer}};
}

}  // namespace pipetrain::fuzz
