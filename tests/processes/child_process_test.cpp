// Programs that are started, read and ended with all that they have started.
#include "processes/child_process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include "base/clock.h"

namespace pipetrain {
namespace {

constexpr double kLong = 60;

struct Output {
  std::vector<std::string> out, error;
  ChildProcess::OnLine taker() {
    return [this](ChildProcess::Stream stream, const std::string& line) {
      (stream == ChildProcess::Stream::kOut ? out : error).push_back(line);
    };
  }
};

bool is_alive(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string line;
  return std::getline(file, line) && line.substr(line.rfind(')') + 2, 1) != "Z";
}

TEST(ChildProcess, LinesAndExitCode) {
  Output output;
  ChildProcess child({"sh", "-c", "echo a; echo b >&2; printf 'c\\n\\nd'; exit 3"}, {},
                     output.taker());
  ASSERT_TRUE(child.wait(steady_seconds() + kLong));
  EXPECT_EQ(output.out, (std::vector<std::string>{"a", "c", "", "d"}));
  EXPECT_EQ(output.error, std::vector<std::string>{"b"});
  EXPECT_EQ(WEXITSTATUS(child.status()), 3);
}

TEST(ChildProcess, NoSuchProgram) {
  Output output;
  ChildProcess child({"/no/such/program"}, {}, output.taker());
  ASSERT_TRUE(child.wait(steady_seconds() + kLong));
  EXPECT_EQ(WEXITSTATUS(child.status()), 127);
}

TEST(ChildProcess, DoesNotGetSomeVariables) {
  ::setenv("OF_ANOTHER_LAUNCHER", "1", 1);
  Output output;
  ChildProcess child({"sh", "-c", "echo \"<$OF_ANOTHER_LAUNCHER>\""}, {"OF_ANOTHER_LAUNCHER"},
                     output.taker());
  ASSERT_TRUE(child.wait(steady_seconds() + kLong));
  EXPECT_EQ(output.out, std::vector<std::string>{"<>"});
}

TEST(ChildProcess, WaitReturnsInTimeAndWhenItIsWoken) {
  Output output;
  ChildProcess child({"sleep", "1000"}, {}, output.taker());
  EXPECT_FALSE(child.wait(steady_seconds() + 0.01));
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  ASSERT_EQ(::write(pipe[1], "x", 1), 1);
  const double begin = steady_seconds();
  EXPECT_FALSE(child.wait(begin + kLong, pipe[0]));
  EXPECT_LT(steady_seconds() - begin, kLong);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

// A launcher that is killed leaves its processes behind; so does one that ends too early.
TEST(ChildProcess, NothingIsLeftOfIt) {
  adopt_orphans();
  for (const char* script :
       {"setsid sleep 1000 & echo $!; kill -9 $$", "setsid sleep 1000 & echo $!"}) {
    Output output;
    ChildProcess child({"sh", "-c", script}, {}, output.taker());
    ASSERT_TRUE(child.wait(steady_seconds() + kLong));
    ASSERT_EQ(output.out.size(), 1U);
    EXPECT_FALSE(is_alive(output.out.front()));
  }
}

// As a shell that has replaced itself by this program leaves it.
TEST(ChildProcess, WhatRanBeforeItGoesOn) {
  const pid_t before = ::fork();
  if (before == 0) {
    ::execlp("sleep", "sleep", "1000", nullptr);
    ::_exit(127);
  }
  Output output;
  ChildProcess child({"true"}, {}, output.taker());
  EXPECT_TRUE(child.wait(steady_seconds() + kLong));
  EXPECT_TRUE(is_alive(std::to_string(before)));
  ::kill(before, SIGKILL);
  ::waitpid(before, nullptr, 0);
}

TEST(ChildProcess, KilledWithAllBelowIt) {
  adopt_orphans();  // else what was killed may end later
  Output output;
  ChildProcess other({"sleep", "1000"}, {}, output.taker());
  {
    ChildProcess child({"sh", "-c", "(setsid sh -c 'echo $$; sleep 1000') & sleep 1000"}, {},
                       output.taker());
    const double until = steady_seconds() + kLong;
    while (output.out.empty() && steady_seconds() < until) child.wait(steady_seconds() + 0.01);
  }
  ASSERT_EQ(output.out.size(), 1U);
  EXPECT_FALSE(is_alive(output.out.front()));
  EXPECT_FALSE(other.wait(steady_seconds() + 0.01)) << "what was started besides goes on";
}

TEST(ChildProcess, OneBelowItIsSignalled) {
  Output output;
  ChildProcess child(
      {"sh", "-c",
       "WHO=1 sh -c 'trap \"echo first; exit\" TERM; echo; while :; do sleep 0.01; done' & "
       "WHO=12 sh -c 'trap \"echo second\" TERM; while :; do sleep 0.01; done' & wait $!"},
      {}, output.taker());
  const auto wait_for_lines = [&](std::size_t count) {
    const double until = steady_seconds() + kLong;
    while (output.out.size() < count && steady_seconds() < until)
      child.wait(steady_seconds() + 0.01);
  };
  wait_for_lines(1);
  EXPECT_FALSE(child.signal_below(SIGTERM, "WHO=2"));
  EXPECT_FALSE(child.signal_below(SIGTERM, "WHO="));
  EXPECT_TRUE(child.signal_below(SIGTERM, "WHO=1"));
  wait_for_lines(2);
  EXPECT_EQ(output.out.back(), "first");
  child.kill();
  EXPECT_FALSE(child.signal_below(SIGTERM, "WHO=12"));
  EXPECT_EQ(output.out.size(), 2U);
}

}  // namespace
}  // namespace pipetrain
