// What the names of a model's inputs say: some can be filled in where data lack them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace pipetrain {

/// 1 for *mask*, 0 for token types, the position for position ids.
enum class Filling : std::uint8_t { kOnes, kZeros, kPositions };

/// By the name of an input; none if only data can feed it.
std::optional<Filling> filling_of(std::string_view input);

}  // namespace pipetrain
