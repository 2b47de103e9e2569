#include "train/replica_turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace pipetrain {
namespace {

ReplicaUpdates async_updates(int replicas, int staleness) {
  return {ReplicaMode::kAsync, staleness, 0, replicas};
}

ReplicaUpdates backup_workers(int replicas, int backup) {
  return {ReplicaMode::kBackup, -1, backup, replicas};
}

std::vector<DataPart> parts_of(const std::vector<ReplicaTurns::Contribution>& update) {
  std::vector<DataPart> parts;
  for (const ReplicaTurns::Contribution& each : update) parts.push_back(each.part);
  return parts;
}

using Parts = std::vector<DataPart>;

TEST(ReplicaTurns, AGradientIsAppliedWhenItComes) {
  ReplicaTurns turns(async_updates(2, 3), {}, 100);
  EXPECT_EQ(turns.give_out(0), (DataPart{0, 0}));
  EXPECT_EQ(turns.give_out(1), (DataPart{1, 0}));
  EXPECT_EQ(turns.give_out(1), std::nullopt) << "it has one";
  EXPECT_TRUE(turns.update().empty());
  EXPECT_TRUE(turns.hand_in(1));
  EXPECT_EQ(parts_of(turns.update()), (Parts{{1, 0}}));
  EXPECT_EQ(turns.version(), 1);
  EXPECT_TRUE(turns.update().empty());
  EXPECT_EQ(turns.give_out(1), (DataPart{2, 1}));
  EXPECT_TRUE(turns.hand_in(0));
  EXPECT_EQ(parts_of(turns.update()), (Parts{{0, 0}}));
}

TEST(ReplicaTurns, AGradientWaitsForOneThatWouldGetTooOld) {
  ReplicaTurns turns(async_updates(2, 1), {}, 100);
  turns.give_out(0);
  turns.give_out(1);
  turns.hand_in(1);
  EXPECT_EQ(turns.update().size(), 1U);
  turns.give_out(1);  // part 2 of version 1, while part 0 of version 0 is in work
  turns.hand_in(1);
  EXPECT_TRUE(turns.update().empty()) << "part 0 would be two updates old";
  EXPECT_EQ(turns.give_out(1), std::nullopt);
  turns.hand_in(0);
  EXPECT_EQ(parts_of(turns.update()), (Parts{{0, 0}}));
  EXPECT_EQ(parts_of(turns.update()), (Parts{{2, 1}}));
}

TEST(ReplicaTurns, EachOlderPartNeedsAnUpdateOfItsOwn) {
  ReplicaTurns turns(async_updates(3, 2), {}, 100);
  for (int r = 0; r < 3; ++r) turns.give_out(r);
  turns.hand_in(2);
  EXPECT_EQ(parts_of(turns.update()), (Parts{{2, 0}})) << "parts 0 and 1 come at versions 1 and 2";
  turns.give_out(2);
  turns.hand_in(2);
  EXPECT_TRUE(turns.update().empty()) << "part 1 would come at version 3 at the earliest";
  turns.hand_in(1);
  EXPECT_EQ(parts_of(turns.update()), (Parts{{1, 0}}));
  EXPECT_TRUE(turns.update().empty()) << "part 0 would come at version 3";
  turns.hand_in(0);
  EXPECT_EQ(parts_of(turns.update()), (Parts{{0, 0}}));
  EXPECT_EQ(parts_of(turns.update()), (Parts{{3, 1}}));
}

TEST(ReplicaTurns, EveryPartIsUsedOnceUpToTheEnd) {
  ReplicaTurns turns(async_updates(2, 4), {}, 3);
  turns.give_out(0);
  turns.give_out(1);
  turns.hand_in(0);
  turns.update();
  EXPECT_EQ(turns.give_out(0), (DataPart{2, 1}));
  turns.hand_in(1);
  turns.update();
  EXPECT_EQ(turns.give_out(1), std::nullopt);
  turns.hand_in(0);
  EXPECT_EQ(turns.update().size(), 1U);
  EXPECT_EQ(turns.version(), 3);
  EXPECT_TRUE(turns.position().unfinished.empty());
}

TEST(ReplicaTurns, BackupWorkersAreLeftOut) {
  ReplicaTurns turns(backup_workers(3, 1), {}, 100);
  for (int r = 0; r < 3; ++r) turns.give_out(r);
  EXPECT_TRUE(turns.hand_in(2));
  EXPECT_TRUE(turns.update().empty());
  EXPECT_TRUE(turns.hand_in(0));
  EXPECT_EQ(parts_of(turns.update()), (Parts{{0, 0}, {2, 0}})) << "in the order of the parts";
  EXPECT_EQ(turns.give_out(0), (DataPart{3, 1}));
  EXPECT_FALSE(turns.hand_in(1)) << "of weights that are no longer the newest";
  EXPECT_EQ(turns.give_out(1), (DataPart{4, 1}));
}

TEST(ReplicaTurns, OfBackupWorkersTheFirstGradientsCount) {
  ReplicaTurns turns(backup_workers(3, 2), {}, 100);
  for (int r = 0; r < 3; ++r) turns.give_out(r);
  turns.hand_in(2);
  turns.hand_in(0);
  EXPECT_EQ(parts_of(turns.update()), (Parts{{2, 0}}));
  EXPECT_TRUE(turns.update().empty());
  EXPECT_EQ(turns.give_out(0), (DataPart{3, 1})) << "its gradient came second";
}

TEST(ReplicaTurns, UnfinishedPartsAreGivenOutAgain) {
  ReplicaTurns turns(async_updates(3, 4), {}, 100);
  for (int r = 0; r < 3; ++r) turns.give_out(r);
  turns.hand_in(1);
  turns.update();
  const ReplicaTurns::Position position = turns.position();
  EXPECT_EQ(position.version, 1);
  EXPECT_EQ(position.next_part, 3);
  EXPECT_EQ(position.unfinished, (std::vector<std::int64_t>{0, 2}));
  ReplicaTurns resumed(async_updates(1, 4), position, 100);
  for (const std::int64_t number : {0, 2, 3}) {
    EXPECT_EQ(resumed.give_out(0), (DataPart{number, resumed.version()}));
    resumed.hand_in(0);
    EXPECT_EQ(resumed.update().size(), 1U);
  }
}

/// Lets random replicas finish in random order, some of them much slower than others.
void run_at_random(const ReplicaUpdates& how, std::uint64_t seed) {
  constexpr std::int64_t kLast = 200;
  std::mt19937_64 random(seed);
  ReplicaTurns turns(how, {}, kLast);
  std::vector<std::int64_t> left(static_cast<std::size_t>(how.replicas), 0);  // of work; 0: idle
  std::set<std::int64_t> used;
  for (int idle_rounds = 0; turns.version() < kLast;) {
    bool moves = false;
    for (int r = 0; r < how.replicas; ++r) {
      std::int64_t& work = left[static_cast<std::size_t>(r)];
      if (work > 0) {
        moves = true;
        if (--work == 0) turns.hand_in(r);
      } else if (const auto part = turns.give_out(r)) {
        moves = true;
        ASSERT_EQ(part->version, turns.version());
        work = 1 + static_cast<std::int64_t>(random() % (r == 0 ? 40 : 4));
      }
      if (random() % 2 == 0) continue;  // several may come before the next look
      while (true) {
        const std::int64_t before = turns.version();
        const Parts parts = parts_of(turns.update());
        if (parts.empty()) break;
        moves = true;
        ASSERT_EQ(parts.size(), static_cast<std::size_t>(how.gradients()));
        ASSERT_TRUE(std::ranges::is_sorted(parts, {}, &DataPart::number));
        for (const DataPart& part : parts) {
          ASSERT_TRUE(used.insert(part.number).second) << "part " << part.number << " twice";
          if (how.mode == ReplicaMode::kAsync) {
            ASSERT_LE(before - part.version, how.staleness);
          } else {
            ASSERT_EQ(part.version, before);
          }
        }
      }
    }
    idle_rounds = moves ? 0 : idle_rounds + 1;
    ASSERT_LT(idle_rounds, 50) << "all replicas wait at version " << turns.version();
  }
  if (how.mode == ReplicaMode::kAsync) {
    EXPECT_EQ(used.size(), static_cast<std::size_t>(kLast));
    EXPECT_EQ(*used.rbegin(), kLast - 1);
  }
}

TEST(ReplicaTurns, NobodyWaitsForEverAndNoGradientIsTooOld) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    for (int replicas = 1; replicas <= 5; ++replicas) {
      for (const int more : {0, 1, 5})
        run_at_random(async_updates(replicas, replicas - 1 + more), seed);
      for (int backup = 1; backup < replicas; ++backup)
        run_at_random(backup_workers(replicas, backup), seed);
      if (HasFatalFailure()) FAIL() << "seed " << seed << ", " << replicas << " replicas";
    }
  }
}

}  // namespace
}  // namespace pipetrain
