#include "profile/link_measure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>

#include "support/measured.h"

namespace pipetrain {
namespace {

// A link that counts what goes over it.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  int sent = 0;
  const std::byte* memory = nullptr;
  std::set<const std::byte*> seen;
};

struct Post {
  std::vector<std::shared_ptr<Mailbox>> boxes;

  MakeThreadLink maker() {
    return [this] {
      boxes.push_back(std::make_shared<Mailbox>());
      const auto box = boxes.back();
      return ThreadLink{[box](int unit, const std::byte* memory) {
                          const std::lock_guard lock(box->mutex);
                          EXPECT_EQ(unit, box->sent);
                          ++box->sent;
                          box->memory = memory;
                          box->seen.insert(memory);
                          box->changed.notify_all();
                        },
                        [box](int unit) {
                          std::unique_lock lock(box->mutex);
                          box->changed.wait(lock, [&] { return box->sent > unit; });
                          return box->memory;
                        }};
    };
  }
};

TEST(LinkMeasure, RatesAreOfThisWorld) {
  for (const int threads : {1, 2}) {
    EXPECT_GT(measure_memory_copy(threads), 1e8);
    EXPECT_LT(measure_memory_copy(threads), 1e12);
    EXPECT_GT(measure_matrix_product(threads), 1e8);
    EXPECT_LT(measure_matrix_product(threads), 1e13);
  }
}

TEST(LinkMeasure, WakingAThreadTakesTime) {
  EXPECT_TRUE(test::once_in_a_while([] {
    const WakeSeconds wakes = measure_wakes(/*cache=*/false);
    EXPECT_GT(std::min(wakes.idle_core, wakes.same_core), 1e-7);
    EXPECT_GE(wakes.notify, 0);
    EXPECT_LE(wakes.notify, wakes.idle_core);
    return std::max(wakes.idle_core, wakes.same_core) < 1e-2;
  }));
}

TEST(LinkMeasure, AHandOverGoesThereAndBack) {
  Post post;
  const double seconds = measure_hand_over(post.maker());
  EXPECT_GT(seconds, 1e-8);
  EXPECT_LT(seconds, 1e-2);
  ASSERT_EQ(post.boxes.size(), 2U);
  EXPECT_EQ(post.boxes[0]->sent, post.boxes[1]->sent);
  EXPECT_GT(post.boxes[0]->sent, 100);
}

TEST(LinkMeasure, ACopyBetweenThreadsReadsWhatTheOtherOneWrote) {
  Post post;
  const double rate = measure_copy_between_threads(post.maker(), 1 << 16);
  EXPECT_GT(rate, 1e7);
  EXPECT_LT(rate, 1e13);
  EXPECT_GT(post.boxes[0]->seen.size(), 1U);  // several blocks of the sender
  EXPECT_EQ(post.boxes[1]->seen.size(), 1U);  // and the receiver's own
}

// A lower bound alone: on a busy host anything takes longer, and even the barriers may take
// milliseconds.
TEST(LinkMeasure, AnAllReduceTakesAtLeastAsLongAsMovingItsBytes) {
  constexpr std::size_t kBytes = std::size_t{1} << 24;
  constexpr double kFasterThanAnyCore = 2e11;  // bytes per second
  EXPECT_GT(measure_all_reduce(2, 1 << 12), 0);
  EXPECT_GT(measure_all_reduce(2, kBytes), kBytes / kFasterThanAnyCore);
}

TEST(LinkMeasure, ARingSendsAlmostTwiceTheBytes) {
  EXPECT_DOUBLE_EQ(ring_bytes_per_second(1, 100, 1), 0);
  EXPECT_DOUBLE_EQ(ring_bytes_per_second(2, 100, 1), 100);
  EXPECT_DOUBLE_EQ(ring_bytes_per_second(4, 100, 0.5), 300);
}

}  // namespace
}  // namespace pipetrain
