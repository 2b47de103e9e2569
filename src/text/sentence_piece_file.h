// The content of a SentencePiece model: pieces with scores, and how texts are normalized. It is not
// read by libsentencepiece, which trusts the offsets in a model's trie: of 10,000 models with
// mutated bytes, 430 end version 0.1.97 with a segmentation fault when it normalizes texts, and
// AddressSanitizer finds reads outside of its memory and of freed memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipetrain {

struct SentencePieceFile {
  enum class Kind : std::uint8_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  enum class Model : std::uint8_t { kUnigram = 1, kBpe };
  struct Piece {
    std::string text;
    float score = 0;
    Kind kind = Kind::kNormal;
  };
  std::vector<Piece> pieces;
  Model model = Model::kUnigram;
  std::int32_t end_of_text = 2, padding = -1, unknown = 0;  // -1: none
  bool space_as_suffix = false;
  std::string unknown_surface = " \xe2\x81\x87 ";
  // The normalizer: a trie from what is replaced to places in `replacements`.
  std::vector<std::uint32_t> rules;
  std::string replacements;  // each ends with a zero
  bool dummy_prefix = true, remove_extra_spaces = true, escape_spaces = true;
  bool has_bytes = false;  // characters without a piece become their bytes

  /// Errors (kData) for what is no such model, or is not supported.
  static SentencePieceFile parse(std::string_view content);
};

}  // namespace pipetrain
