// Which ends of a training process lead to another attempt.
#include "processes/restart_policy.h"

#include <gtest/gtest.h>

#include <csignal>
#include <vector>

namespace pipetrain {
namespace {

ProcessEnd exits(int code, std::int64_t steps) {
  return {.code = code, .trained = steps > 0, .steps = steps};
}
ProcessEnd dies(int signal, std::int64_t steps) {
  return {.signal = signal, .trained = steps > 0, .steps = steps};
}
ProcessEnd from(std::int64_t step, ProcessEnd end) {
  end.from_step = step;
  return end;
}
ProcessEnd stalls(std::int64_t steps) {
  return {.signal = SIGKILL, .stalled = true, .trained = true, .steps = steps};
}
ProcessEnd stopped(ProcessEnd end) {
  end.was_stopped = true;
  return end;
}

struct Row {
  const char* name;
  int most;
  std::vector<ProcessEnd> ends;
  /// For each end: whether the process is started again.
  std::vector<bool> restarts;
};

TEST(RestartPolicy, Table) {
  const std::vector<Row> rows = {
      {"success", 3, {exits(0, 9)}, {false}},
      {"usage", 3, {exits(2, 0)}, {false}},
      {"model", 3, {exits(3, 0)}, {false}},
      {"data", 3, {exits(4, 5)}, {false}},
      {"diverged", 3, {exits(6, 5)}, {false}},
      {"assertion", 3, {exits(8, 5)}, {false}},
      {"stopped by TERM", 3, {stopped(exits(143, 5))}, {false}},
      {"killed while stopping", 3, {stopped(dies(SIGKILL, 5))}, {false}},
      {"ended before it watched signals", 3, {dies(SIGTERM, 0)}, {false}},
      {"interrupted", 3, {dies(SIGINT, 0)}, {false}},
      {"a bug", 3, {exits(1, 5)}, {true}},
      {"a device", 3, {exits(7, 5)}, {true}},
      {"a crash", 3, {dies(SIGSEGV, 5)}, {true}},
      {"a kill", 3, {dies(SIGKILL, 5)}, {true}},
      {"a stall", 3, {stalls(5)}, {true}},
      {"no memory, once", 3, {exits(5, 5), exits(0, 9)}, {true, false}},
      {"no memory, twice", 3, {exits(5, 5), exits(5, 7)}, {true, false}},
      {"no memory, between crashes",
       9,
       {exits(5, 5), dies(SIGSEGV, 7), exits(5, 8)},
       {true, true, false}},
      {"a step that crashes", 9, {dies(SIGSEGV, 5), dies(SIGSEGV, 5)}, {true, false}},
      {"a step that fails in two ways", 9, {dies(SIGSEGV, 5), exits(7, 5)}, {true, false}},
      {"a step that stalls", 9, {stalls(5), stalls(5)}, {true, false}},
      {"crashes that get further",
       1,
       {dies(SIGSEGV, 5), dies(SIGSEGV, 6), dies(SIGSEGV, 7)},
       {true, true, true}},
      {"kills in one step come from outside",
       9,
       {dies(SIGKILL, 5), dies(SIGKILL, 5), dies(SIGKILL, 5)},
       {true, true, true}},
      {"a crash after a kill in the same step",
       9,
       {dies(SIGKILL, 5), dies(SIGSEGV, 5)},
       {true, true}},
      {"kills without progress",
       2,
       {dies(SIGKILL, 5), dies(SIGKILL, 5), dies(SIGKILL, 5)},
       {true, true, false}},
      {"crashes before the first step",
       2,
       {dies(SIGSEGV, 0), dies(SIGSEGV, 0), dies(SIGSEGV, 0)},
       {true, true, false}},
      {"progress counts anew",
       2,
       {dies(SIGKILL, 5), dies(SIGKILL, 5), dies(SIGKILL, 6), dies(SIGKILL, 6), dies(SIGKILL, 6)},
       {true, true, true, true, false}},
      {"steps that are lost and done again are no progress",
       2,
       {dies(SIGKILL, 9), dies(SIGKILL, 4), dies(SIGKILL, 8), dies(SIGKILL, 9)},
       {true, true, false, false}},
      {"a later state to go on from is progress, although its steps are not new",
       1,
       {dies(SIGKILL, 9), from(4, dies(SIGKILL, 8)), from(6, dies(SIGKILL, 9)),
        from(7, dies(SIGKILL, 8)), from(7, dies(SIGKILL, 8))},
       {true, true, true, true, false}},
      {"no restarts", 0, {dies(SIGSEGV, 5)}, {false}},
  };
  for (const Row& row : rows) {
    RestartPolicy policy(row.most);
    for (std::size_t i = 0; i < row.ends.size(); ++i) {
      const RestartDecision decision = policy.after(row.ends[i]);
      EXPECT_EQ(decision.restarts, row.restarts[i]) << row.name << ", end " << i;
    }
  }
}

TEST(RestartPolicy, ReasonsAndDelays) {
  RestartPolicy twice(9);
  EXPECT_EQ(twice.after(dies(SIGSEGV, 5)).reason, "");
  EXPECT_EQ(twice.after(dies(SIGSEGV, 5)).reason, "training has failed twice in step 6");
  RestartPolicy kills(3);
  EXPECT_EQ(kills.after(dies(SIGKILL, 5)).delay_seconds, 0);
  EXPECT_EQ(kills.after(dies(SIGKILL, 5)).delay_seconds, 0.25);
  EXPECT_EQ(kills.after(dies(SIGKILL, 5)).delay_seconds, 0.5);
  EXPECT_EQ(kills.after(dies(SIGKILL, 5)).reason, "3 restarts in a row completed no new step");
  EXPECT_EQ(RestartPolicy(3).after(exits(4, 5)).reason, "");
  // Killed again and again while it computes lost steps again: none waits for longer than another.
  RestartPolicy often(3);
  EXPECT_EQ(often.after(dies(SIGKILL, 20)).delay_seconds, 0);
  for (std::int64_t step = 8; step < 20; ++step)
    EXPECT_EQ(often.after(from(step, dies(SIGKILL, step + 1))).delay_seconds, 0) << step;
}

TEST(RestartPolicy, NamesTheEnd) {
  EXPECT_EQ(text_of(exits(7, 0)), "exit code 7");
  EXPECT_EQ(text_of(dies(SIGSEGV, 0)), "signal 11 (Segmentation fault)");
  EXPECT_EQ(text_of(stalls(0)), "a stall");
}

}  // namespace
}  // namespace pipetrain
