#include <gtest/gtest.h>

#include "base/read_budget.h"
#include "support/data_files.h"
#include "support/small_tokenizers.h"
#include "text/pattern.h"
#include "text/tokenizer.h"

namespace pipetrain {
namespace {

TEST(TokenizerJson, BytePairs) {
  const auto tokenizer = parse_tokenizer(kBytePairs);
  EXPECT_EQ(tokenizer->kind(), "byte-level BPE");
  EXPECT_EQ(tokenizer->vocabulary(), 22u);
  EXPECT_EQ(tokenizer->end_of_text(), 0u);
  EXPECT_EQ(tokenizer->encode("ab abc"), (TokenIds{6, 4, 7}));
  EXPECT_EQ(tokenizer->encode("  abc\n\nab"), (TokenIds{4, 4, 7, 5, 5, 6}));
  EXPECT_EQ(tokenizer->encode("é<|endoftext|>ab's 121"), (TokenIds{10, 11, 0, 6, 14, 4, 16, 15}));
  EXPECT_EQ(tokenizer->encode("abcabc12"), (TokenIds{7, 7, 16}));
  EXPECT_EQ(tokenizer->encode("\xff"), (TokenIds{19, 20, 21}));  // as U+FFFD
  EXPECT_EQ(tokenizer->encode(""), TokenIds{});
  EXPECT_EQ(tokenizer->decode(TokenIds{10, 11, 0, 6, 14, 4, 16, 15}), "éab's 121");
}

TEST(TokenizerJson, SpaceBeforeEachPart) {
  const auto tokenizer = parse_tokenizer(
      replaced(kBytePairs, "\"add_prefix_space\": false", "\"add_prefix_space\": true"));
  EXPECT_EQ(tokenizer->encode("ab<|endoftext|>abc"), (TokenIds{9, 0, 4, 7}));
}

TEST(TokenizerJson, WordPieces) {
  const auto tokenizer = parse_tokenizer(kWordPieces);
  EXPECT_EQ(tokenizer->kind(), "WordPiece, lower-cased");
  EXPECT_EQ(tokenizer->encode("Unaffable THE!"), (TokenIds{5, 6, 7, 8, 9}));
  EXPECT_EQ(tokenizer->encode("thé É"), (TokenIds{8, 10}));
  EXPECT_EQ(tokenizer->encode("中ex the\u200bthe [MASK]"), (TokenIds{11, 10, 12, 1, 4}));
  EXPECT_EQ(tokenizer->encode("unaffableunaffable un!!x"), (TokenIds{1, 5, 9, 9, 1}));
}

TEST(TokenizerJson, TheUnknownTokenMayBeAnAddedOne) {
  const auto with_added = [](const std::string& file, const char* token) {
    return replaced(file, R"("special": true}])",
                    R"("special": true}, )" + std::string(token) + "]");
  };
  const auto pieces =
      parse_tokenizer(with_added(replaced(kWordPieces, R"("[UNK]": 1, )", ""),
                                 R"({"id": 13, "content": "[UNK]", "special": true})"));
  EXPECT_EQ(pieces->encode("the zz un"), (TokenIds{8, 13, 5}));
  const auto pairs = parse_tokenizer(
      with_added(replaced(kBytePairs, R"("unk_token": null)", R"("unk_token": "<unk>")"),
                 R"({"id": 22, "content": "<unk>", "special": true})"));
  EXPECT_EQ(pairs->encode("azb"), (TokenIds{1, 22, 2}));
}

TEST(TokenizerJson, SamplesOfOneTextAndOfTwo) {
  const auto tokenizer = parse_tokenizer(kWordPieces);
  const TokenIds first = tokenizer->encode("the un"), second = tokenizer->encode("unaffable");
  EXPECT_EQ(tokenizer->assemble(first, {}, 100).ids, (TokenIds{2, 8, 5, 3}));
  EXPECT_EQ(tokenizer->begin("the un"), (TokenIds{2, 8, 5}));
  const TypedTokens pair = tokenizer->assemble(first, second, 100);
  EXPECT_EQ(pair.ids, (TokenIds{2, 8, 5, 3, 5, 6, 7, 3}));
  EXPECT_EQ(pair.types, (std::vector<std::uint8_t>{0, 0, 0, 0, 1, 1, 1, 1}));
  // The longer one is cut first.
  const TypedTokens cut = tokenizer->assemble(tokenizer->encode("the un the un"), second, 6);
  EXPECT_EQ(cut.ids, (TokenIds{2, 8, 5, 3, 5, 3}));
  EXPECT_EQ(tokenizer->assemble(first, {}, 1).ids, (TokenIds{2}));
}

std::string refusal(const std::string& content) {
  return data_error([&] {
    const ReadBudget budget(content.size(), kReadingTokenizer);
    parse_tokenizer(content);
  });
}

TEST(TokenizerJson, RefusesByName) {
  const std::string null = "\"normalizer\": null";
  expect_contains(refusal(replaced(kBytePairs, null, R"("normalizer": {"type": "Precompiled"})")),
                  "normalizer \"Precompiled\" is not supported");
  expect_contains(refusal(replaced(kBytePairs, R"({"type": "ByteLevel", "add)",
                                   R"({"type": "Metaspace", "add)")),
                  "pre-tokenizer \"Metaspace\" is not supported");
  expect_contains(refusal(replaced(kBytePairs, R"("type": "BPE")", R"("type": "Unigram")")),
                  "model \"Unigram\" is not supported");
  expect_contains(
      refusal(replaced(kBytePairs, R"("byte_fallback": false)", R"("byte_fallback": true)")),
      "byte_fallback");
  expect_contains(refusal(replaced(kBytePairs, R"("post_processor": null)",
                                   R"("post_processor": {"type": "Other"})")),
                  "post-processor \"Other\" is not supported");
  expect_contains(refusal(replaced(kBytePairs, R"(["a", "b"])", R"(["a", "z"])")),
                  "\"z\" is merged, but not in its vocabulary");
  expect_contains(refusal(replaced(kBytePairs, R"("abc": 7)", R"("abc": 1e30)")), "out of range");
  expect_contains(refusal(replaced(kBytePairs, R"("abc": 7)", R"("abc": "7")")), "out of range");
  for (const char* number : {"1e+30", "-1e+30", "2.5"}) {
    expect_contains(refusal(replaced(kWordPieces, R"("max_input_chars_per_word": 12)",
                                     R"("max_input_chars_per_word": )" + std::string(number))),
                    "max_input_chars_per_word is " + std::string(number) + ", not an integer");
  }
  expect_contains(refusal(replaced(kWordPieces, R"("unk_token": "[UNK]")", R"("unk_token": "?")")),
                  "unknown token \"?\"");
  std::string ids = "0";
  for (int i = 0; i < 64; ++i) ids += ",0";
  expect_contains(
      refusal(replaced(kBytePairs, R"("post_processor": null)",
                       R"("post_processor": {"type": "TemplateProcessing", "special_tokens": )"
                       R"({"x": {"ids": [)" +
                           ids + R"(]}}, "single": [{"SpecialToken": {"id": "x"}}], "pair": []})")),
      "token \"x\" has more than 64 ids");
  const auto with_single = [&](const std::string& single) {
    return refusal(replaced(kBytePairs, R"("post_processor": null)",
                            R"("post_processor": {"type": "TemplateProcessing", "special_tokens": )"
                            R"({"x": {"ids": [70000]}}, "single": [)" +
                                single + R"(], "pair": []})"));
  };
  expect_contains(with_single(R"({"SpecialToken": {"id": "x"}})"), "template has the id 70000");
  expect_contains(with_single(R"({"Sequence": {"id": "B"}})"), "template of one text");
  expect_contains(refusal("{}"), "no tokenizer.json");
  expect_contains(refusal("{\"model\": [[["), "no tokenizer.json");
  expect_contains(refusal("{\"model\":" + std::string(100, '[')), "nested");
}

TEST(TokenizerJson, PatternsThatMeanSomethingElseAreRefused) {
  const auto with = [](const std::string& pattern) {
    return replaced(kBytePairs, R"("pre_tokenizer": {)",
                    R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split",
 "behavior": "Isolated", "pattern": {"Regex": ")" +
                        pattern + R"("}}, {"type": "ByteLevel"}]},
 "other": {)");
  };
  for (const char* pattern : {"\\\\h+", "[a-z&&b]", "(?m:a)", "a{1,3}+", "^a", "[[:alpha:]]", "a*",
                              "\\\\p{^L}", "(a", "\\\\1", "(*ACCEPT)a"})
    expect_contains(refusal(with(pattern)), "pattern");
  EXPECT_EQ(parse_tokenizer(with("[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}|(?i:'s)"))
                ->vocabulary(),
            22u);
}

TEST(TokenizerJson, LongRunsOfBlanksAreSplit) {
  // As Llama 3's pattern begins to look for the end of a line from each of them.
  const Pattern pattern("\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+");
  constexpr std::size_t kBlanks = 3'000'000;
  const std::vector<TextRange> got = pattern.matches(std::string(kBlanks, ' ') + "x");
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].end, kBlanks - 1);
}

TEST(TokenizerJson, AFileOfAnotherKind) {
  expect_contains(refusal(std::string("\x89PNG\0", 5)), "no tokenizer.json, no vocab.txt");
  expect_contains(refusal("a\nb\n"), "no line \"[UNK]\"");
}

TEST(VocabularyText, CasedIfItHasCapitals) {
  const std::string small = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n##s\n";
  EXPECT_EQ(parse_tokenizer(small)->encode("THEs [MASK]"), (TokenIds{5, 6, 4}));
  EXPECT_EQ(parse_tokenizer(small + "The\n")->encode("The THE"), (TokenIds{7, 1}));
}

}  // namespace
}  // namespace pipetrain
