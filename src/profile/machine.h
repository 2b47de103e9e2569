// Which processor and which build the measurements belong to.
#pragma once

#include <string>

namespace pipetrain {

/// The processor's name from the system, for example "AMD EPYC 7763 64-Core Processor".
std::string processor_name();
/// Versions of the program and of oneDNN, and the size and time of the executable: another build
/// may have other kernels.
std::string build_name();

}  // namespace pipetrain
