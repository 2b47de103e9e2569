// Lists of hosts, and what launchers are told and say.
#include "processes/launcher.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace pipetrain {
namespace {

using Hosts = std::vector<LaunchHost>;

std::string refused(const char* text) {
  try {
    parse_hosts(text, "hosts");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
  return {};
}

TEST(HostList, FilesAndDiscoveryScripts) {
  EXPECT_EQ(parse_hosts(
                "# mine\nnode1 slots=2\nnode2:4\n\n  10.0.0.3 \nnode4 slots=1 max_slots=3 # x\r\n",
                "hosts"),
            (Hosts{{"node1", 2}, {"node2", 4}, {"10.0.0.3", 1}, {"node4", 1}}));
  EXPECT_EQ(parse_hosts("a\na:2\n", "hosts"), (Hosts{{"a", 3}})) << "as Open MPI adds them";
  EXPECT_TRUE(parse_hosts("", "hosts").empty());
  for (const char* line : {"a slots=0", "a slots=x", "a:x", "a:", "a b", "-H", "a;reboot", "$(a)",
                           "a slots=99999999999", "Traceback (most recent call last):", "\x1b[0m"})
    EXPECT_NE(refused(line), "") << line;
  EXPECT_EQ(refused("a\n<html>\n"),
            "hosts, line 2: \"<html>\" is no host; write \"node1 slots=2\" or \"node1:2\"");
  EXPECT_EQ(refused("fe80::1 slots=2\n"),
            "hosts, line 1: mpirun takes no IPv6 addresses; give a host name in place of "
            "\"fe80::1 slots=2\"");
}

TEST(HostList, TensorFlow) {
  const TensorFlowCluster chief = parse_tf_config(
      R"({"cluster": {"worker": ["w0:1", "w1:1"], "chief": ["c:2222"], "ps": ["p:1"]},
          "task": {"type": "chief", "index": 0}})");
  EXPECT_EQ(chief.hosts, (Hosts{{"c", 1}, {"w0", 1}, {"w1", 1}}));
  EXPECT_TRUE(chief.starts);
  EXPECT_FALSE(parse_tf_config(R"({"cluster": {"chief": ["c:1"], "worker": ["w:1"]},
                                   "task": {"type": "worker", "index": 0}})")
                   .starts);
  EXPECT_TRUE(parse_tf_config(R"({"cluster": {"worker": ["w0:1", "w1:1"]},
                                  "task": {"type": "worker", "index": "0"}})")
                  .starts);
  const TensorFlowCluster second = parse_tf_config(
      R"({"cluster": {"worker": ["w0:1", "w1:1"]}, "task": {"type": "worker", "index": 1}})");
  EXPECT_FALSE(second.starts);
  EXPECT_EQ(second.task, "worker 1");
  EXPECT_FALSE(second.evaluates);
  const TensorFlowCluster evaluator = parse_tf_config(
      R"({"cluster": {"chief": ["c:1"], "worker": ["w:1"]}, "task": {"type": "evaluator", "index": 0}})");
  EXPECT_TRUE(evaluator.evaluates);
  EXPECT_FALSE(evaluator.starts);
  EXPECT_EQ(evaluator.hosts, (Hosts{{"c", 1}, {"w", 1}}));
  for (const char* text : {"", "{", "[]", "{\"cluster\": 3}", "{\"cluster\": {\"worker\": 3}}"})
    EXPECT_TRUE(parse_tf_config(text).hosts.empty()) << text;
}

TEST(HostList, Slurm) {
  EXPECT_EQ(hosts_of_slurm({"a", "b", "c"}, "2(x2),1"), (Hosts{{"a", 2}, {"b", 2}, {"c", 1}}));
  EXPECT_EQ(hosts_of_slurm({"a", "b"}, ""), (Hosts{{"a", 1}, {"b", 1}}));
  for (const char* tasks : {"2", "x", "2(x", "2(x0)", "2(x3)"})
    EXPECT_THROW(hosts_of_slurm({"a", "b"}, tasks), Error) << tasks;
}

TEST(Launcher, Commands) {
  ::unsetenv("SLURM_CPUS_PER_TASK");  // of a job that this test runs in
  const auto text = [](const std::vector<std::string>& words) {
    std::string all;
    for (const std::string& word : words) all += (all.empty() ? "" : " ") + word;
    return all;
  };
  EXPECT_EQ(text(launcher_command(Launcher::kMpirun, {{"a", 2}, {"b", 1}}, {"p", "train"}, {"X"})),
            "mpirun -mca oob_tcp_keepalive_time 5 -mca oob_tcp_keepalive_intvl 1 -mca "
            "oob_tcp_keepalive_probes 3 -mca odls_base_sigkill_timeout 0 -tag-output -bind-to none "
            "-map-by slot -host a:2,b:1 -n 3 -x X p "
            "train");
  EXPECT_EQ(text(launcher_command(Launcher::kSrun, {{"a", 2}, {"b", 2}}, {"p"}, {"X"})),
            "srun -l -K1 -w a,b -N 2 -n 4 --ntasks-per-node=2 --mpi=pmix -m block --export=ALL p");
  EXPECT_EQ(host_of_process({{"a", 2}, {"b", 1}}, 1), "a");
  EXPECT_EQ(host_of_process({{"a", 2}, {"b", 1}}, 2), "b");
  EXPECT_EQ(host_of_process({{"a", 2}, {"b", 1}}, 3), "");
  EXPECT_EQ(host_of_process({{"a", 2}}, -1), "");
}

