#include "pipeline/stage/stage_recordings.h"

#include "base/error.h"
#include "base/log.h"

namespace pipetrain {

StageRecordings& StageRecordings::describe(const void* steps) {
  key_.clear();
  return with(steps);
}

void StageRecordings::run(const std::function<void()>& put_in) {
  const auto found = known_.find(key_);
  if (found == known_.end()) {
    put_in();
    if (known_.size() < kMost) known_.emplace(key_, nullptr);
    return;
  }
  if (!found->second) found->second = record(put_in);
  if (found->second) {
    recorder_->put(*found->second);
  } else {
    put_in();
  }
}

std::unique_ptr<RecordedWork> StageRecordings::record(const std::function<void()>& put_in) {
  if (!recorder_ || !recorder_->begin_recording()) {
    recorder_ = nullptr;
    return nullptr;
  }
  std::unique_ptr<RecordedWork> work;
  try {
    put_in();
    work = recorder_->end_recording();
    if (!work) log_debug("pipeline", "a stage's work cannot be recorded");
  } catch (const Error& error) {
    // What cannot be recorded may still run.
    recorder_->end_recording();
    log_debug("pipeline", "a stage's work cannot be recorded: {}", error.message());
  }
  if (!work) recorder_ = nullptr;
  return work;
}

}  // namespace pipetrain
