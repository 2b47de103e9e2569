#include "train/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "support/temporary_directory.h"
#include "train/folder_lock.h"
#include "train/manifest.h"
#include "train/saving.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

HostTensor numbers(Shape shape, float first) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  for (float& x : out.span<float>()) x = first++;
  return out;
}

Checkpoint small_checkpoint(std::int64_t step = 12) {
  Checkpoint out;
  out.run.model_fingerprint = std::string(64, 'a');
  out.run.data_fingerprint = "50 samples, 01234567";
  out.run.settings = {{"--lr", "0.1"}, {"--model", "a \"quoted\" näme.onnx"}};
  out.run.numbers = {{"seed", "1"}, {"optimizer", "adam"}};
  out.reason = "every";
  out.step = step;
  out.total_steps = 40;
  out.batches_per_epoch = 8;
  out.learning_rate = 0.1;
  if (step >= 8) out.best = BestResult{8, 0.25};
  out.cuts = {2, 5};
  out.order = {0, 2, 1, 3};
  out.round_start = step - 2;
  out.round_batches = 8;
  out.updates = {step, step, step};
  out.weights = {
      {"l1.weight", numbers({3, 4}, 1)}, {"l1.bias", numbers({3}, 20)}, {"scalar", numbers({}, 7)}};
  out.optimizer = {{"mean/l1.weight", numbers({3, 4}, 30)},
                   {"mean_square/l1.weight", numbers({3, 4}, 50)}};
  out.stashed = {{9, {{"l1.weight", numbers({3, 4}, 70)}}},
                 {10, {{"l1.weight", numbers({3, 4}, 90)}}}};
  return out;
}

bool equal(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, tensor] : a) {
    const auto other = b.find(name);
    if (other == b.end() || !(tensor.type() == other->second.type()) ||
        std::memcmp(tensor.view().data, other->second.view().data, tensor.type().bytes()) != 0)
      return false;
  }
  return true;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Safetensors, BytesAreThoseOfTheFormat) {
  const TemporaryDirectory folder;
  write_safetensors(folder / "x.safetensors", {{"b", numbers({2}, 1)}, {"a", numbers({}, 3)}});
  const std::string bytes = get_file(folder / "x.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ((8 + length) % 64, 0U);
  const std::string expected =
      R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})";
  EXPECT_EQ(bytes.substr(8, expected.size()), expected);
  EXPECT_EQ(bytes.find_first_not_of(' ', 8 + expected.size()), 8 + length);
  const float data[] = {3, 1, 2};
  EXPECT_EQ(bytes.substr(8 + length),
            std::string(reinterpret_cast<const char*>(data), sizeof data));
}

TEST(Checkpoint, ComesBackAsItWas) {
  const TemporaryDirectory folder;
  Checkpoint written = small_checkpoint();
  written.unmeasured = {"auc", 3};
  const WrittenCheckpoint result = write_checkpoint(folder.path(), written);
  EXPECT_EQ(result.path.filename(), "step-000012");
  const Checkpoint read = read_checkpoint(result.path);
  EXPECT_EQ(read.run.model_fingerprint, written.run.model_fingerprint);
  EXPECT_EQ(read.run.data_fingerprint, written.run.data_fingerprint);
  EXPECT_EQ(read.run.settings, written.run.settings);
  EXPECT_EQ(read.run.numbers, written.run.numbers);
  EXPECT_EQ(read.reason, "every");
  EXPECT_EQ(read.step, 12);
  EXPECT_EQ(read.total_steps, 40);
  EXPECT_EQ(read.batches_per_epoch, 8);
  EXPECT_EQ(read.learning_rate, 0.1);
  ASSERT_TRUE(read.best);
  EXPECT_EQ(read.best->step, 8);
  EXPECT_EQ(read.best->value, 0.25);
  EXPECT_EQ(read.unmeasured.metric, "auc");
  EXPECT_EQ(read.unmeasured.validations, 3);
  EXPECT_EQ(read.cuts, written.cuts);
  EXPECT_EQ(read.order, written.order);
  EXPECT_EQ(read.round_start, 10);
  EXPECT_EQ(read.round_batches, 8);
  EXPECT_EQ(read.updates, written.updates);
  EXPECT_TRUE(equal(read.weights, written.weights));
  EXPECT_TRUE(equal(read.optimizer, written.optimizer));
  ASSERT_EQ(read.stashed.size(), 2U);
  EXPECT_TRUE(equal(read.stashed.at(9), written.stashed.at(9)));
  EXPECT_TRUE(equal(read.stashed.at(10), written.stashed.at(10)));
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"latest", "step-000012"}));
  EXPECT_EQ(find_checkpoint(folder / "latest").path, result.path);
  // The same state gives the same bytes.
  const TemporaryDirectory other;
  write_checkpoint(other.path(), written);
  for (const std::string& name : names_in(result.path))
    EXPECT_EQ(get_file(result.path / name), get_file(other / "step-000012" / name)) << name;
}

