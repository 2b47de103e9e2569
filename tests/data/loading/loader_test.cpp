#include "data/loading/loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "support/data_files.h"

namespace pipetrain {
namespace {

// Sample i is (i, i) and the label 100 + i; can be slow, and can fail.
class Counting : public Dataset {
 public:
  std::size_t size() const override { return 10; }
  std::span<const Column> columns() const override { return columns_; }
  void gather(std::span<const std::size_t> indices, std::size_t column, Tensor out) const override {
    ++begun;
    std::this_thread::sleep_for(delay);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      PT_CHECK(indices[i] != bad_index, kData, "item {} is bad", indices[i]);
      if (column == 0) {
        out.as<float>()[2 * i] = out.as<float>()[2 * i + 1] = static_cast<float>(indices[i]);
      } else {
        out.as<std::int64_t>()[i] = 100 + static_cast<std::int64_t>(indices[i]);
      }
    }
    ++gathered;
  }

  std::chrono::microseconds delay{0};
  std::size_t bad_index = 1000;
  mutable std::atomic<int> begun = 0;
  mutable std::atomic<int> gathered = 0;

 private:
  std::vector<Column> columns_ = {{"x", DType::kFloat32, {2}}, {"labels", DType::kInt64, {}}};
};

Sampler in_order(std::size_t batch) { return Sampler(10, {.batch_size = batch, .shuffle = false}); }

TEST(Loader, GivesTheSamplersBatchesInOrder) {
  const Sampler sampler(10, {.batch_size = 4, .seed = 5});
  Loader loader(std::make_shared<Counting>(), sampler, 2, 9);
  for (std::uint64_t step = 2; step < 9; ++step) {
    const Batch* batch = loader.next();
    ASSERT_NE(batch, nullptr);
    EXPECT_EQ(batch->step, step);
    EXPECT_EQ(batch->epoch, step / 3);
    EXPECT_EQ(batch->indices, sampler.batch_indices(step));
    ASSERT_EQ(batch->samples, step % 3 == 2 ? 2u : 4u);
    EXPECT_EQ(batch->columns[0].type.shape, (Shape{static_cast<std::int64_t>(batch->samples), 2}));
    for (std::size_t i = 0; i < batch->samples; ++i) {
      EXPECT_EQ(batch->columns[0].as<float>()[2 * i + 1], static_cast<float>(batch->indices[i]));
      EXPECT_EQ(batch->columns[1].as<std::int64_t>()[i],
                100 + static_cast<std::int64_t>(batch->indices[i]));
    }
  }
  EXPECT_EQ(loader.next(), nullptr);
  EXPECT_EQ(loader.next(), nullptr);
}

TEST(Loader, WorkersChangeNoBatch) {
  for (const int workers : {2, 3, 5}) {
    auto data = std::make_shared<Counting>();
    data->delay = std::chrono::microseconds(300);
    const Sampler sampler(10, {.batch_size = 3, .seed = 5});
    Loader loader(data, sampler, 7, 60, workers);
    for (std::uint64_t step = 7; step < 60; ++step) {
      const Batch* batch = loader.next();
      ASSERT_NE(batch, nullptr);
      EXPECT_EQ(batch->step, step);
      EXPECT_EQ(batch->indices, sampler.batch_indices(step));
      for (std::size_t i = 0; i < batch->samples; ++i) {
        EXPECT_EQ(batch->columns[0].as<float>()[2 * i], static_cast<float>(batch->indices[i]));
      }
    }
    EXPECT_EQ(loader.next(), nullptr);
  }
}

TEST(Loader, AFailureOfOneWorkerWaitsForItsTurn) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    auto data = std::make_shared<Counting>();
    data->bad_index = 5;
    Loader loader(data, in_order(2), 0, 5, 3);
    EXPECT_EQ(loader.next()->step, 0u);
    EXPECT_EQ(loader.next()->step, 1u);
    expect_contains(data_error([&] { loader.next(); }), "item 5 is bad");
  }
}

