// Recorded work that can be replayed with the same addresses and arguments: a CUDA graph.
#pragma once

#include <memory>

namespace pipetrain {

class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
};

/// An optional interface of a Stream: query it with dynamic_cast.
class WorkRecorder {
 public:
  virtual ~WorkRecorder() = default;
  /// Starts recording: work that the calling thread enqueues is recorded instead of run. Nothing
  /// else may be called on the stream meanwhile. False: this stream cannot record.
  virtual bool begin_recording() = 0;
  /// Ends the recording. Null when some work cannot be recorded.
  virtual std::unique_ptr<RecordedWork> end_recording() = 0;
  /// Enqueues all of it.
  virtual void put(RecordedWork& work) = 0;
};

}  // namespace pipetrain
