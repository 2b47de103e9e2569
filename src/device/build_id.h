// Which build this is: program and plugin share classes, so they must come from the same one.
#pragma once

#include <string_view>

namespace pipetrain {

/// Version, compiler, and a hash of the headers that both sides share.
inline constexpr std::string_view kBuildId = PIPETRAIN_BUILD_ID;

}  // namespace pipetrain
