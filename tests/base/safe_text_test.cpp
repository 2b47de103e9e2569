#include "base/safe_text.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace pipetrain {
namespace {

TEST(SafeText, TextOfAnyLanguageStays) {
  const std::string text = "Größe 東京 🙂 עברית\tend\n";
  EXPECT_EQ(safe_text(text), text);
}

TEST(SafeText, ControlsAndDirectionsAreEscaped) {
  EXPECT_EQ(safe_text("a\x1b[31mb\rc\x07"), "a\\x1b[31mb\\x0dc\\x07");
  EXPECT_EQ(safe_text("\x7f"), "\\u007f");
  EXPECT_EQ(safe_text("\xc2\x9b"
                      "31m"),
            "\\u009b31m");  // CSI as one character
  EXPECT_EQ(safe_text("\xe2\x80\xae"
                      "x\xe2\x81\xa6"),
            "\\u202ex\\u2066");  // right-to-left override
  EXPECT_EQ(safe_text("\xe2\x80\xa8\xd8\x9c"), "\\u2028\\u061c");
}

TEST(SafeText, BytesThatAreNotUtf8AreEscaped) {
  EXPECT_EQ(safe_text("\xff"
                      "a\xc3"),
            "\\xffa\\xc3");
  EXPECT_EQ(safe_text("\xc0\x8a"), "\\xc0\\x8a");           // a line break in two bytes
  EXPECT_EQ(safe_text("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(safe_text("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(SafeText, OnlyColorsStayInColoredText) {
  EXPECT_EQ(safe_colored_text("\033[48;5;1;38;5;16mF\033[0m\033[2J"),
            "\033[48;5;1;38;5;16mF\033[0m\\x1b[2J");
}

TEST(SafeText, NamesAreCutBetweenCharacters) {
  std::string name(199, 'a');
  name +=
      "é"
      "b";
  EXPECT_EQ(printable(name), std::string(199, 'a') + "…");
  EXPECT_EQ(printable("a\nb\xc2\x9b"), "a\\x0ab\\u009b");
  const std::string word = "aé東🙂";
  const char* const first[] = {"", "a", "aé", "aé東", "aé東🙂", "aé東🙂"};
  const char* const last[] = {"", "🙂", "東🙂", "é東🙂", "aé東🙂", "aé東🙂"};
  for (std::size_t most = 0; most < 6; ++most) {
    EXPECT_EQ(first_characters(word, most), first[most]);
    EXPECT_EQ(last_characters(word, most), last[most]);
  }
}

}  // namespace
}  // namespace pipetrain
