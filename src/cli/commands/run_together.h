// Runs a command in several processes, started by mpirun or srun: an error is printed once and ends
// all of them.
#pragma once

#include <filesystem>
#include <functional>

namespace pipetrain {

class ProcessGroup;

/// Runs `body` with the process group; null: a single process. If one process fails, or is silent
/// for `timeout_seconds` while another one waits for it, all exit with its error, which is printed
/// once; this then does not return.
int run_together(double timeout_seconds, const std::function<int(ProcessGroup*)>& body);

/// Redirects the output of this process and its libraries to a file, except for errors that no
/// other process can report. Does nothing if the file cannot be opened.
void keep_output_in(const std::filesystem::path& path);

/// For errors before the processes are connected, which are most likely the same in all of them:
/// processes other than 0 wait here, so that the launcher ends them before they print it again.
void report_first_error_only();

}  // namespace pipetrain
