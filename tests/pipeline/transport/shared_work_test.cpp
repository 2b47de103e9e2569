#include "pipeline/transport/shared_work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace pipetrain {
namespace {

/// Tasks that note which thread has run them and with which memory.
struct NotedTasks : SharedTasks {
  explicit NotedTasks(std::size_t tasks, double known_seconds = 1e-3)
      : times(tasks, known_seconds), runs(tasks), by(tasks), memory(tasks) {}
  std::size_t count() const override { return runs.size(); }
  double seconds(std::size_t task) const override { return times[task]; }
  std::size_t workspace_bytes(std::size_t task) const override { return 100 * (task + 1); }
  void run(std::size_t task, std::byte* workspace) override {
    ++runs[task];
    times[task] *= 1.01;  // nobody may read it now
    by[task] = std::this_thread::get_id();
    memory[task] = workspace;
    if (taking.count() > 0) std::this_thread::sleep_for(taking);
    if (static_cast<int>(task) == failing) throw std::runtime_error("piece failed");
  }

  std::chrono::milliseconds taking{0};
  int failing = -1;
  std::vector<double> times;
  std::vector<int> runs;
  std::vector<std::thread::id> by;
  std::vector<std::byte*> memory;
};

/// A thread that waits as device 1 until it is let go.
struct Waiting {
  Waiting(SharedWork& work, Workspace workspace)
      : work(work), thread([this, workspace] {
          worked = this->work.wait(1, workspace, [this] { return over.load(); });
        }) {}
  ~Waiting() { end(); }
  void end() {
    over = true;
    work.notify(1);
    if (thread.joinable()) thread.join();
  }
  SharedWork& work;
  std::atomic<bool> over{false};
  double worked = 0;
  std::thread thread;
};

class SharedWorkTest : public testing::Test {
 protected:
  SharedWork work_{2};
  SharedWork::Job job_;
  std::byte own_[1000], others_[1000];
};

TEST_F(SharedWorkTest, EachTaskRunsOnceWithTheMemoryOfWhoeverRunsIt) {
  Waiting helper(work_, {others_, sizeof others_});
  int helped = 0;
  for (int round = 0; round < 200; ++round) {
    NotedTasks tasks(6);
    work_.post(job_, 0, tasks);
    work_.complete(job_, own_);
    for (std::size_t i = 0; i < tasks.count(); ++i) {
      ASSERT_EQ(tasks.runs[i], 1);
      const bool here = tasks.by[i] == std::this_thread::get_id();
      ASSERT_EQ(tasks.memory[i], here ? own_ : others_);
      helped += here ? 0 : 1;
    }
  }
  helper.end();
  EXPECT_EQ(helped > 0, helper.worked > 0);
}

TEST_F(SharedWorkTest, OneThatWaitsTakesWhatTheOwnerCouldNotDoAsEarly) {
  /// The first task ends when somebody else has run the last one.
  struct Tasks : NotedTasks {
    using NotedTasks::NotedTasks;
    void run(std::size_t task, std::byte* workspace) override {
      NotedTasks::run(task, workspace);
      if (task + 1 == count()) last_has_run = true;
      const auto most = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (task == 0 && !last_has_run && std::chrono::steady_clock::now() < most)
        std::this_thread::yield();
    }
    std::atomic<bool> last_has_run{false};
  };
  Waiting helper(work_, {others_, sizeof others_});
  Tasks tasks(4);
  tasks.taking = std::chrono::milliseconds(5);
  work_.run(job_, 0, tasks, own_);
  EXPECT_EQ(tasks.by.front(), std::this_thread::get_id());
  EXPECT_NE(tasks.by.back(), std::this_thread::get_id());
  helper.end();
  EXPECT_GT(helper.worked, 0.004);
}

TEST_F(SharedWorkTest, LeavesTasksThatAreShortTooLargeOrOfUnknownLengthToTheirOwner) {
  NotedTasks unknown(4, 0), large(4), single(1), little(4, 1e-6);
  for (NotedTasks* tasks : {&unknown, &large, &single, &little})
    tasks->taking = std::chrono::milliseconds(5);
  {
    Waiting helper(work_, {others_, 50});  // less than any task wants
    work_.post(job_, 0, large);
    work_.complete(job_, own_);
  }
  Waiting helper(work_, {others_, sizeof others_});
  for (NotedTasks* tasks : {&unknown, &single, &little}) {
    work_.run(job_, 0, *tasks, own_);
  }
  for (const NotedTasks* tasks : {&unknown, &large, &single, &little}) {
    for (const std::thread::id id : tasks->by) EXPECT_EQ(id, std::this_thread::get_id());
  }
}

TEST_F(SharedWorkTest, DeferredTasksAreRunByIdleDevices) {
  NotedTasks tasks(1, 3600);
  work_.post(job_, 0, tasks);
  int looks = 0;
  work_.wait(1, {others_, sizeof others_}, [&] { return ++looks > 1; });
  EXPECT_EQ(tasks.memory[0], others_);
  work_.complete(job_, own_);
  EXPECT_EQ(tasks.runs[0], 1);
}

TEST_F(SharedWorkTest, LongTasksRunFirst) {
  struct Tasks : NotedTasks {
    using NotedTasks::NotedTasks;
    void run(std::size_t task, std::byte* workspace) override {
      NotedTasks::run(task, workspace);
      order.push_back(task);
    }
    std::vector<std::size_t> order;
  };
  Tasks tasks(4);
  tasks.times = {2, 1, 8, 4};
  work_.post(job_, 0, tasks);
  int looks = 0;
  work_.wait(1, {others_, sizeof others_}, [&] { return ++looks > 1; });
  EXPECT_EQ(tasks.order, (std::vector<std::size_t>{2}));
  work_.complete(job_, own_);
  EXPECT_EQ(tasks.order, (std::vector<std::size_t>{2, 3, 0, 1}));
}

TEST_F(SharedWorkTest, WaitingDevicesDoTheirOwnFirst) {
  NotedTasks own(3, 0);
  work_.post(job_, 0, own);
  int looks = 0;
  const double worked =
      work_.wait(0, {others_, sizeof others_}, [&] { return ++looks > 3; });  // nobody notifies
  EXPECT_GE(worked, 0);
  EXPECT_EQ(own.runs, std::vector<int>(3, 1));
  work_.complete(job_, own_);
  EXPECT_EQ(own.runs, std::vector<int>(3, 1));
  work_.complete(job_, own_);  // it is not posted any more
}

TEST_F(SharedWorkTest, DeferredTasksStayDeferredUnlessTheRoundFails) {
  NotedTasks tasks(2);
  work_.post(job_, 0, tasks);
  work_.reset();
  EXPECT_TRUE(work_.complete(job_, own_));
  EXPECT_EQ(tasks.runs, std::vector<int>(2, 1));
  work_.post(job_, 0, tasks);
  work_.abort();
  work_.reset();
  EXPECT_FALSE(work_.complete(job_, own_));
  EXPECT_EQ(tasks.runs, std::vector<int>(2, 1));
}

// With many stages on few cores, devices that wake for nothing keep others from running.
TEST(SharedWork, ANoticeWakesItsDeviceAlone) {
  SharedWork work(3);
  std::atomic<int> looks[3] = {};
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (const int device : {1, 2}) {
    threads.emplace_back([&, device] {
      work.wait(device, {}, [&] {
        ++looks[device];
        return over.load();
      });
    });
  }
  while (looks[1] == 0 || looks[2] == 0) std::this_thread::yield();
  for (int notice = 0; notice < 50; ++notice) {
    const int before = looks[1];
    while (looks[1] == before) {
      work.notify(1);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  EXPECT_LT(looks[2], 10);  // of its own accord a thread seldom wakes
  over = true;
  for (const int device : {1, 2}) work.notify(device);
  for (std::thread& thread : threads) thread.join();
}

// A stage that waits for an activation has no use for memory that another one gives back.
TEST(SharedWork, ANoticeOfSomethingElseWakesNobody) {
  SharedWork work(2);
  std::atomic<int> looks{0};
  std::atomic<bool> over{false};
  std::thread waiting([&] {
    work.wait(
        1, {},
        [&] {
          ++looks;
          return over.load();
        },
        SharedWork::Notice::kArrival);
  });
  while (looks == 0) std::this_thread::yield();
  for (int notice = 0; notice < 50; ++notice) {
    work.notify(1, SharedWork::Notice::kRelease);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  EXPECT_LT(looks, 10);  // of its own accord a thread seldom wakes
  over = true;
  work.notify(1, SharedWork::Notice::kArrival);
  waiting.join();
}

TEST_F(SharedWorkTest, FailuresReachTheOwner) {
  for (const int failing : {0, 5}) {
    Waiting helper(work_, {others_, sizeof others_});
    NotedTasks tasks(6);
    tasks.taking = std::chrono::milliseconds(2);
    tasks.failing = failing;
    work_.post(job_, 0, tasks);
    EXPECT_THROW(work_.complete(job_, own_), std::runtime_error);
    NotedTasks next(2);
    work_.post(job_, 0, next);
    work_.complete(job_, own_);
    EXPECT_EQ(next.runs, std::vector<int>(2, 1));
  }
}

TEST_F(SharedWorkTest, FinishWaitsForAllAndAbortForNobody) {
  for (int round = 0; round < 50; ++round) {
    work_.reset();
    std::atomic<bool> second{false};
    std::thread other([&] {
      second = true;
      work_.finish(1, {});
    });
    work_.finish(0, {});
    EXPECT_TRUE(second);
    other.join();
  }
  SharedWork alone(3, /*here=*/1);  // the others are in other processes
  alone.finish(1, {});
  work_.reset();
  std::thread other([&] { work_.abort(); });
  work_.finish(0, {});
  work_.wait(0, {}, [] { return false; });
  other.join();
}

}  // namespace
}  // namespace pipetrain
