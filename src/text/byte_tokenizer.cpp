#include <memory>

#include "text/tokenizer.h"

namespace pipetrain {
namespace {

/// Texts without a tokenizer: the tokens are the bytes.
class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    kind_ = "bytes";
    vocabulary_ = kByteTokens;
  }
  void encode(std::string_view text, WordCache& /*cache*/, TokenIds& out) const override {
    for (const char byte : text) out.push_back(static_cast<unsigned char>(byte));
  }
  std::string decode(std::span<const TokenId> ids) const override {
    return {ids.begin(), ids.end()};
  }
  std::optional<TokenId> find(std::string_view token) const override {
    if (token.size() != 1) return {};
    return static_cast<unsigned char>(token[0]);
  }
};

}  // namespace

std::shared_ptr<const Tokenizer> byte_tokenizer() {
  return std::make_shared<const ByteTokenizer>();
}

}  // namespace pipetrain
