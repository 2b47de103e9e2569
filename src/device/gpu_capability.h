// Which GPUs the kernels of a build run on.
#pragma once

#include <string>
#include <string_view>

namespace pipetrain {

/// Whether kernels compiled for `architectures` run on a GPU of compute capability major.minor.
/// `architectures` is CMake's list with commas: "80-real" is machine code for 8.0 and later minor
/// versions, "90a-real" for 9.0 alone, "120-virtual" is compiled by the driver of any newer GPU,
/// "90" is both. Names such as "native" are taken to run.
bool has_kernels_for(std::string_view architectures, int major, int minor);

/// The same in words: "8.0, 9.0, 12.0 and newer".
std::string capabilities_text(std::string_view architectures);

}  // namespace pipetrain
