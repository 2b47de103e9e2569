// Work that a stream is given once and does again as often as it is asked, with the addresses and
// numbers that it was given with: a CUDA graph.
#pragma once

#include <memory>

namespace pipetrain {

class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
};

/// What a Stream may be as well: ask with dynamic_cast.
class WorkRecorder {
 public:
  virtual ~WorkRecorder() = default;
  /// From now on what the calling thread puts into the stream is recorded, and none of it is done.
  /// Nothing else may be asked of the stream meanwhile. False: this stream does not record.
  virtual bool begin_recording() = 0;
  /// Ends that. Null when something of it could not be recorded.
  virtual std::unique_ptr<RecordedWork> end_recording() = 0;
  /// Puts all of it into the stream.
  virtual void put(RecordedWork& work) = 0;
};

}  // namespace pipetrain
