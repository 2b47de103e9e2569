// Parts of a kernel's workspace.
#pragma once

#include <cstddef>

namespace pipetrain {

/// Rounds the size of a part up so that the part after it is aligned like the workspace itself
/// (RunContext).
constexpr std::size_t aligned_part(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace pipetrain