TEST(Checkpoint, EverySingleFlippedBitIsNoticed) {
  const TemporaryDirectory folder;
  Checkpoint checkpoint = small_checkpoint();
  checkpoint.weights["l2.weight"] = numbers({16, 80}, 200);
  const fs::path path = write_checkpoint(folder.path(), checkpoint).path;
  std::vector<FileRecord> files;
  const fs::path manifest = path / "manifest.json";
  const std::string text = get_file(manifest);
  parse_manifest(text, manifest, files);
  std::size_t positions = 0;
  const auto is_noticed = [&](const std::string& name, std::size_t bit, auto&& read) {
    ++positions;
    try {
      read();
      ADD_FAILURE() << name << ": bit " << bit;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kData) << error.what();
      ASSERT_NE(error.message().find(name), std::string::npos) << error.what();
    }
  };
  const auto flipped = [](std::string bytes, std::size_t bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    return bytes;
  };
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::vector<FileRecord> ignored;
    is_noticed("manifest.json", bit,
               [&] { parse_manifest(flipped(text, bit), manifest, ignored); });
  }
  ASSERT_EQ(files.size(), 3U);
  for (const FileRecord& file : files) {
    const std::string bytes = get_file(path / file.name);
    ASSERT_EQ(bytes.size(), file.bytes);
    // Not written anew each time, for which many file systems wait for the disk.
    std::fstream changed(path / file.name, std::ios::in | std::ios::out | std::ios::binary);
    const auto put_byte = [&](const std::string& from, std::size_t byte) {
      changed.seekp(static_cast<std::streamoff>(byte)).put(from[byte]).flush();
      ASSERT_TRUE(changed.good());
    };
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      put_byte(flipped(bytes, bit), bit / 8);
      is_noticed(file.name, bit, [&] { read_safetensors(path / file.name, file); });
      put_byte(bytes, bit / 8);
    }
    ASSERT_EQ(get_file(path / file.name), bytes);
  }
  EXPECT_GE(positions, 65536U);
  read_checkpoint(path);
}

TEST(Checkpoint, WhatIsCutOffLengthenedOrMissingIsNamed) {
  const TemporaryDirectory folder;
  const fs::path path = write_checkpoint(folder.path(), small_checkpoint()).path;
  for (const std::string& name : names_in(path)) {
    const std::string good = get_file(path / name);
    for (const std::string& bad :
         {good.substr(0, good.size() / 2), good.substr(0, good.size() - 1), std::string(),
          good + "x", std::string(8, '\xff') + good.substr(8)}) {
      put_file(path / name, bad);
      try {
        read_checkpoint(path);
        ADD_FAILURE() << name;
      } catch (const Error& error) {
        EXPECT_NE(error.message().find(name), std::string::npos) << error.what();
      }
    }
    fs::remove(path / name);
    EXPECT_THROW(read_checkpoint(path), Error) << name;
    put_file(path / name, good);
  }
  // Data of another step under this manifest.
  Checkpoint other = small_checkpoint();
  other.weights["l1.bias"] = numbers({3}, 21);
  const TemporaryDirectory there;
  write_checkpoint(there.path(), other);
  put_file(path / "weights.safetensors", get_file(there / "step-000012/weights.safetensors"));
  try {
    read_checkpoint(path);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("tensor \"l1.bias\""), std::string::npos) << error.what();
  }
}

