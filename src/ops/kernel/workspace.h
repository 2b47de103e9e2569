// Parts of a kernel's workspace.
#pragma once

#include <cstddef>

namespace pipetrain {

/// The bytes of a part behind which the next one is as aligned as the workspace itself
/// (RunContext).
constexpr std::size_t aligned_part(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace pipetrain
