// How a process learns from its environment which of how many it is.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "base/error.h"
#include "processes/processes.h"

namespace pipetrain::test {
namespace {

TEST(Launch, IsReadFromTheEnvironment) {
  const auto with = [](const std::map<std::string, std::string>& variables, const auto& look) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    look();
    for (const auto& [name, value] : variables) unsetenv(name.c_str());
  };
  EXPECT_EQ(launch_of_environment().size, 1);
  with({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}, {"PMIX_RANK", "3"}}, [] {
    EXPECT_EQ(launch_of_environment().size, 4);
    EXPECT_EQ(launch_of_environment().rank, 3);
  });
  with({{"SLURM_STEP_NUM_TASKS", "2"}, {"PMIX_RANK", "1"}, {"SLURM_PROCID", "1"}}, [] {
    EXPECT_EQ(launch_of_environment().size, 2);
    EXPECT_EQ(launch_of_environment().launcher, "srun");
  });
  with({{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}},
       [] { EXPECT_THROW(launch_of_environment(), Error); });
  // A batch script that was given several tasks is one process.
  with({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}},
       [] { EXPECT_EQ(launch_of_environment().size, 1); });
}

/// torchrun's, TensorFlow's and DMLC's variables, as their documentation gives them.
TEST(Launch, ProcessesThatMpiDoesNotConnectAreRefused) {
  const auto error_with = [](const std::map<std::string, std::string>& variables) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    std::string text;
    try {
      refuse_unconnected_launchers();
    } catch (const Error& error) {
      text = fmt::format("{} {}", static_cast<int>(error.kind()), error.what());
    }
    for (const auto& [name, value] : variables) unsetenv(name.c_str());
    return text;
  };
  EXPECT_EQ(error_with({{"WORLD_SIZE", "4"}, {"RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}})
                .rfind("2 WORLD_SIZE says that torchrun started 4 processes, but only MPI connects "
                       "them; start them with: mpirun -n 4 ",
                       0),
            0U);
  EXPECT_NE(error_with({{"WORLD_SIZE", "4"}, {"RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}})
                .find("mpirun -n 4 -hostfile HOSTS"),
            std::string::npos);
  const std::string cluster =
      R"({"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"], "ps": ["d:2222"]},)"
      R"( "task": {"type": "worker", "index": 0}})";
  EXPECT_NE(error_with({{"TF_CONFIG", cluster}}).find("mpirun -n 3 -H a,b,c"), std::string::npos);
  EXPECT_NE(error_with({{"DMLC_ROLE", "worker"}, {"DMLC_NUM_WORKER", "2"}}).find("mpirun -n 2 "),
            std::string::npos);
  // One process, and what is no cluster.
  EXPECT_EQ(error_with({{"WORLD_SIZE", "1"}, {"RANK", "0"}}), "");
  EXPECT_EQ(error_with({{"TF_CONFIG", R"({"cluster": {"worker": ["a:1"]}})"}}), "");
  EXPECT_EQ(error_with({{"TF_CONFIG", "not JSON"}, {"DMLC_ROLE", "worker"}}), "");
}

}  // namespace
}  // namespace pipetrain::test
