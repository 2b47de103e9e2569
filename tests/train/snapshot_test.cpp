// The copy of a run's newest state in memory.
#include "train/snapshot.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "train/manifest.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

HostTensor counted_from(Shape shape, float first) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  for (float& x : out.span<float>()) x = first++;
  return out;
}

Checkpoint state_at(std::int64_t step, std::int64_t columns = 4) {
  Checkpoint out;
  out.run.model_fingerprint = std::string(64, 'a');
  out.run.settings = {{"--lr", "0.1"}};
  out.run.data_fingerprint = "of the data";
  out.run.outputs = {{"--output", "x.onnx"}};
  out.run.numbers = {{"seed", "1"}};
  out.reason = "restart";
  out.step = step;
  out.total_steps = 1000;
  out.batches_per_epoch = 8;
  out.learning_rate = 1.0 / 3;
  out.loss_scale = {1024, step / 2, step / 3};
  out.seconds = 0.1 * static_cast<double>(step);
  out.best = BestResult{1, 0.25};
  out.unmeasured = {"auc", 1};
  out.cuts = {2, 5};
  out.order = {0, 2, 1, 3};
  out.round_start = step - 1;
  out.round_batches = 8;
  out.updates = {step, step};
  const auto first = static_cast<float>(step);
  out.weights = {{"w", counted_from({3, columns}, first)}, {"scalar", counted_from({}, first)}};
  out.optimizer = {{"mean/w", counted_from({3, columns}, first + 100)}};
  out.stashed = {{7, {{"w", counted_from({3, columns}, first + 200)}}},
                 {8, {{"w", counted_from({3, columns}, first + 300)}}}};
  out.best_weights = {{"w", counted_from({3, columns}, first + 400)}};
  out.replicas = ReplicaRecord{{{0, 0}, {2, 1}}, {0.1, 1.0 / 3}, 4, {1, 3}, "of weights", step};
  return out;
}

void expect_same(const NamedTensors& a, const NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    const HostTensor& other = b.at(name);
    ASSERT_EQ(tensor.type(), other.type()) << name;
    EXPECT_EQ(std::memcmp(tensor.view().data, other.view().data, tensor.type().bytes()), 0) << name;
  }
}

/// The descriptors of the copies of the only snapshot that there is.
std::vector<int> files_of_copies() {
  std::vector<int> files;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (fs::read_symlink(entry.path(), error).string().find("pipetrain snapshot") !=
        std::string::npos)
      files.push_back(std::stoi(entry.path().filename().string()));
  }
  return files;
}

TEST(Snapshot, GivesBackWhatWasKept) {
  Snapshot snapshot;
  EXPECT_FALSE(snapshot.newest());
  for (const std::int64_t step : {1, 2, 3}) {
    const Checkpoint kept = state_at(step);
    snapshot.keep(kept, 0);
    const std::optional<Checkpoint> found = snapshot.newest();
    ASSERT_TRUE(found);
    EXPECT_EQ(found->step, step);
    EXPECT_TRUE(found->is_own);
    EXPECT_EQ(found->learning_rate, kept.learning_rate);
    EXPECT_EQ(found->cuts, kept.cuts);
    EXPECT_EQ(found->order, kept.order);
    EXPECT_EQ(found->round_start, kept.round_start);
    EXPECT_EQ(found->updates, kept.updates);
    EXPECT_EQ(found->run.settings, kept.run.settings);
    EXPECT_EQ(found->best->value, 0.25);
    EXPECT_EQ(manifest_text(*found, {}), manifest_text(kept, {})) << "all that is no tensor";
    expect_same(found->weights, kept.weights);
    expect_same(found->optimizer, kept.optimizer);
    expect_same(found->best_weights, kept.best_weights);
    EXPECT_EQ(found->replicas, kept.replicas);
    ASSERT_EQ(found->stashed.size(), 2U);
    for (const auto& [version, tensors] : kept.stashed)
      expect_same(found->stashed.at(version), tensors);
  }
}

