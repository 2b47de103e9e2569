// The environment that launchers set for their processes.
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "processes/processes.h"

namespace pipetrain {
namespace {

/// A number from the environment; -1 if it is not set.
int number_of(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text || !*text) return -1;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  return *end == '\0' && value >= 0 && value < 1'000'000 ? static_cast<int>(value) : -1;
}

}  // namespace

Launch launch_of_environment() {
  struct Names {
    const char *size, *rank, *launcher;
  };
  // Open MPI's mpirun; MPICH's and Intel's, and srun --mpi=pmi2; srun --mpi=pmix.
  for (const Names& names : {Names{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun"},
                             Names{"PMI_SIZE", "PMI_RANK", "mpiexec"},
                             Names{"SLURM_STEP_NUM_TASKS", "PMIX_RANK", "srun"}}) {
    const int size = number_of(names.size);
    const int rank = number_of(names.rank);
    if (size >= 1 && rank >= 0) return {size, rank, names.launcher};
  }
  const int tasks = number_of("SLURM_STEP_NUM_TASKS");
  const int task = number_of("SLURM_PROCID");
  if (tasks > 1 && task >= 0) {
    PT_FAIL(kUsage,
            "srun started {} processes that are not connected to each other; use srun --mpi=pmix, "
            "or mpirun",
            tasks);
  }
  return {};
}

}  // namespace pipetrain
