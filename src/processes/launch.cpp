// The environment that launchers set for their processes.
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "processes/host_list.h"
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

/// The command line of this process, as a shell takes it.
std::string own_command() {
  const std::string bytes = read_if_file("/proc/self/cmdline", std::size_t{16} << 20).value_or("");
  std::string command;
  for (std::size_t begin = 0; begin < bytes.size();) {
    const std::size_t end = std::min(bytes.find('\0', begin), bytes.size());
    const std::string word = bytes.substr(begin, end - begin);
    const bool plain = !word.empty() && word.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWX"
                                            "YZ0123456789_-+=:,./@%") == std::string::npos;
    command += (command.empty() ? "" : " ") + (plain ? word : fmt::format("'{}'", printable(word)));
    begin = end + 1;
  }
  return command.empty() ? "pipetrain …" : command;
}

[[noreturn]] void refuse(const std::string& variable, const std::string& launcher, int processes,
                         const std::string& where) {
  PT_FAIL(kUsage,
          "{} says that {} started {} processes, but only MPI connects them; start them with: "
          "mpirun -n {}{} {}",
          variable, launcher, processes, processes, where, own_command());
}

}  // namespace

void refuse_unconnected_launchers() {
  if (const int size = number_of("WORLD_SIZE"); size > 1 && number_of("RANK") >= 0) {
    const int local = number_of("LOCAL_WORLD_SIZE");
    refuse("WORLD_SIZE", "torchrun", size, local > 0 && local < size ? " -hostfile HOSTS" : "");
  }
  if (const char* text = std::getenv("TF_CONFIG")) {
    const std::vector<LaunchHost> hosts = parse_tf_config(text).hosts;
    std::string names;
    for (const LaunchHost& host : hosts) names += (names.empty() ? " -H " : ",") + host.name;
    if (hosts.size() > 1)
      refuse("TF_CONFIG", "TensorFlow's launcher", static_cast<int>(hosts.size()), names);
  }
  if (const int workers = number_of("DMLC_NUM_WORKER"); workers > 1 && std::getenv("DMLC_ROLE"))
    refuse("DMLC_NUM_WORKER", "the DMLC tracker", workers, " -hostfile HOSTS");
}

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
