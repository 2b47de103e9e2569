// What `launch` decides, with a clock, hosts and processes of the test's own.
#include "processes/launch_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"

namespace pipetrain {
namespace {

LaunchEnd code_of(int code, std::int64_t steps, std::string host = {}) {
  return {{.code = code, .trained = steps > 0, .steps = steps}, std::move(host)};
}
LaunchEnd kill_at(std::int64_t steps, std::string host = {}) {
  return {{.signal = SIGKILL, .trained = steps > 0, .steps = steps}, std::move(host)};
}
LaunchEnd launcher_dies(int signal, std::int64_t steps) {
  return {{.signal = signal, .from_outside = true, .trained = steps > 0, .steps = steps}, {}};
}

/// Attempts last as long and end as a script says; hosts come, go and answer by a timetable.
class FakeWorld final : public LaunchWorld {
 public:
  struct Attempt {
    double seconds;
    LaunchEnd end;
  };

  double now() override { return now_; }
  std::vector<LaunchHost> hosts() override {
    std::vector<LaunchHost> there;
    for (const auto& [time, hosts] : lists) {
      if (time <= now_) there = hosts;
    }
    return there;
  }
  std::vector<bool> answer(const std::vector<LaunchHost>& hosts) override {
    now_ += 1;
    std::vector<bool> answers;
    for (const LaunchHost& host : hosts) {
      const auto until = silent_until.find(host.name);
      answers.push_back(until == silent_until.end() || now_ >= until->second);
      note("probe " + host.name);
    }
    if (signal > 0 && now_ >= signal_seconds) asked_ = signal;
    return answers;
  }
  void start(const std::vector<LaunchHost>& hosts) override {
    std::string text = "start";
    for (const LaunchHost& host : hosts) text += fmt::format(" {}:{}", host.name, host.slots);
    note(text);
    if (attempts.empty()) {
      ADD_FAILURE() << "more starts than the script has";
      attempts.push_back({1, code_of(2, 0)});  // the end
    }
    ends_at_ = now_ + attempts.front().seconds;
    end_ = attempts.front().end;
    attempts.pop_front();
  }
  std::optional<LaunchEnd> wait(double until) override {
    EXPECT_GT(until, now_);
    EXPECT_LE(until, now_ + 5.001 + 100) << "it must look at the hosts now and then";
    const double signal_at = asked_ == 0 && signal > 0 ? signal_seconds : 1e18;
    now_ = std::min({until, std::max(ends_at_, now_), std::max(signal_at, now_)});
    if (now_ >= signal_at) asked_ = signal;
    if (now_ < ends_at_) return {};
    ends_at_ = 1e18;
    return end_;
  }
  void stop() override {
    note("stop");
    ends_at_ = now_ + 1;
    end_ = stop_end;
  }
  int asked_to_stop() override { return asked_; }
  void say(const std::string& text) override { said.push_back(text); }
  void say_why_it_ends(const std::string& reason) override { why = reason; }

  void note(const std::string& text) { log.push_back(fmt::format("{:.0f} {}", now_, text)); }

  std::map<double, std::vector<LaunchHost>> lists;  // from these times on
  std::map<std::string, double> silent_until;
  std::deque<Attempt> attempts;
  LaunchEnd stop_end = code_of(143, 5);
  int signal = 0;
  double signal_seconds = 0;
  std::vector<std::string> log, said;
  std::string why;

