// What a stage puts into its device's stream is the same whenever a micro-batch comes by with the
// same addresses: it is recorded the second time and put in as a whole from then on. The first time
// shows that it can be done at all, and lets libraries load what they need.
//
//   slot 0, forward:  put in one by one   record, put in   put in   put in …
//   slot 1, forward:  put in one by one   record, put in   put in …
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

  /// False where nothing can be recorded, or no longer.
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
  /// Puts in the work that was described, by put_in() or as it was recorded. Where recording fails
  /// it is put in one by one from then on.
  void run(const std::function<void()>& put_in);

 private:
  using Key = std::vector<std::uintptr_t>;
  // A stage's programs repeat far fewer sets of addresses; each recording takes memory.
  static constexpr std::size_t kMost = 256;

  std::unique_ptr<RecordedWork> record(const std::function<void()>& put_in);

  WorkRecorder* recorder_;
  Key key_;
  std::map<Key, std::unique_ptr<RecordedWork>> known_;  // null: was put in once
};

}  // namespace pipetrain
