#include "data/loading/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "data/rows/dataset.h"
#include "support/data_files.h"

namespace pipetrain {
namespace {

using Indices = std::vector<std::size_t>;

Indices epoch(const Sampler& sampler, std::uint64_t number) {
  Indices out;
  const std::size_t batches = sampler.batches_per_epoch();
  for (std::uint64_t step = number * batches; step < (number + 1) * batches; ++step) {
    const Indices batch = sampler.batch_indices(step);
    EXPECT_EQ(batch.size(), sampler.batch_samples(step));
    EXPECT_EQ(sampler.epoch_of(step), number);
    out.insert(out.end(), batch.begin(), batch.end());
  }
  return out;
}

Indices upto(std::size_t count) {
  Indices out(count);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

TEST(Sampler, WithoutShuffleTheFilesOrder) {
  const Sampler sampler(5, {.batch_size = 2, .shuffle = false});
  EXPECT_EQ(sampler.batches_per_epoch(), 3u);
  EXPECT_EQ(sampler.batch_indices(1), (Indices{2, 3}));
  EXPECT_EQ(sampler.batch_indices(2), (Indices{4}));
  EXPECT_EQ(sampler.batch_indices(3), (Indices{0, 1}));
}

TEST(Sampler, EveryEpochHasEverySampleOnce) {
  for (const std::size_t samples : {1, 2, 7, 64, 65, 1000}) {
    for (const std::size_t batch : {1, 2, 7, 64, 1000}) {
      const Sampler sampler(samples, {.batch_size = batch, .seed = 3});
      for (const std::uint64_t number : {0, 1, 5}) {
        Indices got = epoch(sampler, number);
        std::sort(got.begin(), got.end());
        ASSERT_EQ(got, upto(samples)) << samples << " in batches of " << batch;
      }
    }
  }
}

TEST(Sampler, MicroBatchesTakeTurnsAmongTheShardsOfReplicas) {
  // Shards of 7 and 5 samples; a batch of 4 in micro-batches of 1.
  const Sampler sampler(
      12,
      {.batch_size = 4, .shuffle = false, .drop_last = true, .shards = {7, 5}, .micro_batch = 1});
  EXPECT_EQ(sampler.batches_per_epoch(), 2u);
  EXPECT_EQ(sampler.batch_indices(0), (Indices{0, 7, 1, 8}));
  EXPECT_EQ(sampler.batch_indices(1), (Indices{2, 9, 3, 10}));
  EXPECT_EQ(sampler.batch_indices(2), (Indices{0, 7, 1, 8}));
}

TEST(Sampler, AnEpochTakesAsManySamplesOfEachShardAsTheSmallestHas) {
  const Sampler sampler(
      130,
      {.batch_size = 12, .seed = 5, .drop_last = true, .shards = {40, 50, 40}, .micro_batch = 2});
  EXPECT_EQ(sampler.batches_per_epoch(), 10u);
  std::vector<int> drawn(130, 0);
  for (std::uint64_t number = 0; number < 20; ++number) {
    Indices got = epoch(sampler, number);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::size_t shard = i % 12 / 2 % 3;
      const std::size_t first = std::vector<std::size_t>{0, 40, 90}[shard];
      ASSERT_GE(got[i], first);
      ASSERT_LT(got[i], first + (shard == 1 ? 50 : 40));
      ++drawn[got[i]];
    }
    std::sort(got.begin(), got.end());
    ASSERT_EQ(std::unique(got.begin(), got.end()), got.end());
  }
  // Over many epochs also the samples that one epoch leaves out.
  EXPECT_GT(*std::min_element(drawn.begin(), drawn.end()), 5);
}

TEST(Sampler, WeightsSayHowOftenSamplesAreDrawn) {
  const std::vector<double> weights = {0, 1, 0, 3, 0.5, 0};
  const Sampler sampler(6, {.batch_size = 4, .seed = 3, .weights = weights});
  std::vector<double> count(6, 0);
  constexpr int kEpochs = 2000;
  for (int number = 0; number < kEpochs; ++number) {
    const Indices drawn = epoch(sampler, static_cast<std::uint64_t>(number));
    ASSERT_EQ(drawn.size(), 6u);
    for (const std::size_t index : drawn) ++count.at(index);
  }
  double chi_square = 0;
  for (std::size_t i = 0; i < 6; ++i) {
    const double expected = 6 * kEpochs * weights[i] / 4.5;
    if (expected == 0) {
      EXPECT_EQ(count[i], 0);
    } else {
      chi_square += (count[i] - expected) * (count[i] - expected) / expected;
    }
  }
  EXPECT_LT(chi_square, 13.8);  // 2 degrees of freedom, 0.1 %
  const Sampler same(6, {.batch_size = 4, .seed = 3, .weights = weights});
  EXPECT_EQ(same.batch_indices(77), sampler.batch_indices(77));
}

TEST(Sampler, DropLastGivesWholeBatchesOnly) {
  const Sampler sampler(10, {.batch_size = 4, .drop_last = true});
  EXPECT_EQ(sampler.batches_per_epoch(), 2u);
  for (std::uint64_t step = 0; step < 6; ++step) EXPECT_EQ(sampler.batch_samples(step), 4u);
}

TEST(Sampler, OrderDependsOnSeedAndEpochOnly) {
  const Sampler a(100, {.batch_size = 8, .seed = 1}), b(100, {.batch_size = 25, .seed = 1});
  EXPECT_EQ(epoch(a, 2), epoch(b, 2));
  EXPECT_NE(epoch(a, 0), epoch(a, 1));
  EXPECT_NE(epoch(a, 0), epoch(Sampler(100, {.batch_size = 8, .seed = 2}), 0));
}

// Pinned, so that a checkpoint of one version resumes with the same data in the next.
TEST(Sampler, OrderStaysTheSameForever) {
  EXPECT_EQ(epoch(Sampler(8, {.batch_size = 8, .seed = 1}), 0), (Indices{4, 3, 6, 1, 7, 5, 0, 2}));
}

TEST(Sampler, ImpossibleBatchesAreErrors) {
  expect_contains(data_error([] { Sampler(3, {.batch_size = 0}); }, ErrorKind::kUsage),
                  "`batch-size`");
  expect_contains(data_error([] { Sampler(0, {}); }), "no samples");
  expect_contains(data_error([] { Sampler(62, {.batch_size = 64, .drop_last = true}); }),
                  "62 samples, fewer than one batch of 64");
}

class Numbers : public Dataset {
 public:
  explicit Numbers(std::size_t size) : size_(size), columns_{{"x", DType::kInt64, {}}} {}
  std::size_t size() const override { return size_; }
  std::span<const Column> columns() const override { return columns_; }
  void gather(std::span<const std::size_t> indices, std::size_t, Tensor out) const override {
    for (std::size_t i = 0; i < indices.size(); ++i) {
      out.as<std::int64_t>()[i] = static_cast<std::int64_t>(indices[i]);
    }
  }