 private:
  double now_ = 0, ends_at_ = 1e18;
  int asked_ = 0;
  LaunchEnd end_;
};

FakeWorld two_hosts(std::deque<FakeWorld::Attempt> attempts) {
  FakeWorld world;
  world.lists[0] = {{"a", 2}, {"b", 2}};
  world.attempts = std::move(attempts);
  return world;
}

using Log = std::vector<std::string>;

TEST(Launch, ARunThatEndsWell) {
  FakeWorld world = two_hosts({{50, code_of(0, 9)}});
  EXPECT_EQ(run_launch({}, world), 0);
  EXPECT_EQ(world.log, (Log{"1 probe a", "1 probe b", "1 start a:2 b:2"}));
  EXPECT_TRUE(world.said.empty());
}

TEST(Launch, WhatCannotEndOtherwiseIsNotTriedAgain) {
  for (const int code : {2, 3, 4, 6, 8}) {
    FakeWorld world = two_hosts({{5, code_of(code, 0)}});
    EXPECT_EQ(run_launch({}, world), code);
    EXPECT_TRUE(world.why.empty()) << "training has said why";
  }
}

TEST(Launch, AKilledProcessIsStartedAgainOnTheSameHostsWhereTheOthersAreTooFew) {
  FakeWorld world = two_hosts({{50, kill_at(7, "b")}, {50, code_of(0, 9)}});
  EXPECT_EQ(run_launch({.least_hosts = 2}, world), 0);
  EXPECT_EQ(world.log, (Log{"1 probe a", "1 probe b", "1 start a:2 b:2", "52 probe a", "52 probe b",
                            "52 start a:2 b:2"}));
  EXPECT_EQ(world.said, Log{"training ended by signal 9 (Killed) after step 7; restarting it"});
}

TEST(Launch, AFailedHostIsLeftOutAndReturns) {
  FakeWorld world =
      two_hosts({{50, kill_at(7, "b")}, {1e6, code_of(0, 99)}, {100, code_of(0, 99)}});
  EXPECT_EQ(run_launch({}, world), 0);
  // It may return after 10 s, but a run that has just begun is left alone for 30.
  EXPECT_EQ(world.log,
            (Log{"1 probe a", "1 probe b", "1 start a:2 b:2", "52 probe a", "52 start a:2",
                 "83 probe b", "83 stop", "85 probe a", "85 probe b", "85 start a:2 b:2"}));
  EXPECT_EQ(
      world.said.front(),
      "training ended by signal 9 (Killed) after step 7; b is left out for 10 s; restarting it");
}

TEST(Launch, ALostHostIsLeftOutForLongerEachTime) {
  FakeWorld world = two_hosts({{50, code_of(7, 7)}, {1'000, code_of(0, 99)}});
  world.lists[0] = {{"a", 1}, {"b", 1}};
  world.silent_until["b"] = 1e9;
  EXPECT_EQ(run_launch({}, world), 0) << "the first start already goes without b";
  std::vector<double> probes;
  for (const std::string& line : world.log) {
    if (line.ends_with("probe b")) probes.push_back(std::stod(line));
  }
  ASSERT_GE(probes.size(), 8U);
  // Not during the first 30 s of the run; then after the time it is left out for, when the hosts
  // are looked at next.
  EXPECT_NEAR(probes[1], 32, 3);
  const double left_out[] = {20, 40, 80, 100, 100, 100};
  for (std::size_t i = 0; i < std::size(left_out); ++i) {
    EXPECT_GE(probes[i + 2] - probes[i + 1], left_out[i]) << i;
    EXPECT_LE(probes[i + 2] - probes[i + 1], left_out[i] + 7) << i;
  }
}

TEST(Launch, FewerHostsThanNeededIsAnErrorBeforeTheFirstStart) {
  FakeWorld world = two_hosts({});
  world.silent_until["b"] = 1e9;
  try {
    run_launch({.least_hosts = 2}, world);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    EXPECT_EQ(error.message(), "1 host can be reached where `min` is 2 (no answer: b)");
  }
}

TEST(Launch, ItWaitsForEnoughHostsAndThenGivesUp) {
  FakeWorld back = two_hosts({{50, code_of(7, 7)}, {50, code_of(0, 99)}});
  back.lists[40] = {{"a", 2}};
  back.lists[200] = {{"a", 2}, {"b", 2}};
  EXPECT_EQ(run_launch({.least_hosts = 2}, back), 0);
  EXPECT_EQ(back.log.back().substr(back.log.back().find(' ')), " start a:2 b:2");
  EXPECT_GE(std::stod(back.log.back()), 200);
  EXPECT_LE(std::stod(back.log.back()), 207);
  FakeWorld never = two_hosts({{50, code_of(7, 7)}});
  never.lists[40] = {{"a", 2}};
  EXPECT_EQ(run_launch({.least_hosts = 2}, never), 5);
  EXPECT_EQ(never.why, "after 600 s, 1 host can be reached where `min` is 2");
}

TEST(Launch, TheLauncherMayDieOfAnything) {
  for (const int signal : {SIGKILL, SIGTERM, SIGHUP, SIGSEGV}) {
    FakeWorld world = two_hosts({{50, launcher_dies(signal, 7)}, {50, code_of(0, 9)}});
    EXPECT_EQ(run_launch({}, world), 0);
  }
}

TEST(Launch, ItGivesUpWhereNothingGetsOn) {
  FakeWorld world = two_hosts({{5, launcher_dies(SIGKILL, 0)},
                               {5, launcher_dies(SIGKILL, 0)},
                               {5, launcher_dies(SIGKILL, 0)}});
  EXPECT_EQ(run_launch({.most_restarts = 2}, world), 7);
  EXPECT_EQ(
      world.why,
      "training ended by an end from outside (signal 9 (Killed)) after step 0; not restarted: 2 "
      "restarts in a row completed no new step");
  FakeWorld killed_again = two_hosts({{5, kill_at(0)}, {5, kill_at(0)}});
  EXPECT_EQ(run_launch({.most_restarts = 1}, killed_again), 128 + SIGKILL);
}

TEST(Launch, AHostWhoseProcessesAreNeededIsNotLeftOut) {
  // Of four processes, a run with one backup worker can lose one; every host has two.
  FakeWorld world = two_hosts({{50, kill_at(7, "b")}, {50, code_of(0, 9)}});
  EXPECT_EQ(run_launch({.spare_processes = 1}, world), 0);
  EXPECT_EQ(world.log.back(), "52 start a:2 b:2");
  FakeWorld spare = two_hosts({{50, kill_at(7, "b")}, {5, code_of(0, 9)}});
  EXPECT_EQ(run_launch({.spare_processes = 2}, spare), 0);
  EXPECT_EQ(spare.log.back(), "52 start a:2");
  // One that is lost is waited for.
  FakeWorld lost = two_hosts({{50, kill_at(7, "b")}, {50, code_of(0, 9)}});
  lost.lists[40] = {{"a", 2}};
  lost.lists[80] = {{"a", 2}, {"b", 2}};
  EXPECT_EQ(run_launch({.spare_processes = 1}, lost), 0);
  EXPECT_TRUE(lost.log.back().ends_with(" start a:2 b:2")) << lost.log.back();
  FakeWorld gone = two_hosts({{50, kill_at(7, "b")}});
  gone.lists[40] = {{"a", 2}};
  EXPECT_EQ(run_launch({.spare_processes = 1}, gone), 5);
  EXPECT_EQ(gone.why, "after 600 s, 1 host can be used with 2 slots where the run needs 3");
  // What was trained before may need other numbers of processes.
  FakeWorld known = two_hosts({{50, kill_at(7, "b")}, {5, code_of(0, 9)}});
  EXPECT_EQ(run_launch({.least_processes = 2}, known), 0);
  EXPECT_EQ(known.log.back(), "52 start a:2");
  // Nothing was trained: the next start is the first.
  FakeWorld untrained = two_hosts({{50, kill_at(0, "b")}, {5, code_of(0, 9)}});
  EXPECT_EQ(run_launch({.spare_processes = 1}, untrained), 0);
  EXPECT_EQ(untrained.log.back(), "52 start a:2");
}

TEST(Launch, ItWaitsWhereTheProcessesThatAreLeftDoNotFitTheRun) {
  // Such as 2 for files that 4 or 3 processes can share.
  FakeWorld back = two_hosts({{50, kill_at(7, "b")}, {3, code_of(2, 0)}, {50, code_of(0, 9)}});
  EXPECT_EQ(run_launch({.most_restarts = 1}, back), 0);
  EXPECT_EQ(back.log, (Log{"1 probe a", "1 probe b", "1 start a:2 b:2", "52 probe a",
                           "52 start a:2", "56 probe a", "62 probe b", "62 start a:2 b:2"}));
  EXPECT_EQ(back.said.back(),
            "training does not go on with 2 processes (exit code 2); waiting for other hosts");
  // With another number it is tried at once, also a smaller one.
  FakeWorld fewer = two_hosts({{1e6, code_of(0, 99)}, {3, code_of(2, 0)}, {5, code_of(0, 9)}});
  fewer.lists[0] = {{"a", 2}, {"b", 1}, {"c", 1}};
  fewer.lists[40] = {{"a", 2}, {"b", 1}};
  fewer.lists[100] = {{"a", 2}};
  EXPECT_EQ(run_launch({}, fewer), 0);
  EXPECT_TRUE(fewer.log.back().ends_with(" start a:2")) << fewer.log.back();
  // It gives up as for other shortages, and is not restarted with what fits no more.
  FakeWorld gone = two_hosts({{50, kill_at(7)}, {3, code_of(2, 0)}});
  gone.lists[40] = {{"a", 2}};
  EXPECT_EQ(run_launch({}, gone), 5);
  EXPECT_EQ(gone.why,
            "after 600 s, 1 host can be used with 2 slots, a number of processes that the run does "
            "not take");
  // A step was trained: the mistake is not of their number.
  FakeWorld later = two_hosts({{50, kill_at(7)}, {3, code_of(2, 9)}});
  later.lists[40] = {{"a", 2}};
  EXPECT_EQ(run_launch({}, later), 2);
}

TEST(Launch, AHostIsNeededByTheMostThatARunTakes) {
  // Without a, four hosts have four slots, but the run takes two of them.
  FakeWorld world;
  world.lists[0] = {{"a", 4}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}};
  world.attempts = {{50, kill_at(7, "a")}, {5, code_of(0, 9)}};
  EXPECT_EQ(run_launch({.most_hosts = 2, .spare_processes = 1}, world), 0);
  EXPECT_TRUE(world.log.back().ends_with(" start a:4 b:1")) << world.log.back();
}

TEST(Launch, ARunIsNotStoppedForHostsThatAreTooFew) {
  FakeWorld world;
  world.lists[0] = {{"a", 2}, {"b", 2}, {"c", 2}};
  world.lists[50] = {{"a", 2}, {"d", 2}};
  world.attempts = {{200, code_of(0, 99)}};
  EXPECT_EQ(run_launch({.spare_processes = 1}, world), 0);
  EXPECT_FALSE(std::ranges::any_of(world.log, [](const auto& l) { return l.ends_with("stop"); }));
}

TEST(Launch, NewHostsAreTakenUpToTheMost) {
  FakeWorld world = two_hosts({{1e6, code_of(0, 99)}, {100, code_of(0, 99)}});
  world.lists[50] = {{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}};
  EXPECT_EQ(run_launch({.most_hosts = 3}, world), 0);
  EXPECT_EQ(world.log.back().substr(world.log.back().find(' ')), " start a:2 b:2 c:2");
  EXPECT_EQ(
      std::ranges::count_if(world.log, [](const auto& line) { return line.ends_with("stop"); }), 1);
  FakeWorld full = two_hosts({{200, code_of(0, 99)}});
  full.lists[50] = {{"a", 2}, {"b", 2}, {"c", 2}};
  EXPECT_EQ(run_launch({.most_hosts = 2}, full), 0);
}

TEST(Launch, AHostThatCannotJoinIsLeftOut) {
  // Another build, another kind of CPU, no program there, too little memory, also after a resume.
  for (const LaunchEnd& end :
       {code_of(2, 0), code_of(5, 0), LaunchEnd{{.code = 1, .from_outside = true}, {}},
        LaunchEnd{{.signal = SIGKILL}, "c"},
        LaunchEnd{{.code = 5, .trained = true, .steps = 5, .from_step = 5}, {}}}) {
    FakeWorld world = two_hosts({{1e6, code_of(0, 99)}, {3, end}, {20, code_of(0, 99)}});
    world.lists[50] = {{"a", 2}, {"b", 2}, {"c", 2}};
    EXPECT_EQ(run_launch({.most_restarts = 0}, world), 0);
    EXPECT_TRUE(world.log.back().ends_with(" start a:2 b:2")) << world.log.back();
    EXPECT_EQ(world.said.back(),
              fmt::format("training on hosts that include c failed before its first step ({}); "
                          "this host is left out for 10 s; restarting training",
                          text_of(end.process)));
  }
}

TEST(Launch, AHostThatNeverCanJoinInterruptsTrainingMoreAndMoreRarely) {
  FakeWorld world = two_hosts({{1e6, code_of(0, 99)}});
  world.lists[50] = {{"a", 2}, {"b", 2}, {"c", 2}};
  for (int i = 0; i < 8; ++i) {
    world.attempts.push_back({3, code_of(2, 0)});
    world.attempts.push_back({i < 7 ? 1e6 : 300, code_of(0, 99)});
  }
  EXPECT_EQ(run_launch({}, world), 0);
  std::vector<double> tries;
  for (const std::string& line : world.log) {
    if (line.ends_with(" c:2")) tries.push_back(std::stod(line));
  }
  ASSERT_EQ(tries.size(), 8U);
  const double left_out[] = {30, 30, 40, 80, 160, 320, 600};  // new runs are left alone for 30 s
  for (std::size_t i = 0; i < std::size(left_out); ++i)
    EXPECT_NEAR(tries[i + 1] - tries[i], left_out[i] + 12, 8) << i;
}

TEST(Launch, AnErrorIsThatOfTheRunWhereNoHostHasJoined) {
  // It is the same set of hosts.
  FakeWorld same = two_hosts({{50, kill_at(7)}, {3, code_of(2, 0)}});
  EXPECT_EQ(run_launch({.least_hosts = 2}, same), 2);
  // The new host is needed.
  FakeWorld needed;
  needed.lists[0] = {{"a", 2}, {"b", 2}};
  needed.lists[50] = {{"a", 2}, {"c", 2}};
  needed.attempts = {{1e6, code_of(0, 99)}, {3, code_of(2, 0)}};
  EXPECT_EQ(run_launch({.least_hosts = 2}, needed), 2);
  // Another host has failed.
  FakeWorld other = two_hosts({{1e6, code_of(0, 99)}, {3, LaunchEnd{{.signal = SIGKILL}, "b"}}});
  other.lists[50] = {{"a", 2}, {"b", 2}, {"c", 2}};
  EXPECT_EQ(run_launch({.most_restarts = 0}, other), 128 + SIGKILL);
  // The error is still there without the new host.
  FakeWorld still = two_hosts({{1e6, code_of(0, 99)}, {3, code_of(4, 0)}, {3, code_of(4, 0)}});
  still.lists[50] = {{"a", 2}, {"b", 2}, {"c", 2}};
  EXPECT_EQ(run_launch({}, still), 4);
}

TEST(Launch, AHostThatIsTakenAwayIsGivenUpInTime) {
  FakeWorld world = two_hosts({{1e6, code_of(0, 99)}, {100, code_of(0, 99)}});
  world.lists[50] = {{"a", 2}};
  EXPECT_EQ(run_launch({}, world), 0);
  EXPECT_EQ(world.log.back().substr(world.log.back().find(' ')), " start a:2");
}

TEST(Launch, AHostThatIsTakenAwayIsReplacedWhereTheRunHasAllItsProcesses) {
  FakeWorld world = two_hosts({{1e6, code_of(0, 99)}, {100, code_of(0, 99)}});
  world.lists[50] = {{"a", 2}, {"c", 2}};
  EXPECT_EQ(run_launch({.least_hosts = 2, .most_processes = 4}, world), 0);
  EXPECT_TRUE(world.log.back().ends_with(" start a:2 c:2")) << world.log.back();
}

TEST(Launch, NoMoreProcessesThanDevices) {
  FakeWorld world = two_hosts({{10, code_of(0, 9)}});
  EXPECT_EQ(run_launch({.most_processes = 3}, world), 0);
  EXPECT_EQ(world.log.back(), "1 start a:2 b:1");
  // One host is enough then, whatever the least number is.
  FakeWorld few = two_hosts({{100, code_of(0, 9)}});
  EXPECT_EQ(run_launch({.least_hosts = 2, .most_processes = 2}, few), 0);
  EXPECT_EQ(few.log.back(), "1 start a:2");
}

TEST(Launch, AFailedHostIsLeftOutWhereAnotherOneFillsTheRun) {
  FakeWorld world;
  world.lists[0] = {{"a", 2}, {"b", 2}, {"c", 2}};
  world.attempts = {{50, kill_at(7, "a")}, {5, code_of(0, 9)}};
  EXPECT_EQ(run_launch({.least_hosts = 2, .most_processes = 2}, world), 0);
  EXPECT_TRUE(world.log.back().ends_with(" start b:2")) << world.log.back();
}

TEST(Launch, ARunIsNotStoppedForHostsThatWouldTakeThePlaceOfNeededOnes) {
  FakeWorld world;
  world.lists[0] = {{"a", 4}, {"b", 4}};
  world.lists[50] = {{"x", 1}, {"y", 1}, {"a", 4}, {"b", 4}};
  world.attempts = {{200, code_of(0, 99)}};
  EXPECT_EQ(run_launch({.most_hosts = 3, .spare_processes = 1}, world), 0);
  EXPECT_FALSE(std::ranges::any_of(world.log, [](const auto& l) { return l.ends_with("stop"); }));
}

TEST(Launch, AskedToStopItSavesAndEnds) {
  FakeWorld world = two_hosts({{1e6, code_of(0, 99)}});
  world.signal = SIGTERM;
  world.signal_seconds = 20;
  EXPECT_EQ(run_launch({}, world), 128 + SIGTERM);
  EXPECT_EQ(world.log.back(), "20 stop");
  EXPECT_TRUE(world.why.empty());
  EXPECT_TRUE(world.said.empty());
  // Even while there is nothing to stop.
  FakeWorld waiting = two_hosts({{50, code_of(7, 7)}});
  waiting.lists[40] = {{"a", 2}};
  waiting.signal = SIGINT;
  waiting.signal_seconds = 100;
  EXPECT_EQ(run_launch({.least_hosts = 2}, waiting), 128 + SIGINT);
  // While hosts are asked: nothing is started then, and no host has failed to answer.
  FakeWorld probing = two_hosts({});
  probing.silent_until["b"] = 1e9;
  probing.signal = SIGINT;
  EXPECT_EQ(run_launch({}, probing), 128 + SIGINT);
  EXPECT_EQ(probing.log, (Log{"1 probe a", "1 probe b"}));
  EXPECT_TRUE(probing.said.empty());
  // A run that is there already saves.
  FakeWorld growing = two_hosts({{1e6, code_of(0, 99)}});
  growing.lists[50] = {{"a", 2}, {"b", 2}, {"c", 2}};
  growing.silent_until["c"] = 1e9;
  growing.signal = SIGTERM;
  growing.signal_seconds = 52;
  EXPECT_EQ(run_launch({}, growing), 128 + SIGTERM);
  EXPECT_TRUE(growing.log.back().ends_with(" stop")) << growing.log.back();
  EXPECT_TRUE(growing.said.empty());
  // A run that has just ended well is not called interrupted.
  FakeWorld done = two_hosts({{1e6, code_of(0, 99)}});
  done.signal = SIGTERM;
  done.signal_seconds = 20;
  done.stop_end = code_of(0, 99);
  EXPECT_EQ(run_launch({}, done), 0);
  // Nor one that ends in the moment of the signal.
  FakeWorld ending = two_hosts({{20, code_of(0, 9)}});
  ending.signal = SIGTERM;
  ending.signal_seconds = 21;
  EXPECT_EQ(run_launch({}, ending), 0);
  EXPECT_EQ(ending.log, (Log{"1 probe a", "1 probe b", "1 start a:2 b:2"}));
  FakeWorld failing = two_hosts({{20, code_of(7, 9)}});
  failing.signal = SIGTERM;
  failing.signal_seconds = 21;
  EXPECT_EQ(run_launch({.most_restarts = 0}, failing), 128 + SIGTERM);
}

TEST(Launch, AStopForOtherHostsIsNoFailure) {
  // However often hosts come: no restart counts as one.
  FakeWorld world = two_hosts({});
  for (int i = 0; i < 6; ++i) {
    world.lists[100.0 * (i + 1)] = i % 2 == 0 ? std::vector<LaunchHost>{{"a", 2}}
                                              : std::vector<LaunchHost>{{"a", 2}, {"b", 2}};
    world.attempts.push_back({1e6, code_of(0, 99)});
  }
  world.attempts.push_back({100, code_of(0, 99)});
  EXPECT_EQ(run_launch({.most_restarts = 0}, world), 0);
  EXPECT_TRUE(world.attempts.empty());
}

TEST(Launch, KillsWhileLostStepsAreComputedAgainDelayNothing) {
  FakeWorld world = two_hosts({{50, kill_at(20)}});
  for (std::int64_t step = 8; step < 20; ++step) {
    LaunchEnd end = kill_at(step + 1);
    end.process.from_step = step;
    world.attempts.push_back({50, end});
  }
  world.attempts.push_back({50, code_of(0, 99)});
  EXPECT_EQ(run_launch({.least_hosts = 2}, world), 0);
  std::vector<double> starts;
  for (const std::string& line : world.log) {
    if (line.find("start") != std::string::npos) starts.push_back(std::stod(line));
  }
  ASSERT_EQ(starts.size(), 14U);
  for (std::size_t i = 1; i < starts.size(); ++i)
    EXPECT_LE(starts[i] - starts[i - 1], 52) << "50 s of training and 1 s for each host's answer";
}

}  // namespace
}  // namespace pipetrain