TEST(Checkpoint, ADamagedOneIsPassedOver) {
  const TemporaryDirectory folder;
  EXPECT_FALSE(newest_checkpoint(folder.path()));
  for (const std::int64_t step : {8, 12, 1000000})
    write_checkpoint(folder.path(), small_checkpoint(step));
  EXPECT_EQ(newest_checkpoint(folder.path())->checkpoint.step,
            1000000);  // not by the order of names
  std::string bytes = get_file(folder / "step-1000000/optimizer.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  put_file(folder / "step-1000000/optimizer.safetensors", bytes);
  const auto found = newest_checkpoint(folder.path());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->checkpoint.step, 12);
  ASSERT_EQ(found->refused.size(), 1U);
  EXPECT_NE(found->refused[0].find("tensor \"mean_square/l1.weight\""), std::string::npos)
      << found->refused[0];
  for (const char* name : {"step-000008", "step-000012"})
    fs::remove(folder / name / "manifest.json");
  EXPECT_THROW(newest_checkpoint(folder.path()), Error);
}

TEST(Checkpoint, KeepsTheNewestAndTheBest) {
  const TemporaryDirectory folder;
  for (const std::int64_t step : {1, 2, 3, 4, 5})
    write_checkpoint(folder.path(), small_checkpoint(step));
  write_checkpoint(folder.path(), small_checkpoint(999999));
  write_checkpoint(folder.path(), small_checkpoint(1000000));
  EXPECT_EQ(newest_checkpoint(folder.path())->checkpoint.step,
            1000000);  // the last by name: 999999
  EXPECT_EQ(delete_old_checkpoints(folder.path(), 3, 2, 1000000),
            (std::vector<std::string>{"step-000004", "step-000003", "step-000001"}));
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{"latest", "step-000002", "step-000005", "step-1000000",
                                      "step-999999"}));
  EXPECT_TRUE(delete_old_checkpoints(folder.path(), 0, {}, 1000000).empty());
}

TEST(Checkpoint, ThoseOfStepsThatWereGivenUpGoFirst) {
  const TemporaryDirectory folder;
  // The run has gone back from step 7 to step 4 and is now at step 5.
  for (const std::int64_t step : {3, 4, 6, 7, 5})
    write_checkpoint(folder.path(), small_checkpoint(step));
  EXPECT_EQ(delete_old_checkpoints(folder.path(), 2, {}, 5),
            (std::vector<std::string>{"step-000007", "step-000006", "step-000003"}));
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{"latest", "step-000004", "step-000005"}));
}

TEST(Checkpoint, ThoseOfStepsThatWereGivenUpAreNotTheNewest) {
  const TemporaryDirectory folder;
  for (const std::int64_t step : {3, 4, 7, 5})
    write_checkpoint(folder.path(), small_checkpoint(step));
  const auto written = std::filesystem::last_write_time(folder / "latest");
  const fs::path given_up = folder / "step-000007" / "manifest.json";
  std::filesystem::last_write_time(given_up, written - std::chrono::seconds(1));
  EXPECT_EQ(newest_checkpoint(folder.path())->checkpoint.step, 5);
  EXPECT_EQ(newest_step(folder.path()), 5);
  std::vector<std::string> names;
  for (const auto& path : list_checkpoints(folder.path())) names.push_back(path.filename());
  EXPECT_EQ(names,
            (std::vector<std::string>{"step-000005", "step-000004", "step-000003", "step-000007"}));
  // A run that was killed before it could say which one is the newest.
  for (const int later : {0, 1}) {
    std::filesystem::last_write_time(given_up, written + std::chrono::seconds(later));
    EXPECT_EQ(newest_checkpoint(folder.path())->checkpoint.step, 7);
  }
}

TEST(Checkpoint, OneThatWasToBeReplacedIsFound) {
  const TemporaryDirectory folder;
  write_checkpoint(folder.path(), small_checkpoint(8));
  const fs::path place = write_checkpoint(folder.path(), small_checkpoint(12)).path;
  const fs::path hidden = folder / ".step-000012.123.replaced";
  fs::rename(place, hidden);
  EXPECT_EQ(newest_checkpoint(folder.path())->checkpoint.step, 12);
  EXPECT_EQ(newest_step(folder.path()), 12);
  delete_unfinished(folder.path());
  EXPECT_EQ(read_checkpoint(place).step, 12);
  fs::create_directory(hidden);
  EXPECT_EQ(list_checkpoints(folder.path()).size(), 2U);
  delete_unfinished(folder.path());
  EXPECT_FALSE(fs::exists(hidden));
}

TEST(Checkpoint, OfTheSameStepIsReplaced) {
  const TemporaryDirectory folder;
  write_checkpoint(folder.path(), small_checkpoint());
  Checkpoint again = small_checkpoint();
  again.weights["scalar"] = numbers({}, 8);
  write_checkpoint(folder.path(), again);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"latest", "step-000012"}));
  EXPECT_TRUE(equal(read_checkpoint(folder / "step-000012").weights, again.weights));
}

