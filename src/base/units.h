// Human-readable quantities.
#pragma once

#include <cstddef>
#include <string>

namespace pipetrain {

/// "512 B", "19.2 KiB", "1.50 GiB": three significant digits at most.
std::string bytes_text(std::size_t bytes);
/// "3.20 us", "14.1 ms", "2.50 s".
std::string seconds_text(double seconds);

}  // namespace pipetrain