// So that a small network keeps one after each step: a step of a millisecond has 20 us for it.
TEST(Snapshot, OfASmallStateTakesMicroseconds) {
  Snapshot snapshot;
  Checkpoint state = state_at(1);
  for (int i = 0; i < 60; ++i) state.run.numbers.emplace_back("number", "value");
  double least = 1;
  for (int i = 0; i < 200; ++i) {
    const double before = thread_cpu_seconds();
    snapshot.keep(state, 0);
    least = std::min(least, thread_cpu_seconds() - before);
  }
  EXPECT_LT(least, 20e-6);
}

TEST(Snapshot, GrowsWithItsContent) {
  Snapshot snapshot;
  for (const std::int64_t columns : {4, 400, 40'000, 4}) {
    snapshot.keep(state_at(columns, columns), 0);
    EXPECT_EQ(snapshot.newest()->step, columns);
    expect_same(snapshot.newest()->weights, state_at(columns, columns).weights);
  }
}

TEST(Snapshot, ADamagedCopyIsNotUsed) {
  Snapshot snapshot;
  snapshot.keep(state_at(1), 0);
  snapshot.keep(state_at(2), 0);
  const std::vector<int> files = files_of_copies();
  ASSERT_EQ(files.size(), 2U);
  const auto flip = [](int file, off_t at) {
    char byte = 0;
    ASSERT_EQ(::pread(file, &byte, 1, at), 1);
    byte = static_cast<char>(byte ^ 4);
    ASSERT_EQ(::pwrite(file, &byte, 1, at), 1);
  };
  // One of the two is the newer one; behind a flipped bit the older one is found.
  int newer = -1;
  for (int i = 0; i < 2; ++i) {
    flip(files[static_cast<std::size_t>(i)], 500);
    if (snapshot.newest()->step == 1) newer = i;
    flip(files[static_cast<std::size_t>(i)], 500);
    EXPECT_EQ(snapshot.newest()->step, 2);
  }
  ASSERT_GE(newer, 0);
  for (const int file : files) flip(file, 500);
  EXPECT_FALSE(snapshot.newest());
}

TEST(Snapshot, IsGoneWhenItIsForgotten) {
  Snapshot snapshot;
  snapshot.keep(state_at(1), 0);
  snapshot.forget();
  EXPECT_FALSE(snapshot.newest());
  snapshot.keep(state_at(2), 0);
  EXPECT_EQ(snapshot.newest()->step, 2);
}

TEST(Snapshot, OutlivesTheProcessThatKeptIt) {
  Snapshot snapshot;
  int kept[2];
  ASSERT_EQ(::pipe(kept), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    for (std::int64_t step = 1;; ++step) {
      snapshot.keep(state_at(step, 1000), 0);
      if (step == 2 && ::write(kept[1], "2", 1) != 1) ::_exit(1);
    }
  }
  ::close(kept[1]);
  char byte = 0;
  EXPECT_EQ(::read(kept[0], &byte, 1), 1);  // two steps are kept
  ::close(kept[0]);
  ::usleep(50'000);
  ::kill(child, SIGKILL);  // wherever it is
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const std::optional<Checkpoint> found = snapshot.newest();
  ASSERT_TRUE(found);
  EXPECT_GT(found->step, 1);
  expect_same(found->weights, state_at(found->step, 1000).weights);
  expect_same(found->optimizer, state_at(found->step, 1000).optimizer);
}

TEST(Snapshot, TakesAFewPercentOfTheTime) {
  Snapshot snapshot;
  EXPECT_TRUE(snapshot.is_due());
  const double before = steady_seconds();
  snapshot.keep(state_at(1), /*seconds=*/0.002);
  while (!snapshot.is_due()) ::usleep(1000);
  // What collecting took is counted: 2 ms are 2 % of 100 ms.
  EXPECT_GT(steady_seconds() - before, 0.09);
}

}  // namespace
}  // namespace pipetrain
