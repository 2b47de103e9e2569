#pragma once

#include <string>

namespace pipetrain {

/// The build ID that the linker gave the running program, in hexadecimal: it differs wherever code
/// or constants do. Empty where there is none.
std::string program_id();

}  // namespace pipetrain
