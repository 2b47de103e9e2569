// Schedule files: pipetrain's text form, or PyTorch's compute-only CSV where the name ends in .csv.
#pragma once

#include <string>

#include "pipeline/program/program.h"

namespace pipetrain {

/// Whether the value of --schedule is a file: not if it is auto or the name of a schedule, even if
/// a file of that name exists (write "./NAME"); else if it is a path, has a suffix, or exists.
bool names_schedule_file(const std::string& word);

/// Reads and checks the program of a file. Errors (kUsage) name the file and what is wrong.
Program read_schedule_file(const std::string& path);

}  // namespace pipetrain
