// This machine: its processor, the cores that the process may use, the build that runs.
#pragma once

#include <string>

namespace pipetrain {

/// The processor's name from the system, for example "AMD EPYC 7763 64-Core Processor".
std::string processor_name();
/// The same for all processes of a running machine, also in containers; the host's name where the
/// system does not say.
std::string machine_id();
/// The cores that this process may use: the same text for processes of a machine that share them.
std::string cores_text();
/// Versions of the program and of oneDNN, and the size and time of the executable: another build
/// may have other kernels.
std::string build_name();

}  // namespace pipetrain