TEST(Launcher, SrunIsToldTheCoresOfAProcess) {
  const auto told = [](const char* option) {
    return std::ranges::count(launcher_command(Launcher::kSrun, {{"a", 1}}, {"p"}, {}),
                              std::string(option));
  };
  ::setenv("SLURM_CPUS_PER_TASK", "16", 1);
  EXPECT_EQ(told("--cpus-per-task=16"), 1);
  ::setenv("SRUN_CPUS_PER_TASK", "8", 1);  // which srun reads itself
  EXPECT_EQ(told("--cpus-per-task=16"), 0);
  ::unsetenv("SLURM_CPUS_PER_TASK");
  ::unsetenv("SRUN_CPUS_PER_TASK");
}

TEST(Launcher, OrderOfHosts) {
  const Hosts hosts = {{"a", 2}, {"b", 1}, {"c", 1}};
  const auto is_b = [](const std::string& name) { return name == "b"; };
  const auto is_none = [](const std::string&) { return false; };
  EXPECT_EQ(in_launcher_order(Launcher::kMpirun, hosts, is_b),
            (Hosts{{"b", 1}, {"a", 2}, {"c", 1}}));
  EXPECT_EQ(in_launcher_order(Launcher::kMpirun, hosts, is_none), hosts);
  EXPECT_EQ(in_launcher_order(Launcher::kSrun, hosts, is_b), hosts);
}

TEST(HostList, ThisHost) {
  char own[256] = {};
  gethostname(own, sizeof own - 1);
  for (const std::string& name : {std::string(own), own + std::string(".example"),
                                  std::string("localhost"), std::string("127.0.0.1")})
    EXPECT_TRUE(is_this_host(name)) << name;
  for (const char* name : {"", "192.0.2.1", "2001:db8::1", "host.invalid"})
    EXPECT_FALSE(is_this_host(name)) << name;
}

TEST(Launcher, LinesOfProcesses) {
  using Line = std::optional<std::pair<int, std::string>>;
  EXPECT_EQ(ProcessLines(Launcher::kMpirun).take("[1,12]<stderr>:a: b"), Line({12, "a: b"}));
  EXPECT_EQ(ProcessLines(Launcher::kMpirun).take("[1,0]<stdout>:"), Line({0, ""}));
  EXPECT_EQ(ProcessLines(Launcher::kSrun).take(" 3: a"), Line({3, "a"}));
  for (const char* line : {"", "[", "[1,x]<stderr>:a", "[node1:77] a", "ssh: no", "[1,2]<stdin>:a"})
    EXPECT_EQ(ProcessLines(Launcher::kMpirun).take(line), Line()) << line;
  for (const char* line : {"", "srun: error: a", "slurmstepd: x", "12 a"})
    EXPECT_EQ(ProcessLines(Launcher::kSrun).take(line), Line()) << line;
  EXPECT_EQ(killed_process_in(
                Launcher::kMpirun,
                "mpirun noticed that process rank 3 with PID 0 on node a exited on signal 9 "
                "(Killed)."),
            3);
  EXPECT_EQ(killed_process_in(Launcher::kMpirun, "noticed that process rank x"), -1);
  EXPECT_EQ(killed_process_in(Launcher::kSrun, "srun: error: a: task 3: Killed"), 3);
  EXPECT_EQ(killed_process_in(Launcher::kSrun, "srun: error: a: task 3: Exited with exit code 7"),
            -1);
}

TEST(Launcher, LinesThatComeInPieces) {
  using Line = std::optional<std::pair<int, std::string>>;
  ProcessLines lines(Launcher::kMpirun);
  EXPECT_EQ(lines.take("[1,0]<stdout>:{\"a\":[1,1]<stdout>:x"), Line({1, "x"}));
  EXPECT_EQ(lines.take("[1,0]<stdout>:1}"), Line({0, "{\"a\":1}"}));
  EXPECT_EQ(lines.take("[1,0]<stdout>:[[1,0]<stdout>:2][1,2]<stdout>:c[1,0]<stdout>:[1,3]"),
            Line({0, "[2][1,3]"}));
  EXPECT_EQ(lines.take_begun(), (std::map<int, std::string>{{2, "c"}}));
  EXPECT_TRUE(lines.take_begun().empty());
  EXPECT_EQ(ProcessLines(Launcher::kSrun).take("0: a[1,1]<stdout>:b"),
            Line({0, "a[1,1]<stdout>:b"}));
}

constexpr int exited(int code) { return code << 8; }

TEST(Launcher, WhatItsEndSays) {
  EXPECT_EQ(end_of_launcher(exited(0), {.code = 0, .steps = 9}).code, 0);
  // Training's own word goes before that of the launcher, however that has ended.
  const ProcessEnd device = end_of_launcher(SIGKILL, {.code = 7, .has_begun = true, .steps = 9});
  EXPECT_EQ(device.code, 7);
  EXPECT_EQ(device.signal, 0);
  EXPECT_FALSE(device.from_outside);
  EXPECT_TRUE(device.trained);
  EXPECT_EQ(device.steps, 9);
  EXPECT_EQ(end_of_launcher(exited(137), {.steps = 9, .from_step = 4}).from_step, 4);
  EXPECT_TRUE(end_of_launcher(exited(143), {.code = 143, .is_interrupted = true}).from_outside);
  // A process was killed: nobody could say more.
  const ProcessEnd killed = end_of_launcher(exited(137), {});
  EXPECT_EQ(killed.signal, SIGKILL);
  EXPECT_FALSE(killed.from_outside);
  EXPECT_TRUE(end_of_launcher(exited(143), {}).from_outside);
  EXPECT_EQ(end_of_launcher(exited(2), {}).code, 2);
  EXPECT_FALSE(end_of_launcher(exited(2), {}).from_outside);
  for (const int status : {SIGKILL, SIGTERM, SIGSEGV, exited(1), exited(213), exited(127)})
    EXPECT_TRUE(end_of_launcher(status, {}).from_outside) << status;
}

}  // namespace
}  // namespace pipetrain
