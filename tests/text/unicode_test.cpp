// Expected: Python 3.11's str and unicodedata.
#include "text/unicode.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace pipetrain {
namespace {

std::string form(const char* text, NormalForm which) {
  return utf8_of(normalized(characters_of(text), which));
}

TEST(Unicode, WhatIsNotUtf8CountsByLongestBeginnings) {
  const std::string one = "\xef\xbf\xbd";
  EXPECT_EQ(valid_utf8("a\xff"
                       "b"),
            "a" + one + "b");
  EXPECT_EQ(valid_utf8("\xe2\x96"), one);
  EXPECT_EQ(valid_utf8("\xf0\x9f\x91"
                       "a"),
            one + "a");
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), one + one + one);  // a surrogate
  EXPECT_EQ(valid_utf8("\xc0\xaf"), one + one);            // overlong
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), one + one + one + one);
  EXPECT_EQ(valid_utf8("\xf0\x9f\x91\xa8 é 中"), "\xf0\x9f\x91\xa8 é 中");
}

TEST(Unicode, NormalForms) {
  EXPECT_EQ(form("é", NormalForm::kD), "e\u0301");
  EXPECT_EQ(form("e\u0301", NormalForm::kC), "é");
  EXPECT_EQ(form("ﬁ½", NormalForm::kKC), "fi1\u20442");
  EXPECT_EQ(form("한", NormalForm::kD), "\u1112\u1161\u11ab");
  EXPECT_EQ(form("\u1112\u1161\u11ab", NormalForm::kC), "한");
  // Marks in canonical order; those of the same class keep theirs.
  EXPECT_EQ(form("a\u0301\u0323\u0300", NormalForm::kD), "a\u0323\u0301\u0300");
  EXPECT_EQ(form("a\u0301\u0323", NormalForm::kC), "\u1ea1\u0301");
}

TEST(Unicode, ManyMarksAreSortedInNoTime) {
  std::u32string marks = U"a";
  for (int i = 0; i < 200000; ++i) marks += i % 2 ? U'\u0323' : U'\u0301';
  const double start = thread_cpu_seconds();
  const std::u32string sorted = normalized(marks, NormalForm::kD);
  EXPECT_LT(thread_cpu_seconds() - start, 2);  // squared, their number would take many times that
  EXPECT_EQ(sorted[1], U'\u0323');
  EXPECT_EQ(sorted.back(), U'\u0301');
}

TEST(Unicode, Classes) {
  for (const char32_t c : U" \t\u0085\u00a0\u2028\u3000") EXPECT_EQ(is_white_space(c), c != 0);
  EXPECT_FALSE(is_white_space(U'\u180e'));
  EXPECT_TRUE(is_other(U'\u200d') && is_other(U'\x7f') && is_other(U'\ue000'));
  EXPECT_FALSE(is_other(U'a'));
  EXPECT_TRUE(is_nonspacing_mark(U'\u0301') && !is_nonspacing_mark(U'\u0903'));
  std::u32string lower;
  for (const char32_t c : U"İÀẞ") {
    if (c) append_lower(lower, c);
  }
  EXPECT_EQ(lower, U"i\u0307àß");
}

}  // namespace
}  // namespace pipetrain
