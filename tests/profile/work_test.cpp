#include "profile/work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "base/clock.h"
#include "support/measured.h"

namespace pipetrain {
namespace {

class Spin final : public Work {
 public:
  Spin(double seconds, std::atomic<int>* running, std::atomic<int>* most)
      : seconds_(seconds), running_(running), most_(most) {}
  void prepare() override { ++prepared_; }
  void run() override {
    const int now = ++*running_;
    int seen = *most_;
    while (seen < now && !most_->compare_exchange_weak(seen, now)) {
    }
    const double start = thread_cpu_seconds();
    while (thread_cpu_seconds() < start + seconds_) {
    }
    --*running_;
    ++runs_;
    EXPECT_EQ(prepared_, runs_);
  }

 private:
  double seconds_;
  std::atomic<int>* running_;
  std::atomic<int>* most_;
  int prepared_ = 0, runs_ = 0;
};

class Broken final : public Work {
 public:
  explicit Broken(int good_runs) : left_(good_runs) {}
  void prepare() override {}
  void run() override {
    if (left_-- == 0) throw std::runtime_error("broken");
  }

 private:
  int left_;
};

TEST(Work, IsTimedInCpuSeconds) {
  std::atomic<int> running{0}, most{0};
  EXPECT_TRUE(test::once_in_a_while([&] {
    const double seconds = median_seconds(
        [&] { return std::make_unique<Spin>(1e-3, &running, &most); }, {.repeats = 5});
    EXPECT_GE(seconds, 0.95e-3);
    return seconds < 1.5e-3;
  }));
  EXPECT_EQ(most, 1);
}

TEST(Work, RunsAllCopiesAtOnce) {
  std::atomic<int> running{0}, most{0};
  median_seconds([&] { return std::make_unique<Spin>(2e-3, &running, &most); },
                 {.copies = 4, .repeats = 3});
  EXPECT_GT(most, 1);
  EXPECT_EQ(running, 0);
}

// However early or late a copy fails, nobody waits for it.
TEST(Work, HandsOnTheFirstError) {
  for (const int good_runs : {0, 1, 2, 10, 1000}) {
    std::atomic<int> made{0};
    const auto make = [&]() -> std::unique_ptr<Work> {
      return std::make_unique<Broken>(++made == 2 ? good_runs : 1 << 30);
    };
    EXPECT_THROW(median_seconds(make, {.copies = 3, .repeats = 3}), std::runtime_error)
        << good_runs;
  }
  const auto unmakeable = []() -> std::unique_ptr<Work> { throw std::runtime_error("no kernel"); };
  EXPECT_THROW(median_seconds(unmakeable, {.copies = 2}), std::runtime_error);
}

}  // namespace
}  // namespace pipetrain
