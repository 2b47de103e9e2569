// Commits in the memory of hosts: which parts have to be left for a run to go on, and from where.
#include "train/commits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/index.h"
#include "processes/process_group.h"
#include "support/measured.h"
#include "support/memory_processes.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// Runs `body` in processes on these hosts, each a thread, and returns the first error.
template <class Body>
std::string on_hosts(const std::vector<std::string>& hosts, const Body& body) {
  static std::uint64_t seed = 0;
  test::MemoryWorld world(static_cast<int>(hosts.size()), ++seed);
  world.name_hosts(hosts);
  std::vector<std::string> errors(hosts.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    threads.emplace_back([&, rank] {
      ProcessGroup group(world.process(static_cast<int>(rank)));
      try {
        body(group);
        group.leave();
      } catch (const Error& error) {
        errors[rank] = error.what();
        group.say_failed(error);
        group.wait_for_failures(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    if (!error.empty()) return error;
  }
  return {};
}

TEST(Commits, TakeAtMostTwoPercentOfTheTimeInAll) {
  // 0.1 s is 2 % of 5 s: 4.9 s in steps of 0.11 s after it.
  EXPECT_EQ(steps_to_next_commit(0.1, 0.1, 5, 0.11), 45);
  // Shortly after the begin, the first one has to be made up for.
  EXPECT_EQ(steps_to_next_commit(0.1, 0.1, 0.3, 0.11), 88);
  // One took long: the others did not use up their share.
  EXPECT_EQ(steps_to_next_commit(0.1, 1.1, 40, 0.11), 181);
  // What was saved before is not spent at once.
  EXPECT_EQ(steps_to_next_commit(0.1, 0.1, 1000, 0.11), 45);
  EXPECT_EQ(steps_to_next_commit(0, 0, 1, 0), 1);

  // Whatever they take, from one commit to the end of the next.
  double elapsed = 0, spent = 0, last = 0.2;
  for (int commit = 0; commit < 100; ++commit) {
    const double step = 0.01 + 0.001 * (commit % 7);
    elapsed += last;
    spent += last;
    elapsed += step * static_cast<double>(steps_to_next_commit(last, spent, elapsed, step));
    EXPECT_LE(spent + last, Commits::kMostShare * (elapsed + last) + 1e-9);
    last = 0.1 + 0.05 * (commit % 5);
  }
}

/// What a process has of the state after a step: a tensor of its own, with the step in it.
Checkpoint part_of(int rank, int size, std::int64_t step, std::int64_t columns = 5) {
  Checkpoint part;
  part.reason = "restart";
  part.step = part.round_start = step;
  part.total_steps = 1000;
  part.batches_per_epoch = 8;
  part.learning_rate = 0.5;
  part.updates.assign(at(size), 0);
  part.updates[at(rank)] = step;
  HostTensor tensor(TensorType{DType::kFloat32, Shape({columns})});
  for (float& x : tensor.span<float>()) x = static_cast<float>(100 * step + rank);
  part.weights.emplace("w" + std::to_string(rank), tensor);
  part.optimizer.emplace("mean/w" + std::to_string(rank), tensor);
  if (rank == 0) part.best_weights.emplace("w0", tensor);
  return part;
}

class CommitsTest : public ::testing::Test {
 protected:
  CommitsTest() {
    static std::atomic<int> number{0};
    folder_ = fs::temp_directory_path() /
              fmt::format("commits-test-{}-{}", ::getpid(), number.fetch_add(1));
  }
  ~CommitsTest() override { fs::remove_all(folder_); }

  /// Processes on these hosts make a commit after every step from `first` to `last`.
  std::string commit(const std::vector<std::string>& hosts, std::int64_t first, std::int64_t last,
                     const std::optional<CommitName>& resumed = {}) {
    return on_hosts(hosts, [&](ProcessGroup& group) {
      Commits commits(&group, {folder_, 1}, first - 1, resumed);
      for (std::int64_t step = first; step <= last; ++step)
        commits.after_step(step, [&] { return part_of(group.rank(), group.size(), step); });
      EXPECT_EQ(commits.count(), last - first + 1);
    });
  }

  /// What processes on these hosts find, all the same.
  std::optional<FoundCommit> find(const std::vector<std::string>& hosts, std::int64_t beyond = 0,
                                  const std::function<bool(const Checkpoint&)>& accepts = nullptr) {
    std::vector<std::optional<FoundCommit>> found(hosts.size());
    EXPECT_EQ(on_hosts(hosts,
                       [&](ProcessGroup& group) {
                         found[at(group.rank())] = newest_commit(&group, folder_, beyond, accepts);
                       }),
              "");
    for (const auto& one : found) {
      EXPECT_EQ(one.has_value(), found[0].has_value());
      if (one) EXPECT_EQ(one->name, found[0]->name);
      if (one) EXPECT_EQ(one->state.weights.size(), found[0]->state.weights.size());
    }
    return found[0];
  }

  static void expect_whole(const std::optional<FoundCommit>& found, std::int64_t step, int parts) {
    ASSERT_TRUE(found);
    EXPECT_EQ(found->name.step, step);
    EXPECT_EQ(found->state.step, step);
    EXPECT_TRUE(found->state.is_own);
    ASSERT_EQ(found->state.weights.size(), at(parts));
    ASSERT_EQ(found->state.optimizer.size(), at(parts));
    EXPECT_EQ(found->state.best_weights.size(), 1U);
    EXPECT_EQ(found->state.updates, std::vector<std::int64_t>(at(parts), step));
    for (int rank = 0; rank < parts; ++rank) {
      for (const float x : found->state.weights.at("w" + std::to_string(rank)).span<float>())
        EXPECT_EQ(x, static_cast<float>(100 * step + rank));
    }
  }

  void flip(const fs::path& file, std::streamoff place) const {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(place);
    const char byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(place);
    stream.put(byte);
    ASSERT_TRUE(stream.good()) << file;
  }

  fs::path folder_;
};

TEST(ReplicaRecord, GoesOnFromWhatItBeginsWith) {
  const ReplicaRecord all{.parts = {{0, 0}, {2, 0}, {1, 1}}, .rates = {0.1, 0.1, 0.05}};
  ReplicaRecord beginning{.parts = {{0, 0}, {2, 0}}, .rates = {0.1, 0.1}};
  EXPECT_TRUE(goes_on_from(all, all));
  EXPECT_TRUE(goes_on_from(all, beginning));
  EXPECT_FALSE(goes_on_from(beginning, all));
  beginning.rates[1] = 0.2;
  EXPECT_FALSE(goes_on_from(all, beginning));
  beginning.rates[1] = 0.1;
  beginning.parts[1].number = 1;
  EXPECT_FALSE(goes_on_from(all, beginning));
  beginning.parts[1].number = 2;
  beginning.start = "other weights";
  EXPECT_FALSE(goes_on_from(all, beginning));
}

TEST_F(CommitsTest, AllProcessesGetTheStateOfAll) {
  ASSERT_EQ(commit({"a", "a", "b", "b"}, 1, 5), "");
  expect_whole(find({"a", "a", "b", "b"}), 5, 4);
  expect_whole(find({"a", "b"}), 5, 4);
  expect_whole(find({"b", "b", "a"}), 5, 4);
}

TEST_F(CommitsTest, AnyOneHostMayBeLost) {
  for (const char* lost : {"a", "b", "c"}) {
    ASSERT_EQ(commit({"a", "a", "b", "c"}, 1, 4), "");
    std::vector<std::string> left;
    for (const char* host : {"a", "b", "c"}) {
      if (host != std::string(lost)) left.emplace_back(host);
    }
    fs::remove_all(folder_ / lost);
    expect_whole(find(left), 4, 4);
    fs::remove_all(folder_);
  }
}

TEST_F(CommitsTest, ProcessZeroAloneHandsItsPartToAnotherHost) {
  constexpr int kBuddy = 2;
  ASSERT_EQ(on_hosts({"a", "a", "b"},
                     [&](ProcessGroup& group) {
                       Commits commits(&group, {folder_, 1}, 0, {}, CommitBy::kProcess0);
                       commits.reserve(part_of(0, 1, 0));
                       if (group.rank() == kBuddy) {
                         // Of the first commit, and of both pieces of the second.
                         for (int piece = 0; piece < 3; ++piece)
                           EXPECT_EQ(commits.keep_copy(group.receive(0)), "");
                       }
                       if (group.rank() != 0) return;
                       commits.hand_over_by([&](int process, const std::string& piece) {
                         EXPECT_EQ(process, kBuddy);
                         group.send(piece, process);
                       });
                       const auto after_step = [&](std::int64_t step) {
                         constexpr std::int64_t kTwoPieces = 500'000;  // floats, three times
                         const std::int64_t columns = step == 3 ? kTwoPieces : 5;
                         commits.after_step(step, [&] { return part_of(0, 1, step, columns); });
                       };
                       after_step(1);
                       after_step(2);  // the first copy is still on its way
                       EXPECT_EQ(commits.count(), 1);
                       commits.copy_is_kept("");
                       after_step(3);
                       EXPECT_EQ(commits.count(), 2);
                       commits.copy_is_kept("");  // sends the second piece
                     }),
            "");
  expect_whole(find({"a", "a", "b"}), 3, 1);
  expect_whole(find({"a"}), 3, 1);
  expect_whole(find({"b", "c"}), 3, 1);
  EXPECT_FALSE(find({"c"}));
}

TEST_F(CommitsTest, WhatTheRunHasNotGoneOnFromIsOlder) {
  const auto commit_on = [&](const std::string& host, std::int64_t last, CommitBy by) {
    const std::string failure = on_hosts({host}, [&](ProcessGroup& group) {
      Commits commits(&group, {folder_, 1}, 0, {}, by);
      for (std::int64_t step = 1; step <= last; ++step)
        commits.after_step(step, [&] { return part_of(0, 1, step); });
    });
    EXPECT_EQ(failure, "");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  // Host a is lost after step 5, the run begins again on b, and a returns.
  commit_on("a", 5, CommitBy::kProcess0);
  commit_on("b", 3, CommitBy::kProcess0);
  expect_whole(find({"a", "b"}), 3, 1);
  expect_whole(find({"a", "b"}, 0, [](const Checkpoint& state) { return state.step != 3; }), 2, 1);
  // Where all compute the same, nothing is computed again.
  fs::remove_all(folder_);
  commit_on("a", 5, CommitBy::kAll);
  commit_on("b", 3, CommitBy::kAll);
  expect_whole(find({"a", "b"}), 5, 1);
}

TEST_F(CommitsTest, ACopyThatCannotBeKeptIsSaid) {
  const auto fail = [&](std::int64_t every) {
    return on_hosts({"a", "b"}, [&](ProcessGroup& group) {
      Commits commits(&group, {folder_, every}, 0, {}, CommitBy::kProcess0);
      if (group.rank() != 0) return;
      int pieces = 0;
      commits.hand_over_by([&](int, const std::string&) { ++pieces; });
      const auto after_step = [&](std::int64_t step) {
        commits.after_step(step, [&] { return part_of(0, 1, step); });
      };
      after_step(1);
      commits.copy_is_kept("no memory");
      for (std::int64_t step = 2; step < 1'000'000 && commits.count() < 2; ++step) after_step(step);
      EXPECT_EQ(commits.count(), 2);
      EXPECT_EQ(pieces, 1);  // the next ones have no copy
    });
  };
  EXPECT_EQ(fail(0), "");
  const std::string error = fail(1);
  EXPECT_NE(error.find("no memory"), std::string::npos) << error;
}

TEST_F(CommitsTest, OwnerAndBuddyLostIsLost) {
  ASSERT_EQ(commit({"a", "b", "c"}, 1, 4), "");
  EXPECT_FALSE(find({"a"}));  // has parts 0 and 2
  expect_whole(find({"a", "b"}), 4, 3);
}

TEST_F(CommitsTest, OneHostIsEnoughForItself) {
  ASSERT_EQ(commit({"a", "a"}, 1, 3), "");
  expect_whole(find({"a"}), 3, 2);
  EXPECT_FALSE(find({"b"}));
  // A single process has no group.
  Commits alone(nullptr, {folder_, 2}, 0, {});
  for (std::int64_t step = 1; step <= 5; ++step)
    alone.after_step(step, [&] { return part_of(0, 1, step); });
  EXPECT_EQ(alone.count(), 2);
  const std::optional<FoundCommit> found = newest_commit(nullptr, folder_, 0);
  expect_whole(found, 4, 1);
}

TEST_F(CommitsTest, WhatIsOnTheDiskMayBeNewer) {
  ASSERT_EQ(commit({"a", "b"}, 1, 4), "");
  EXPECT_TRUE(find({"a", "b"}, 3));
  EXPECT_FALSE(find({"a", "b"}, 4));
}

TEST_F(CommitsTest, ADamagedPartIsTakenFromTheBuddyOrTheCommitBefore) {
  ASSERT_EQ(commit({"a", "b"}, 1, 4), "");
  // The second copy has step 4, the first step 3.
  flip(folder_ / "a" / "part-0-1", 300);
  expect_whole(find({"a", "b"}), 4, 2);
  flip(folder_ / "b" / "part-0-1", 400);
  expect_whole(find({"a", "b"}), 3, 2);
  flip(folder_ / "a" / "part-1-0", 300);
  flip(folder_ / "b" / "part-1-0", 300);
  EXPECT_FALSE(find({"a", "b"}));
}

/// Puts processes in the state that a kill between two of them leaves: rank 0 has kept a step that
/// rank 1 has not.
TEST_F(CommitsTest, ACommitThatWasCutShortDoesNotCostTheOneBefore) {
  ASSERT_EQ(commit({"a", "a"}, 1, 4), "");
  for (const char* file : {"part-1-0", "part-1-1"})
    fs::copy_file(folder_ / "a" / file, folder_ / (std::string(file) + ".old"));
  const std::optional<FoundCommit> fourth = find({"a", "a"});
  ASSERT_EQ(commit({"a", "a"}, 5, 5, fourth->name), "");
  for (const char* file : {"part-1-0", "part-1-1"})
    fs::rename(folder_ / (std::string(file) + ".old"), folder_ / "a" / file);
  const std::optional<FoundCommit> found = find({"a", "a"});
  expect_whole(found, 4, 2);
  // The next start keeps it until its own first commit is whole, also on rank 0, where the copy of
  // step 4 is the older one.
  ASSERT_EQ(on_hosts({"a", "a"},
                     [&](ProcessGroup& group) {
                       Commits commits(&group, {folder_, 1}, 4, found->name);
                       if (group.rank() == 1) PT_FAIL(kDevice, "killed");
                       commits.after_step(5, [&] { return part_of(0, 2, 5); });
                     })
                .substr(0, 6),
            "killed");
  expect_whole(find({"a", "a"}), 4, 2);
}

TEST_F(CommitsTest, PartsOfDifferentStartsAreNotMixed) {
  ASSERT_EQ(commit({"a", "b"}, 1, 4), "");
  fs::rename(folder_ / "b", folder_ / "old");
  ASSERT_EQ(commit({"a", "b"}, 1, 4), "");
  fs::remove_all(folder_ / "b");
  fs::rename(folder_ / "old", folder_ / "b");
  // Host a has both parts of the second start; without it there are those of the first.
  expect_whole(find({"a", "b"}), 4, 2);
  for (const char* part : {"part-1-0", "part-1-1"}) fs::remove(folder_ / "a" / part);
  for (const char* part : {"part-0-0", "part-0-1"}) fs::remove(folder_ / "b" / part);
  EXPECT_FALSE(find({"a", "b"}));
}

TEST_F(CommitsTest, TheStateMayGrow) {
  ASSERT_EQ(on_hosts({"a", "b"},
                     [&](ProcessGroup& group) {
                       Commits commits(&group, {folder_, 1}, 0, {});
                       for (std::int64_t step = 1; step <= 4; ++step)
                         commits.after_step(step, [&] {
                           return part_of(group.rank(), 2, step, step * step * 1000);
                         });
                     }),
            "");
  expect_whole(find({"a", "b"}), 4, 2);
}

TEST_F(CommitsTest, SomebodyElsesFolderIsRefused) {
  ASSERT_EQ(::mkdir(folder_.c_str(), 0777), 0);
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  const std::string error = commit({"a", "b"}, 1, 1);
  EXPECT_NE(error.find("belongs to somebody else"), std::string::npos) << error;
  EXPECT_FALSE(find({"a", "b"}));
}

TEST_F(CommitsTest, WithoutMemoryThereAreNone) {
  // Where the number of steps is not given, training goes on.
  EXPECT_EQ(on_hosts({"a", "b"},
                     [&](ProcessGroup& group) {
                       Commits commits(&group, {"/proc/no-such-place", 0}, 0, {});
                       commits.after_step(1, [&] { return part_of(group.rank(), 2, 1); });
                       EXPECT_EQ(commits.count(), 0);
                     }),
            "");
  const std::string error = on_hosts({"a", "b"}, [&](ProcessGroup& group) {
    const Commits commits(&group, {"/proc/no-such-place", 5}, 0, {});
  });
  EXPECT_NE(error.find("/proc/no-such-place"), std::string::npos) << error;
}

TEST_F(CommitsTest, MemoryIsTakenBeforeTheFirstStep) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{100'000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  // What process 1 has is too large for its own host, and for its buddy's.
  const std::string error = on_hosts({"a", "b"}, [&](ProcessGroup& group) {
    Commits commits(&group, {folder_, 5}, 0, {});
    commits.reserve(part_of(group.rank(), 2, 0, group.rank() == 0 ? 10 : 100'000));
  });
  EXPECT_EQ(on_hosts({"a", "b"},
                     [&](ProcessGroup& group) {
                       Commits commits(&group, {folder_, 0}, 0, {});
                       commits.reserve(part_of(group.rank(), 2, 0, 100'000));
                       commits.after_step(1, [&] { return part_of(group.rank(), 2, 1); });
                       EXPECT_EQ(commits.count(), 0);
                     }),
            "");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(error.substr(0, 18), "commits in memory:");
  EXPECT_NE(error.find("needs 2 x"), std::string::npos) << error;
}

TEST_F(CommitsTest, TheyTakeAFewPercentOfTheTime) {
  const auto few = [&] {
    std::atomic<std::int64_t> most{0};
    EXPECT_EQ(on_hosts({"a", "b"},
                       [&](ProcessGroup& group) {
                         Commits commits(&group, {folder_, 0}, 0, {});
                         for (std::int64_t step = 1; step <= 200; ++step) {
                           ::usleep(1000);
                           commits.after_step(step, [&] {
                             ::usleep(1000);
                             return part_of(group.rank(), 2, step);
                           });
                         }
                         EXPECT_GE(commits.count(), 1);
                         if (group.rank() == 0) most = commits.count();
                       }),
              "");
    return most <= 1 + 200 / 25;  // each takes at least as long as a step
  };
  EXPECT_TRUE(test::once_in_a_while(few));
}

TEST(CommitSettingsTest, AreThoseOfLaunch) {
  const auto with = [](const char* text) {
    ::setenv(CommitSettings::kVariable, text, 1);
    const auto settings = CommitSettings::of_environment();
    ::unsetenv(CommitSettings::kVariable);
    return settings;
  };
  EXPECT_FALSE(CommitSettings::of_environment());
  EXPECT_EQ(with("auto:/dev/shm/x")->every, 0);
  EXPECT_EQ(with("20:/dev/shm/x:y")->every, 20);
  EXPECT_EQ(with("20:/dev/shm/x:y")->folder, "/dev/shm/x:y");
  for (const char* bad : {"", "auto", "auto:", "auto:x", "0:/x", "-1:/x", "3x:/x", ":/x"})
    EXPECT_THROW(with(bad), Error) << bad;
  ::unsetenv(CommitSettings::kVariable);
}

}  // namespace
}  // namespace pipetrain