TEST(Loader, ABatchStaysWhileTheNextOneIsRead) {
  auto data = std::make_shared<Counting>();
  Loader loader(data, in_order(2), 0, 5);
  const Batch* batch = loader.next();
  // Two columns of this batch and two of the next; the third batch has no buffer yet.
  while (data->gathered < 4) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(data->gathered, 4);
  EXPECT_EQ(batch->step, 0u);
  EXPECT_EQ(batch->columns[0].as<float>()[2], 1);
}

TEST(Loader, FailureComesAtItsStepAndNamesIt) {
  auto data = std::make_shared<Counting>();
  data->bad_index = 5;
  Loader loader(data, in_order(2), 0, 5);
  EXPECT_EQ(loader.next()->step, 0u);
  EXPECT_EQ(loader.next()->step, 1u);
  for (int again = 0; again < 2; ++again) {
    try {
      loader.next();
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      expect_contains(error.what(), "item 5 is bad");
      expect_contains(error.what(), "while reading the data of step 2");
    }
  }
}

TEST(Loader, MeasuresHowLongItWaited) {
  auto data = std::make_shared<Counting>();
  data->delay = std::chrono::milliseconds(100);
  Loader loader(data, in_order(5), 0, 2);
  while (loader.next()) {
  }
  EXPECT_GT(loader.waited_seconds(), 0.25);  // two columns of two batches, 100 ms each
}

TEST(Loader, CanBeLeftAtAnyMoment) {
  for (int steps = 0; steps < 4; ++steps) {
    auto data = std::make_shared<Counting>();
    data->delay = std::chrono::milliseconds(steps % 2);
    Loader loader(data, in_order(1), 0, 1000000);
    for (int i = 0; i < steps; ++i) ASSERT_NE(loader.next(), nullptr);
  }
}

TEST(GatherBatch, ChecksItsTensors) {
  const Counting data;
  const HostTensor x({DType::kFloat32, {1, 2}, {}}), y({DType::kInt64, {2}, {}});
  const std::size_t index = 3;
  const Tensor tensors[] = {x.view(), y.view()};
  EXPECT_THROW(gather_batch(data, {&index, 1}, tensors), Error);
  EXPECT_THROW(gather_batch(data, {&index, 1}, std::span(tensors).first(1)), Error);
}

TEST(Loader, SaysWhatItWaitsForAndDoesNotWaitForAThreadThatIsStuck) {
  auto data = std::make_shared<Counting>();
  data->delay = std::chrono::seconds(60);
  const auto begin = std::chrono::steady_clock::now();
  {
    Loader loader(data, in_order(4), 5, 9, /*workers=*/1, {}, /*timeout_seconds=*/1);
    try {
      loader.next();
      ADD_FAILURE() << "a batch came";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kDevice);
      const std::string what = "waits for the data of step 5, which have been read for ";
      const std::size_t at = error.message().find(what);
      ASSERT_NE(at, std::string::npos) << error.message();
      // The thread may have begun late, or it may be later now.
      EXPECT_GT(std::stod(error.message().substr(at + what.size())), 0) << error.message();
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(Loader, StopsWaitingForAThreadThatIsStuckWhenItIsAborted) {
  auto data = std::make_shared<Counting>();
  data->delay = std::chrono::seconds(60);
  const auto begin = std::chrono::steady_clock::now();
  for (const double timeout : {0.0, 600.0}) {
    Loader loader(data, in_order(4), 0, 9, /*workers=*/1, {}, timeout);
    const std::jthread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      loader.abort();
    });
    EXPECT_EQ(loader.next(), nullptr);
    EXPECT_EQ(loader.next(), nullptr);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(Loader, IsLeftWhileAThreadIsStuckOfWhichNobodyWaits) {
  auto data = std::make_shared<Counting>();
  data->delay = std::chrono::seconds(60);
  const auto begin = std::chrono::steady_clock::now();
  {
    const Loader loader(data, in_order(4), 0, 9, /*workers=*/2, {}, /*timeout_seconds=*/0.2);
    while (data->begun < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace pipetrain