 private:
  std::size_t size_;
  std::vector<Column> columns_;
};

TEST(Split, PartsAreDisjointCompleteAndInOrder) {
  const auto whole = std::make_shared<Numbers>(50);
  const DatasetSplit parts = split_dataset(whole, 7, 3, whole->size());
  EXPECT_EQ(parts.validation->size(), 7u);
  EXPECT_EQ(parts.train->size(), 43u);
  const auto train = values(*parts.train, 0), validation = values(*parts.validation, 0);
  EXPECT_TRUE(std::is_sorted(train.begin(), train.end()));
  std::vector<double> both = train;
  both.insert(both.end(), validation.begin(), validation.end());
  std::sort(both.begin(), both.end());
  EXPECT_EQ(both, values(*whole, 0));
  EXPECT_EQ(validation, values(*split_dataset(whole, 7, 3, whole->size()).validation, 0));
  EXPECT_NE(validation, values(*split_dataset(whole, 7, 4, whole->size()).validation, 0));
}

TEST(Split, BothPartsNeedASample) {
  const auto whole = std::make_shared<Numbers>(5);
  expect_contains(data_error([&] { split_dataset(whole, 0, 1, whole->size()); }), "0 of 5");
  expect_contains(data_error([&] { split_dataset(whole, 5, 1, whole->size()); }), "5 of 5");
}

TEST(Split, FirstSamples) {
  const auto whole = std::make_shared<Numbers>(5);
  EXPECT_EQ(values(*first_samples(whole, 3), 0), (std::vector<double>{0, 1, 2}));
  EXPECT_EQ(first_samples(whole, 9)->size(), 5u);
}

}  // namespace
}  // namespace pipetrain
