#include <gtest/gtest.h>

#include <cmath>

#include "base/read_budget.h"
#include "support/sentence_piece_model.h"
#include "support/small_tokenizers.h"
#include "text/tokenizer.h"

namespace pipetrain {
namespace {

TEST(SentencePiece, UnigramAndBpe) {
  for (const char kind : {1, 2}) {
    const auto tokenizer = parse_tokenizer(sentence_piece_model(kind));
    EXPECT_EQ(tokenizer->kind(), kind == 1 ? "SentencePiece, unigram" : "SentencePiece, BPE");
    EXPECT_EQ(tokenizer->end_of_text(), 1u);
    EXPECT_EQ(tokenizer->encode("Ab  abb"), (TokenIds{5, 4, 5, 8}));
    EXPECT_EQ(tokenizer->encode(" <x>a zz bb "), (TokenIds{2, 7, 3, 2, 0, 2, 8}));
    EXPECT_EQ(tokenizer->encode("\xff"
                                "ab"),
              (TokenIds{2, 0, 3, 4}));
    EXPECT_EQ(tokenizer->encode("bä"), (TokenIds{2, 4, 0}));
    EXPECT_EQ(tokenizer->encode(""), TokenIds{});
    EXPECT_EQ(tokenizer->decode(TokenIds{5, 4, 5, 8, 1}), "ab abb");
    EXPECT_EQ(tokenizer->decode(TokenIds{2, 7, 3, 2, 0, 2, 8}), "<x>a  \u2047  bb");
  }
}

std::string refused(const std::string& model) {
  return data_error([&] {
    const ReadBudget budget(model.size(), kReadingTokenizer);
    parse_tokenizer(model);
  });
}

TEST(SentencePiece, DamagedModelsAreRefused) {
  const std::string model = sentence_piece_model(1);
  expect_contains(refused(model.substr(0, 40)), "damaged");
  expect_contains(refused(sentence_piece_model(4)), "words or characters is not supported");
  expect_contains(refused(model + sentence_piece("a", 0, 1)), "\"a\" twice");
  expect_contains(refused(model + sentence_piece("<u>", 0, 2)), "2 pieces for what is unknown");
  expect_contains(refused(model + sentence_piece("<0x00>", 0, 6)), "1 pieces for single bytes");
  expect_contains(refused(model + sentence_piece("z", INFINITY, 1)), "not finite");
  expect_contains(refused(model + sentence_piece(std::string(1025, 'z'), 0, 1)), "longer than");
}

// The library of that name would read beyond its memory.
TEST(SentencePiece, RulesThatPointNowhereAreNoRules) {
  std::string rules = little(8, 4) + little(0xfffffc00u, 4) + little(0, 4) + std::string("a\0", 2);
  const std::string normalizer = message_field(3, message_field(2, rules));
  const auto tokenizer = parse_tokenizer(sentence_piece_model(1) + normalizer);
  EXPECT_EQ(tokenizer->encode("bb"), (TokenIds{2, 8}));
  // An empty trie: sanitizers see what is done with no memory.
  const std::string none = message_field(2, little(0, 4) + std::string("a\0", 2));
  EXPECT_EQ(parse_tokenizer(sentence_piece_model(1) + message_field(3, none))->encode("bb"),
            (TokenIds{2, 8}));
  const std::string long_text(1025, 'a');
  expect_contains(refused(sentence_piece_model(1) +
                          message_field(3, message_field(2, little(0, 4) + long_text + '\0'))),
                  "makes more than 1024 bytes");
  rules.back() = 'a';  // no end
  expect_contains(refused(sentence_piece_model(1) + message_field(3, message_field(2, rules))),
                  "damaged");
}

}  // namespace
}  // namespace pipetrain
