// Records and replays a stage's device work (CUDA graphs): work with the same addresses runs
// normally the first time, so that libraries can initialize, is recorded the second time, and
// replayed from then on.
//
//   slot 0, forward:  launch one by one   record, replay   replay   replay …
//   slot 1, forward:  launch one by one   record, replay   replay …
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "device/device.h"
#include "device/recorded_work.h"

namespace pipetrain {

class StageRecordings {
 public:
  explicit StageRecordings(Stream& stream) : recorder_(dynamic_cast<WorkRecorder*>(&stream)) {}

  /// False where recording is not supported or has failed.
  bool records() const { return recorder_ != nullptr; }
  /// Starts the description of work: everything that it depends on must follow.
  StageRecordings& describe(const void* steps);
  StageRecordings& with(const void* address) {
    key_.push_back(reinterpret_cast<std::uintptr_t>(address));
    return *this;
  }
  StageRecordings& with(bool flag) {
    key_.push_back(flag);
    return *this;
  }
  /// Runs the described work through put_in() or replays its recording. After a failed recording it
  /// always runs through put_in().
  void run(const std::function<void()>& put_in);

 private:
  using Key = std::vector<std::uintptr_t>;
  // Programs use far fewer sets of addresses; each recording takes memory.
  static constexpr std::size_t kMost = 256;

  std::unique_ptr<RecordedWork> record(const std::function<void()>& put_in);

  WorkRecorder* recorder_;
  Key key_;
  std::map<Key, std::unique_ptr<RecordedWork>> known_;  // null: has run once
};

}  // namespace pipetrain
