// Sums over replicas in several processes: pieces and buckets of all sizes, absent replicas, owners
// and trees.
#include "pipeline/transport/remote_replicas.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/index.h"
#include "pipeline/transport/narrow_floats.h"
#include "support/process_runs.h"
#include "tensor/tensor.h"

namespace pipetrain::test {
namespace {

using Gradients = std::vector<std::vector<float>>;

struct SumCase {
  std::vector<int> process_of;     // [replicas]
  std::vector<std::size_t> sizes;  // floats of each gradient
  BucketFloats buckets;
  std::vector<int> owners = {};  // [gradients]; empty: all replicas need all sums
  int absent = -1;               // a replica that has no gradient in the second of three steps
  bool tree = false;
  bool narrow = false;  // as bfloat16
};

constexpr int kSteps = 3, kAbsentStep = 1;

Gradients gradients_of(const SumCase& c, int replica, int step) {
  std::mt19937 random(static_cast<unsigned>(100 * step + replica));
  std::uniform_real_distribution<float> number(-1, 1);
  Gradients out;
  for (const std::size_t size : c.sizes) {
    out.emplace_back(size);
    for (float& value : out.back()) value = number(random);
  }
  return out;
}

/// Element by element: one replica after the other, or the two halves of a tree joined. An absent
/// one has nothing.
float sum_of(std::vector<std::optional<float>> parts, bool tree) {
  while (tree && parts.size() > 1) {
    const std::size_t half = parts.size() / 2;
    for (std::size_t k = 0; k < half; ++k) {
      if (parts[k + half]) parts[k] = *parts[k] + *parts[k + half];
    }
    parts.resize(half);
  }
  std::optional<float> sum;
  for (const std::optional<float>& part : parts) {
    if (part) sum = sum ? *sum + *part : *part;
  }
  return *sum;
}

Gradients expected_sums(const SumCase& c, int step) {
  const auto replicas = static_cast<int>(c.process_of.size());
  std::vector<Gradients> all;
  for (int r = 0; r < replicas; ++r) all.push_back(gradients_of(c, r, step));
  Gradients out = all[0];
  for (std::size_t g = 0; g < out.size(); ++g) {
    for (std::size_t i = 0; i < out[g].size(); ++i) {
      const auto stored = [&](float value) {
        return c.narrow ? bfloat16_to_float(float_to_bfloat16(value)) : value;
      };
      std::vector<std::optional<float>> parts(all.size());
      for (int r = 0; r < replicas; ++r) {
        if (step != kAbsentStep || r != c.absent) parts[at(r)] = stored(all[at(r)][g][i]);
      }
      out[g][i] = stored(sum_of(parts, c.tree));
    }
  }
  return out;
}

/// What one replica does: three steps, whose sums it compares where it needs them.
void train(const SumCase& c, RemoteReplicas& sums, Gradients& mine, int replica) {
  for (int step = 0; step < kSteps; ++step) {
    const Gradients made = gradients_of(c, replica, step);
    for (std::size_t g = 0; g < made.size(); ++g) std::ranges::copy(made[g], mine[g].begin());
    const bool contributes = step != kAbsentStep || replica != c.absent;
    for (std::size_t g = 0; contributes && g < made.size(); ++g) sums.complete(replica, g);
    sums.reduce(replica, contributes);
    const Gradients got = mine;
    sums.meet();  // as each stage's update does, before gradients are written again
    for (std::vector<float>& gradient : mine) std::ranges::fill(gradient, 7.0F);
    const Gradients expected = expected_sums(c, step);
    for (std::size_t g = 0; g < expected.size(); ++g) {
      const int owner = c.owners.empty() ? -1 : c.owners[g];
      const bool needed = owner < 0 || c.process_of[at(owner)] == c.process_of[at(replica)];
      EXPECT_TRUE(!needed || got[g] == expected[g])
          << "gradient " << g << " of replica " << replica << " in step " << step;
    }
  }
}

/// Trains in a world of processes. Returns the bytes of all messages.
std::uint64_t expect_sums_in(MemoryWorld& world, const SumCase& c) {
  const int processes = 1 + std::ranges::max(c.process_of);
  const auto errors = in_processes(world, processes, [&](ProcessGroup& group) {
    std::vector<Gradients> gradients;
    std::unique_ptr<RemoteReplicas> sums;  // outlives the thread
    MessageThread messages(
        group, [](const std::exception_ptr&) {}, [] { return std::pair("", std::uint64_t{0}); },
        [] { return false; }, /*timeout_seconds=*/60);
    sums = std::make_unique<RemoteReplicas>(
        group, messages, c.process_of, ProcessGroup::kFreeTag, c.sizes,
        c.owners.empty() ? std::vector<int>(c.sizes.size(), -1) : c.owners, c.buckets);
    if (c.tree) sums->sum_as_tree();
    if (c.narrow) sums->use_bfloat16();
    for (int r = 0; r < static_cast<int>(c.process_of.size()); ++r) {
      std::vector<std::span<float>> places;
      for (std::vector<float>& one : gradients.emplace_back(gradients_of(c, r, 0)))
        places.emplace_back(one);
      if (c.process_of[at(r)] == group.rank()) sums->bind(r, places);
    }
    sums->reset();
    messages.add(*sums);
    std::vector<std::thread> replicas;
    for (int r = 0; r < static_cast<int>(c.process_of.size()); ++r) {
      if (c.process_of[at(r)] == group.rank())
        replicas.emplace_back([&, r] { train(c, *sums, gradients[at(r)], r); });
    }
    for (std::thread& replica : replicas) replica.join();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_LE(world.most_bytes(), Processes::kEagerBytes);
  return world.bytes();
}

/// By messages alone, by reading memory, and with three or more processes by both: pairs of one
/// host read. Returns the bytes of the messages in the first case.
std::uint64_t expect_sums(const SumCase& c, std::uint64_t seed) {
  const int processes = 1 + std::ranges::max(c.process_of);
  MemoryWorld messages(processes, seed), memory(processes, seed), both(processes, seed);
  messages.share_memory(false);
  memory.share_memory(true);
  both.share_memory(true);
  std::vector<std::string> hosts;
  for (int process = 0; process < processes; ++process)
    hosts.push_back(process < (processes + 1) / 2 ? "one" : "other");
  both.name_hosts(hosts);
  expect_sums_in(memory, c);
  if (processes > 2) expect_sums_in(both, c);
  return expect_sums_in(messages, c);
}

// From one float to several messages of a piece; the first bucket is small, and there are more
// than may be under way.
const std::vector<std::size_t> kSizes = {5,  70'000, 1, 200'000, 16'384, 33'000, 7,  20'000, 20'000,
                                         90, 20'000, 3, 20'000,  20'000, 20'000, 11, 20'000, 8};
constexpr BucketFloats kBuckets = {10, 20'000};

TEST(RemoteReplicas, SumInTheirOrder) {
  expect_sums({{0, 1}, kSizes, kBuckets}, 1);
  expect_sums({{0, 1, 2}, kSizes, kBuckets}, 2);
  expect_sums({{0, 0, 1}, kSizes, {1 << 20, 1 << 20}}, 3);
}

TEST(RemoteReplicas, LeaveOutWhoHasNoGradient) {
  for (int absent = 0; absent < 3; ++absent)
    expect_sums({{0, 0, 1}, kSizes, kBuckets, {}, absent}, 10 + static_cast<std::uint64_t>(absent));
}

TEST(RemoteReplicas, SumAsATree) {
  expect_sums({{0, 0, 1, 1}, kSizes, kBuckets, {}, -1, /*tree=*/true}, 20);
  expect_sums({{0, 1, 2, 3}, kSizes, kBuckets, {}, -1, /*tree=*/true}, 21);
}

// The replicas of a process are a subtree, so it sends their sum alone.
TEST(RemoteReplicas, SendOnePartOfASubtree) {
  std::vector<int> owners;
  for (int g = 0; g < static_cast<int>(kSizes.size()); ++g) owners.push_back(g % 4 - 1);
  expect_sums({{0, 1, 0, 1, 0, 1, 0, 1}, kSizes, kBuckets, {}, -1, /*tree=*/true}, 22);
  expect_sums({{0, 1, 0, 1}, kSizes, kBuckets, owners, -1, /*tree=*/true}, 23);
  // The last one has no micro-batch where there are too few.
  expect_sums({{0, 1, 0, 1}, kSizes, kBuckets, owners, /*absent=*/3, /*tree=*/true}, 24);
  expect_sums({{0, 1}, kSizes, kBuckets, {}, /*absent=*/1, /*tree=*/true}, 25);
  std::vector<std::uint64_t> bytes;
  for (const std::vector<int>& process_of : {std::vector{0, 0, 1, 1}, {0, 1, 0, 1}})
    bytes.push_back(
        expect_sums({process_of, {500'000}, {1 << 20, 1 << 20}, {}, -1, /*tree=*/true}, 26));
  EXPECT_LT(static_cast<double>(bytes[1]), 0.68 * static_cast<double>(bytes[0]));
}

// Of some gradients one replica alone needs the sum, of others all do.
TEST(RemoteReplicas, GiveSumsToTheirOwners) {
  std::vector<int> owners;
  for (int g = 0; g < static_cast<int>(kSizes.size()); ++g) owners.push_back(g % 4 - 1);
  expect_sums({{0, 0, 1}, kSizes, kBuckets, owners}, 30);
  expect_sums({{0, 1, 1}, kSizes, kBuckets, owners}, 31);
  expect_sums({{0, 1, 2}, kSizes, kBuckets, owners}, 32);
}

TEST(RemoteReplicas, SendBfloat16) {
  const std::vector<int> owners(kSizes.size(), 1);
  expect_sums({{0, 1}, kSizes, kBuckets, {}, -1, false, /*narrow=*/true}, 40);
  expect_sums({{0, 0, 1}, kSizes, kBuckets, {}, 2, false, /*narrow=*/true}, 41);
  expect_sums({{0, 0, 1}, kSizes, kBuckets, owners, -1, false, /*narrow=*/true}, 42);
}

TEST(RemoteReplicas, SendHalfTheBytesAsBfloat16) {
  std::vector<std::uint64_t> bytes;
  for (const bool narrow : {false, true})
    bytes.push_back(
        expect_sums({{0, 1}, {500'000}, {1 << 20, 1 << 20}, {}, -1, false, narrow}, 50));
  EXPECT_LT(static_cast<double>(bytes[1]), 0.51 * static_cast<double>(bytes[0]));
}

// To one process floats are sent, to another their addresses.
TEST(RemoteReplicas, ReadAndReceiveWhateverTheReplicas) {
  std::vector<int> owners;
  for (int g = 0; g < static_cast<int>(kSizes.size()); ++g) owners.push_back(g % 4 - 1);
  expect_sums({{0, 0, 1, 2}, kSizes, kBuckets, owners}, 61);
  expect_sums({{0, 1, 1, 2}, kSizes, kBuckets, {}, /*absent=*/2}, 62);
  expect_sums({{0, 1, 1, 2}, kSizes, kBuckets, owners, /*absent=*/0, false, /*narrow=*/true}, 63);
  expect_sums({{0, 1, 2, 3, 0, 1, 2, 3}, kSizes, kBuckets, owners, /*absent=*/7, /*tree=*/true},
              64);
}

/// What process 0 reports when its reads fail, and after how many seconds. `reports`: process 1
/// says that it has failed.
std::pair<std::string, double> failed_read(bool reports) {
  MemoryWorld world(2, 70);
  world.share_memory(true);
  std::pair<std::string, double> reported;
  std::atomic<int> begun = 0, ended = 0;
  const auto wait_for_both = [](std::atomic<int>& processes) {
    for (++processes; processes < 2;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  in_processes(world, 2, [&](ProcessGroup& group) {
    wait_for_both(begun);
    world.set_reads(MemoryWorld::Reads::kEnded);
    const double begin = steady_seconds();
    std::vector<float> gradient(10, 1.0F);
    std::unique_ptr<RemoteReplicas> sums;
    MessageThread messages(
        group,
        [&](const std::exception_ptr& error) {
          try {
            std::rethrow_exception(error);
          } catch (const std::exception& failure) {
            if (group.rank() == 0) reported = {failure.what(), steady_seconds() - begin};
          }
          sums->abort();
        },
        [] { return std::pair("", std::uint64_t{0}); }, [] { return false; },
        /*timeout_seconds=*/60);
    sums =
        std::make_unique<RemoteReplicas>(group, messages, std::vector{0, 1}, ProcessGroup::kFreeTag,
                                         std::vector<std::size_t>{10}, std::vector{-1}, kBuckets);
    sums->bind(group.rank(), {std::span(gradient)});
    sums->reset();
    messages.add(*sums);
    sums->complete(group.rank(), 0);
    if (group.rank() == 1 && reports) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until the read has failed
      group.say_failed(Error(ErrorKind::kData, "a bad sample"));
    } else {
      EXPECT_THROW(sums->reduce(group.rank(), true), ChannelAborted);
    }
    wait_for_both(ended);
  });
  return reported;
}

// The launcher and other processes have some time to report it first.
TEST(RemoteReplicas, ReportAProcessThatCannotBeRead) {
  const auto [text, seconds] = failed_read(false);
  EXPECT_EQ(text, "process 1 on here has ended");
  EXPECT_GT(seconds, 2.5);
  EXPECT_EQ(failed_read(true).first, "a bad sample\n  while in process 1 on here");
}

// Processes of one host tell each other where their gradients are.
TEST(RemoteReplicas, ReadTheGradientsOfTheirHost) {
  const SumCase sums{{0, 1, 2}, {500'000, 70}, {1 << 20, 1 << 20}};
  MemoryWorld messages(3, 60), memory(3, 60), hosts(3, 60);
  messages.share_memory(false);
  memory.share_memory(true);
  hosts.share_memory(true);
  hosts.name_hosts({"a", "a", "b"});
  const auto all = static_cast<double>(expect_sums_in(messages, sums));
  EXPECT_LT(static_cast<double>(expect_sums_in(memory, sums)), 0.01 * all);
  const auto between_two = static_cast<double>(expect_sums_in(hosts, sums));
  EXPECT_GT(between_two, 0.6 * all);
  EXPECT_LT(between_two, 0.7 * all);
}

TEST(NarrowFloats, AreThoseOfTheTensors) {
  std::mt19937 random(3);
  std::vector<float> values = {0.0F, -0.0F, 1e-40F, 3.4e38F, 1.00390625F, 1.01171875F};
  for (const float sign : {1.0F, -1.0F}) {
    values.push_back(sign * std::numeric_limits<float>::infinity());
    values.push_back(sign * std::numeric_limits<float>::quiet_NaN());
    values.push_back(std::bit_cast<float>(sign > 0 ? 0x7f80'0001U : 0xff80'0001U));
  }
  for (int i = 0; i < 10'000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  std::vector<float> rounded = values, back;
  round_to_bfloat16(rounded);
  std::vector<std::uint16_t> narrow;
  pack_bfloat16(rounded, narrow);
  unpack_bfloat16(narrow, back);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(narrow[i], float_to_bfloat16(values[i])) << values[i];
    EXPECT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::bit_cast<std::uint32_t>(rounded[i]));
  }
}

}  // namespace
}  // namespace pipetrain::test
