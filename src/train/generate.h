// Text generation with a language model, token by token. The whole text is recomputed for each
// token.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onnx_io/model.h"
#include "text/tokenizer.h"
#include "train/config.h"
#include "train/predict.h"

namespace pipetrain {

/// How the next token is chosen.
struct SamplingOptions {
  double temperature = 0;  // 0: the likeliest token
  std::int64_t top_k = 0;  // sample from this many of the likeliest tokens; 0: all
  double top_p = 1;        // only the likeliest tokens that together have this probability
  std::uint64_t seed = 1;
};
/// The token for the logits of a position; `position` and the seed decide the random number.
TokenId choose_token(std::span<const float> logits, const SamplingOptions& options,
                     std::uint64_t position);

/// Computes a language model's logits for texts of any length up to what the model takes.
class TextModel {
 public:
  /// Error (kModel) for a model without tokens as input or logits for each of them.
  TextModel(const ModelConfig& config, Backend backend, const OnnxModel& model);
  /// Tokens that the model takes at most; 0: not known.
  std::size_t length() const { return fixed_; }
  /// Tokens that it gives logits for.
  std::size_t vocabulary();
  /// Of the token that follows the last of `ids`. Where they are more than the model takes, only
  /// the last ones count.
  std::vector<float> next_logits(std::span<const TokenId> ids);

 private:
  void prepare(std::size_t tokens);
  /// Error (kModel) for a token that the model does not know.
  void check_ids(std::span<const TokenId> ids) const;
  std::unique_ptr<Predictor> make(std::size_t tokens) const;

  ModelConfig config_;
  Backend backend_;
  std::vector<std::string> token_inputs_;  // of shape (batch, tokens)
  std::size_t fixed_ = 0;
  std::unique_ptr<Predictor> predictor_;
  std::size_t capacity_ = 0;  // tokens that the predictor takes
  std::size_t output_ = 0;
};

}  // namespace pipetrain
