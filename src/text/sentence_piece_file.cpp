#include "text/sentence_piece_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "base/error.h"
#include "base/protobuf_message.h"
#include "base/read_budget.h"

namespace pipetrain {

namespace {

// sentencepiece_model.proto
constexpr std::uint32_t kPieces = 1, kTrainer = 2, kNormalizer = 3;
constexpr std::uint32_t kModelType = 3, kSpaceAsSuffix = 24, kByteFallback = 35, kEndId = 42,
                        kPaddingId = 43, kUnknownSurface = 44;
constexpr std::size_t kLongestPiece = 1024;
constexpr std::size_t kLongestReplacement = 1024;  // which each character of a text may become
constexpr std::size_t kMostPieces = 1 << 22;
constexpr std::uint64_t kBytesPerPiece = 256;

std::string_view text_in(const ProtobufMessage& field) {
  return {reinterpret_cast<const char*>(field.content.data()), field.content.size()};
}

[[noreturn]] void damaged() { PT_FAIL(kData, "it is no SentencePiece model, or it is damaged"); }

std::int32_t number_in(const ProtobufMessage& field) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(field.value));
}

class ModelReader {
 public:
  SentencePieceFile read(std::string_view content) {
    ProtobufMessage model(std::as_bytes(std::span(content.data(), content.size())));
    while (model.next()) {
      if (model.wire != 2) continue;
      if (model.number == kPieces) read_piece(model.content);
      if (model.number == kTrainer) read_trainer(model.content);
      if (model.number == kNormalizer) read_normalizer(model.content);
    }
    if (!model.good || out_.pieces.empty()) damaged();
    check_pieces();
    return std::move(out_);
  }

 private:
  void read_piece(ProtobufMessage::Bytes bytes) {
    SentencePieceFile::Piece piece;
    ProtobufMessage field(bytes);
    while (field.next()) {
      if (field.number == 1 && field.wire == 2) piece.text = text_in(field);
      if (field.number == 2 && field.wire == 5)
        std::memcpy(&piece.score, field.content.data(), sizeof piece.score);
      if (field.number == 3 && field.wire == 0) {
        PT_CHECK(field.value >= 1 && field.value <= 6, kData, "piece {} is of the unknown type {}",
                 out_.pieces.size(), field.value);
        piece.kind = static_cast<SentencePieceFile::Kind>(field.value);
      }
    }
    if (!field.good || piece.text.empty()) damaged();
    PT_CHECK(piece.text.size() <= kLongestPiece && out_.pieces.size() < kMostPieces, kData,
             "piece {} is longer than {} bytes, or one of more than {}", out_.pieces.size(),
             kLongestPiece, kMostPieces);
    PT_CHECK(std::isfinite(piece.score), kData, "the score of piece {} is not finite",
             out_.pieces.size());
    ReadBudget::charge(kBytesPerPiece);
    out_.pieces.push_back(std::move(piece));
  }

  void read_trainer(ProtobufMessage::Bytes bytes) {
    ProtobufMessage field(bytes);
    while (field.next()) {
      if (field.wire == 2 && field.number == kUnknownSurface) out_.unknown_surface = text_in(field);
      if (field.wire != 0) continue;
      if (field.number == kModelType) {
        PT_CHECK(field.value == 1 || field.value == 2, kData,
                 "a SentencePiece model of words or characters is not supported, only unigram and "
                 "BPE");
        out_.model = static_cast<SentencePieceFile::Model>(field.value);
      }
      if (field.number == kSpaceAsSuffix) out_.space_as_suffix = field.value != 0;
      if (field.number == kByteFallback) out_.has_bytes = field.value != 0;
      if (field.number == kEndId) out_.end_of_text = number_in(field);
      if (field.number == kPaddingId) out_.padding = number_in(field);
    }
    if (!field.good) damaged();
  }

  void read_normalizer(ProtobufMessage::Bytes bytes) {
    ProtobufMessage field(bytes);
    while (field.next()) {
      if (field.number == 2 && field.wire == 2 && !field.content.empty())
        read_rules(text_in(field));
      if (field.wire != 0) continue;
      if (field.number == 3) out_.dummy_prefix = field.value != 0;
      if (field.number == 4) out_.remove_extra_spaces = field.value != 0;
      if (field.number == 5) out_.escape_spaces = field.value != 0;
    }
    if (!field.good) damaged();
  }

  /// The size of the trie, the trie, the replacements.
  void read_rules(std::string_view blob) {
    std::uint32_t size = 0;
    if (blob.size() < sizeof size) damaged();
    std::memcpy(&size, blob.data(), sizeof size);
    blob.remove_prefix(sizeof size);
    if (size > blob.size() || size % sizeof(std::uint32_t) != 0) damaged();
    out_.rules.resize(size / sizeof(std::uint32_t));
    if (size > 0) std::memcpy(out_.rules.data(), blob.data(), size);
    out_.replacements = blob.substr(size);
    if (out_.replacements.empty() || out_.replacements.back() != '\0') damaged();
    for (std::size_t at = 0; at < out_.replacements.size();) {
      const std::size_t length = out_.replacements.find('\0', at) - at;
      PT_CHECK(length <= kLongestReplacement, kData,
               "a rule of its normalizer makes more than {} bytes", kLongestReplacement);
      at += length + 1;
    }
  }

  void check_pieces() {
    using Kind = SentencePieceFile::Kind;
    std::vector<std::string_view> texts;
    std::int32_t unknowns = 0, bytes = 0;
    for (std::size_t id = 0; id < out_.pieces.size(); ++id) {
      texts.emplace_back(out_.pieces[id].text);
      bytes += out_.pieces[id].kind == Kind::kByte;
      if (out_.pieces[id].kind != Kind::kUnknown) continue;
      out_.unknown = static_cast<std::int32_t>(id);
      ++unknowns;
    }
    PT_CHECK(unknowns == 1, kData, "it has {} pieces for what is unknown, instead of one",
             unknowns);
    PT_CHECK(bytes == (out_.has_bytes ? 256 : 0), kData, "it has {} pieces for single bytes",
             bytes);
    std::sort(texts.begin(), texts.end());
    const auto twice = std::adjacent_find(texts.begin(), texts.end());
    PT_CHECK(twice == texts.end(), kData, "it has the piece \"{}\" twice", printable(*twice));
    const auto count = static_cast<std::int32_t>(out_.pieces.size());
    if (out_.end_of_text >= count || out_.end_of_text < 0) out_.end_of_text = -1;
    if (out_.padding >= count || out_.padding < 0) out_.padding = -1;
  }

  SentencePieceFile out_;
};

}  // namespace

SentencePieceFile SentencePieceFile::parse(std::string_view content) {
  static_assert(std::endian::native == std::endian::little);
  return ModelReader().read(content);
}

}  // namespace pipetrain
