#include "pipeline/transport/shared_work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace pipetrain {
namespace {

/// Pieces that note which thread has run them and with which memory.
struct NotedPieces : SharedPieces {
  explicit NotedPieces(std::size_t pieces, double known_seconds = 1e-3)
      : times(pieces, known_seconds), runs(pieces), by(pieces), memory(pieces) {}
  std::size_t count() const override { return runs.size(); }
  double seconds(std::size_t piece) const override { return times[piece]; }
  std::size_t workspace_bytes(std::size_t piece) const override { return 100 * (piece + 1); }
  void run(std::size_t piece, std::byte* workspace) override {
    ++runs[piece];
    times[piece] *= 1.01;  // nobody may read it now
    by[piece] = std::this_thread::get_id();
    memory[piece] = workspace;
    if (taking.count() > 0) std::this_thread::sleep_for(taking);
    if (static_cast<int>(piece) == failing) throw std::runtime_error("piece failed");
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
    work.notify();
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

TEST_F(SharedWorkTest, EachPieceRunsOnceWithTheMemoryOfWhoeverRunsIt) {
  Waiting helper(work_, {others_, sizeof others_});
  int helped = 0;
  for (int round = 0; round < 200; ++round) {
    NotedPieces pieces(6);
    work_.post(job_, 0, pieces);
    work_.complete(job_, own_);
    for (std::size_t i = 0; i < pieces.count(); ++i) {
      ASSERT_EQ(pieces.runs[i], 1);
      const bool here = pieces.by[i] == std::this_thread::get_id();
      ASSERT_EQ(pieces.memory[i], here ? own_ : others_);
      helped += here ? 0 : 1;
    }
  }
  helper.end();
  EXPECT_EQ(helped > 0, helper.worked > 0);
}

TEST_F(SharedWorkTest, OneThatWaitsTakesWhatTheOwnerCouldNotDoAsEarly) {
  /// The first piece ends when somebody else has run the last one.
  struct Pieces : NotedPieces {
    using NotedPieces::NotedPieces;
    void run(std::size_t piece, std::byte* workspace) override {
      NotedPieces::run(piece, workspace);
      if (piece + 1 == count()) last_has_run = true;
      const auto most = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (piece == 0 && !last_has_run && std::chrono::steady_clock::now() < most)
        std::this_thread::yield();
    }
    std::atomic<bool> last_has_run{false};
  };
  Waiting helper(work_, {others_, sizeof others_});
  Pieces pieces(4);
  pieces.taking = std::chrono::milliseconds(5);
  work_.run(job_, 0, pieces, own_);
  EXPECT_EQ(pieces.by.front(), std::this_thread::get_id());
  EXPECT_NE(pieces.by.back(), std::this_thread::get_id());
  helper.end();
  EXPECT_GT(helper.worked, 0.004);
}

TEST_F(SharedWorkTest, LeavesPiecesThatAreShortTooLargeOrOfUnknownLengthToTheirOwner) {
  NotedPieces unknown(4, 0), large(4), single(1), little(4, 1e-6);
  for (NotedPieces* pieces : {&unknown, &large, &single, &little})
    pieces->taking = std::chrono::milliseconds(5);
  {
    Waiting helper(work_, {others_, 50});  // less than any piece wants
    work_.post(job_, 0, large);
    work_.complete(job_, own_);
  }
  Waiting helper(work_, {others_, sizeof others_});
  for (NotedPieces* pieces : {&unknown, &single, &little}) {
    work_.run(job_, 0, *pieces, own_);
  }
  for (const NotedPieces* pieces : {&unknown, &large, &single, &little}) {
    for (const std::thread::id id : pieces->by) EXPECT_EQ(id, std::this_thread::get_id());
  }
}

TEST_F(SharedWorkTest, WhatIsPutOffIsDoneByWhoeverWaits) {
  NotedPieces pieces(1, 3600);
  work_.post(job_, 0, pieces);
  int looks = 0;
  work_.wait(1, {others_, sizeof others_}, [&] { return ++looks > 1; });
  EXPECT_EQ(pieces.memory[0], others_);
  work_.complete(job_, own_);
  EXPECT_EQ(pieces.runs[0], 1);
}

TEST_F(SharedWorkTest, LongPiecesAreDoneFirst) {
  struct Pieces : NotedPieces {
    using NotedPieces::NotedPieces;
    void run(std::size_t piece, std::byte* workspace) override {
      NotedPieces::run(piece, workspace);
      order.push_back(piece);
    }
    std::vector<std::size_t> order;
  };
  Pieces pieces(4);
  pieces.times = {2, 1, 8, 4};
  work_.post(job_, 0, pieces);
  int looks = 0;
  work_.wait(1, {others_, sizeof others_}, [&] { return ++looks > 1; });
  EXPECT_EQ(pieces.order, (std::vector<std::size_t>{2}));
  work_.complete(job_, own_);
  EXPECT_EQ(pieces.order, (std::vector<std::size_t>{2, 3, 0, 1}));
}

TEST_F(SharedWorkTest, WaitingDevicesDoTheirOwnFirst) {
  NotedPieces own(3, 0);
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

TEST_F(SharedWorkTest, WhatIsPutOffStaysSoUnlessTheRoundFails) {
  NotedPieces pieces(2);
  work_.post(job_, 0, pieces);
  work_.reset();
  EXPECT_TRUE(work_.complete(job_, own_));
  EXPECT_EQ(pieces.runs, std::vector<int>(2, 1));
  work_.post(job_, 0, pieces);
  work_.abort();
  work_.reset();
  EXPECT_FALSE(work_.complete(job_, own_));
  EXPECT_EQ(pieces.runs, std::vector<int>(2, 1));
}

TEST_F(SharedWorkTest, FailuresReachTheOwner) {
  for (const int failing : {0, 5}) {
    Waiting helper(work_, {others_, sizeof others_});
    NotedPieces pieces(6);
    pieces.taking = std::chrono::milliseconds(2);
    pieces.failing = failing;
    work_.post(job_, 0, pieces);
    EXPECT_THROW(work_.complete(job_, own_), std::runtime_error);
    NotedPieces next(2);
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
  work_.reset();
  std::thread other([&] { work_.abort(); });
  work_.finish(0, {});
  work_.wait(0, {}, [] { return false; });
  other.join();
}

}  // namespace
}  // namespace pipetrain