TEST(Checkpoint, AFolderBelongsToOneProcess) {
  const TemporaryDirectory folder;
  const fs::path place = folder / "run/checkpoints";
  EXPECT_FALSE(is_locked(place));
  {
    const FolderLock lock(place);
    EXPECT_TRUE(is_locked(place));
    try {
      const FolderLock second(place);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    }
  }
  EXPECT_FALSE(is_locked(place));
  EXPECT_TRUE(names_in(place).empty());
  const FolderLock lock(place);
  fs::create_directories(place / ".step-000004.123.tmp");
  put_file(place / ".step-000004.123.tmp/weights.safetensors", "half");
  fs::create_directories(place / ".step-000001.123.old");
  put_file(place / ".latest.1-2.tmp", "half");
  put_file(place / ".probe-1-2f.tmp", "1-2f");
  delete_unfinished(place);
  EXPECT_EQ(names_in(place), std::vector<std::string>{kLockFile});  // a lock of a file, for NFS
}

TEST(Checkpoint, HiddenFilesOfOthersStay) {
  const TemporaryDirectory folder;
  const std::vector<std::string> others = {".git.tmp",   ".notes.1-2.old", ".notes.replaced",
                                           ".notes.tmp", ".venv.1-2.tmp",  ".venv.old"};
  for (const char* name : {".git.tmp", ".venv.1-2.tmp", ".venv.old"}) {
    fs::create_directory(folder / name);
    put_file(folder / name / "x", "mine");
  }
  for (const char* name : {".notes.1-2.old", ".notes.replaced", ".notes.tmp"})
    put_file(folder / name, "mine");
  put_file(folder / ".latest.1-2.tmp", "half");
  delete_unfinished(folder.path());
  EXPECT_EQ(names_in(folder.path()), others);
  EXPECT_EQ(get_file(folder / ".venv.old/x"), "mine");
}

TEST(Saving, WritesWhileOthersWorkAndSaysWhatCameOfIt) {
  const TemporaryDirectory folder;
  SaveSettings settings;
  settings.folder = folder / "checkpoints";
  settings.every = SaveEvery::parse("4");
  settings.keep = 2;
  Saving saving(settings, 0, 8);
  for (std::int64_t step = 1; step <= 16; ++step) {
    EXPECT_EQ(saving.is_due(step), step % 4 == 0);
    if (step % 4 == 0) {
      saving.decided(step);
      Checkpoint checkpoint = small_checkpoint(step);
      checkpoint.best.reset();
      saving.save(std::move(checkpoint));
    }
  }
  saving.finish();
  const auto outcomes = saving.take_outcomes();
  ASSERT_EQ(outcomes.size(), 4U);
  EXPECT_EQ(outcomes[3].written->deleted, std::vector<std::string>{"step-000008"});
  EXPECT_EQ(saving.last_written().filename(), "step-000016");
  EXPECT_EQ(list_checkpoints(settings.folder).size(), 2U);
}

TEST(Saving, WhatWaitsWhenTrainingFailsIsWritten) {
  const TemporaryDirectory folder;
  SaveSettings settings;
  settings.folder = folder / "checkpoints";
  {
    Saving saving(settings, 0, 8);
    saving.defer(small_checkpoint(2));
  }
  EXPECT_EQ(list_checkpoints(settings.folder).size(), 1U);
}

std::vector<std::int64_t> steps_written(Saving& saving) {
  std::vector<std::int64_t> steps;
  for (const SaveOutcome& outcome : saving.take_outcomes()) steps.push_back(outcome.written->step);
  return steps;
}

TEST(Saving, WhatHasWaitedIsWrittenBeforeWhatIsNewer) {
  const TemporaryDirectory folder;
  SaveSettings settings;
  settings.folder = folder / "checkpoints";
  Saving saving(settings, 0, 8);
  saving.defer(small_checkpoint(2));
  saving.defer(small_checkpoint(3));  // a better one in its place
  saving.save(small_checkpoint(4));
  saving.defer(small_checkpoint(5));
  saving.finish();
  EXPECT_EQ(steps_written(saving), (std::vector<std::int64_t>{3, 4, 5}));
  EXPECT_EQ(saving.last_written().filename(), "step-000005");
}

