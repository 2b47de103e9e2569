// A command in several processes, which mpirun or srun has started: one speaks, all end together.
#pragma once

#include <functional>

namespace pipetrain {

class ProcessGroup;

/// Runs `body` with the processes that belong together; null: there is one. When it fails in one
/// process, all end with that process's error, which is printed once; this then does not return.
int run_together(const std::function<int(ProcessGroup*)>& body);

/// Before several processes know of each other an error is that of all of them, most likely: those
/// that do not lead wait here a while, so that the launcher ends them before they repeat it.
void let_the_first_speak();

}  // namespace pipetrain
