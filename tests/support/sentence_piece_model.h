// A small SentencePiece model, whose normalizer makes "a" of "A".
#pragma once

#include <bit>
#include <string>

#include "support/data_files.h"

namespace pipetrain {

/// Fields of a protobuf message.
inline std::string message_field(int number, const std::string& content) {
  std::string length;
  std::size_t rest = content.size();
  for (; rest > 127; rest >>= 7) length += static_cast<char>((rest & 127) | 128);
  return std::string(1, static_cast<char>(number << 3 | 2)) + length + static_cast<char>(rest) +
         content;
}
inline std::string number_field(int number, char value) {
  const int tag = number << 3;
  if (tag < 128) return std::string(1, static_cast<char>(tag)) + value;
  return std::string(1, static_cast<char>((tag & 127) | 128)) + static_cast<char>(tag >> 7) + value;
}

inline std::string sentence_piece(const std::string& text, float score, char kind) {
  return message_field(1, message_field(1, text) + "\x15" +
                              little(std::bit_cast<std::uint32_t>(score), 4) +
                              number_field(3, kind));
}

/// `model`: 1 for unigram, 2 for BPE.
inline std::string sentence_piece_model(char model) {
  std::string trie(4 * 512, '\0');
  const auto set = [&](std::size_t unit, std::uint32_t value) {
    trie.replace(4 * unit, 4, little(value, 4));
  };
  set(0, 1u << 10);                              // children at 1 ^ their byte
  set(1 ^ 'A', ('A' ^ 256u) << 10 | 256 | 'A');  // its leaf at 1 ^ 256
  set(1 ^ 256, 0x80000000u);                     // the first replacement
  const std::string rules = little(trie.size(), 4) + trie + std::string("a\0", 2);
  const std::string space = "\xe2\x96\x81";
  return sentence_piece("<unk>", 0, 2) + sentence_piece("</s>", 0, 3) +
         sentence_piece(space, -2, 1) + sentence_piece("a", -3, 1) + sentence_piece("b", -3, 1) +
         sentence_piece(space + "a", -2.5, 1) + sentence_piece("ab", -4, 5) +
         sentence_piece("<x>", 0, 4) + sentence_piece("bb", -3.5, 1) +
         message_field(2, number_field(3, model) + number_field(42, 1)) +
         message_field(3, message_field(2, rules) + number_field(3, 1) + number_field(4, 1));
}

}  // namespace pipetrain