// The parts of several processes are complete only after a later, better step has been deferred.
TEST(Saving, WhatIsOlderComesBeforeWhatHasWaited) {
  const TemporaryDirectory folder;
  SaveSettings settings;
  settings.folder = folder / "checkpoints";
  Saving saving(settings, 0, 8);
  saving.defer(small_checkpoint(5));
  saving.save(small_checkpoint(4));
  saving.finish();
  EXPECT_EQ(steps_written(saving), (std::vector<std::int64_t>{4, 5}));
  EXPECT_EQ(saving.last_written().filename(), "step-000005");
}

// The stages of an asynchronous round come to a step one after the other: what one step holds may
// be complete only after the next ones have been decided on.
TEST(Saving, CountsFromTheStepThatWasDecidedOn) {
  const TemporaryDirectory folder;
  SaveSettings settings;
  settings.folder = folder / "checkpoints";
  settings.every = SaveEvery::parse("3");
  Saving saving(settings, 0, 8);
  saving.decided(2);
  EXPECT_TRUE(saving.is_due(3));
  saving.decided(3);
  saving.save(small_checkpoint(2));
  EXPECT_FALSE(saving.is_due(4));
  EXPECT_TRUE(saving.is_due(6));
}

TEST(Saving, EndsTheRunAfterThreeFailures) {
  const TemporaryDirectory folder;
  put_file(folder / "checkpoints", "not a folder");
  SaveSettings settings;
  settings.folder = folder / "checkpoints";
  settings.every = SaveEvery::parse("1");
  Saving saving(settings, 0, 8);
  for (std::int64_t step = 1; step <= 3; ++step) {
    saving.save(small_checkpoint(step));
    saving.finish();
    if (step == 3) break;
    const auto outcomes = saving.take_outcomes();
    ASSERT_EQ(outcomes.size(), 1U);
    EXPECT_FALSE(outcomes[0].written);
    EXPECT_NE(outcomes[0].failure.find("checkpoints"), std::string::npos);
    EXPECT_EQ(saving.reason_to_end(), "");
  }
  EXPECT_NE(saving.reason_to_end().find("3 checkpoints in a row"), std::string::npos);
}

TEST(Checkpoint, IsOnesOwnUntilItChanges) {
  const TemporaryDirectory folder;
  ::setenv("PIPETRAIN_CACHE_DIR", (folder / "cache").c_str(), /*overwrite=*/1);
  const fs::path path = write_checkpoint(folder.path(), small_checkpoint()).path;
  EXPECT_TRUE(read_checkpoint(path).is_own);
  ::setenv("PIPETRAIN_CACHE_DIR", (folder / "elsewhere").c_str(), /*overwrite=*/1);
  EXPECT_FALSE(read_checkpoint(path).is_own);
  EXPECT_FALSE(fs::exists(folder / "elsewhere"));  // reading makes no key
  ::unsetenv("PIPETRAIN_CACHE_DIR");
}

TEST(Saving, DoesNotPutABrokenModelBeforeTheLastGoodOne) {
  const TemporaryDirectory folder;
  SaveSettings settings;
  settings.folder = folder / "checkpoints";
  Saving saving(settings, 0, 8);
  saving.save(small_checkpoint(3));
  Checkpoint broken = small_checkpoint(4);
  broken.weights["l1.bias"].span<float>()[1] = std::numeric_limits<float>::quiet_NaN();
  saving.save(broken);
  saving.finish();
  const auto outcomes = saving.take_outcomes();
  ASSERT_EQ(outcomes.size(), 2U);
  EXPECT_NE(outcomes[1].failure.find("l1.bias"), std::string::npos) << outcomes[1].failure;
  EXPECT_EQ(newest_checkpoint(settings.folder)->checkpoint.step, 3);
}

TEST(Saving, SaysWhatItWaitsFor) {
  const TemporaryDirectory folder;
  SaveSettings settings;
  settings.folder = folder.path() / "checkpoints";
  settings.patience_seconds = 0.005;
  Checkpoint large = small_checkpoint();
  large.weights["large"] = numbers({4096, 4096}, 0);  // takes longer to hash
  testing::internal::CaptureStderr();
  {
    Saving saving(settings, 0, 8);
    saving.save(large);
    saving.finish();
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("warning: training waits for the checkpoint of step 12, on which 0."),
            std::string::npos)
      << said;
}

}  // namespace
}  // namespace pipetrain
