#include "base/filling.h"

namespace pipetrain {

std::optional<Filling> filling_of(std::string_view input) {
  const auto has = [&](std::string_view word) {
    return input.find(word) != std::string_view::npos;
  };
  if (has("mask")) return Filling::kOnes;
  if (has("token_type") || has("segment_ids")) return Filling::kZeros;
  if (has("position_ids") || has("positions")) return Filling::kPositions;
  return std::nullopt;
}

}  // namespace pipetrain
