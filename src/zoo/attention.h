// Multi-head attention of a transformer at one context length.
#pragma once

#include <cstdint>
#include <string>

#include "zoo/layers.h"

namespace pipetrain {

struct AttentionSpec {
  std::int64_t context = 0;  // tokens per sample: T
  std::int64_t heads = 0;
  std::int64_t head_width = 0;  // D
  /// Name of a constant (T, T) that is added to the scores; empty: no mask.
  std::string mask;
};

/// softmax(q k' / sqrt(D) + mask) v, head by head, on rows that hold the tokens of all samples.
class AttentionLayers {
 public:
  /// Adds the constants that all layers share; `rows_shape` names the shape (-1, heads * D).
  AttentionLayers(Layers& layers, std::string rows_shape, AttentionSpec spec);

  /// query, key, value (batch * T, heads * D) -> (batch * T, heads * D)
  std::string build(const std::string& name, const std::string& query, const std::string& key,
                    const std::string& value);

 private:
  /// (batch * T, heads * D) -> (batch, T, heads, D), permuted
  std::string to_heads(const std::string& name, const std::string& x,
                       std::vector<std::int64_t> order);

  Layers& layers_;
  std::string rows_shape_;
  AttentionSpec spec_;
};

}  // namespace pipetrain
