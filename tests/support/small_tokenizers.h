// Small tokenizers, whose tokens in the tests are those of Hugging Face's tokenizers 0.23 and
// SentencePiece 0.2.
#pragma once

#include <string>

namespace pipetrain {

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  return at == std::string::npos ? "nothing to replace" : text.replace(at, from.size(), to);
}

inline const std::string kBytePairs = R"({"version": "1.0", "truncation": null, "padding": null,
 "added_tokens": [{"id": 0, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
  "rstrip": false, "normalized": false, "special": true}],
 "normalizer": null,
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
 "post_processor": null, "decoder": null,
 "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
  "vocab": {"<|endoftext|>": 0, "a": 1, "b": 2, "c": 3, "Ġ": 4, "Ċ": 5, "ab": 6, "abc": 7, "Ġa": 8,
   "Ġab": 9, "Ã": 10, "©": 11, "'": 12, "s": 13, "'s": 14, "1": 15, "12": 16, "2": 17, "!": 18,
   "ï": 19, "¿": 20, "½": 21},
  "merges": [["a", "b"], ["ab", "c"], ["Ġ", "a"], ["Ġ", "ab"], ["'", "s"], ["1", "2"]]}})";

inline const std::string kWordPieces = R"({"version": "1.0", "added_tokens": [
  {"id": 4, "content": "[MASK]", "single_word": false, "lstrip": false, "rstrip": false,
   "normalized": false, "special": true}],
 "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
  "strip_accents": null, "lowercase": true},
 "pre_tokenizer": {"type": "BertPreTokenizer"},
 "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
 "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
  "max_input_chars_per_word": 12, "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3,
  "[MASK]": 4, "un": 5, "##aff": 6, "##able": 7, "the": 8, "!": 9, "e": 10, "中": 11, "##x": 12}}})";

}  // namespace pipetrain
