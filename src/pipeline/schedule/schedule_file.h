// Schedules in files: our own text, or PyTorch's compute-only table where the name ends in .csv.
#pragma once

#include <string>

#include "pipeline/program/program.h"

namespace pipetrain {

/// Whether a word that says which schedule is a file: not where it is the name of a schedule, even
/// if there is a file of that name (which "./NAME" means); else where it is a path, has a suffix,
/// or is there.
bool names_schedule_file(const std::string& word);

/// Reads and checks the program of a file. Errors (kUsage) name the file and what is wrong.
Program read_schedule_file(const std::string& path);

}  // namespace pipetrain
