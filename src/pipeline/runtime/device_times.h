// Instruction times measured by the device's clock, since the host enqueues work long before the
// device runs it.
//
//   thread:  begin 0  kernels  end 0  begin 1  kernels  end 1 …   finish (all times are read)
//   stream:  ──────── point ─ kernels ─ point ─ wait ─ point ─ kernels ─ point ──→
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "pipeline/program/event.h"
#include "pipeline/program/program.h"

namespace pipetrain {

/// Times of the instructions that one thread enqueues on one stream.
class DeviceTimes {
 public:
  explicit DeviceTimes(Stream& stream) : stream_(stream) {}

  /// Begins a round at `round_start` (steady_seconds()). Synchronizes with the stream to read the
  /// device's clock.
  void start(double round_start);
  /// Work enqueued from here on belongs to instruction `index`; a second call for the same one
  /// restarts it.
  void begin(int index);
  /// Ends the instruction; only the first call counts.
  void end();
  /// Sets the times of the events that were begun. The stream must be synchronized.
  void finish(std::span<Event> events);

 private:
  struct Span {
    int index = -1;
    bool ended = false;
    std::unique_ptr<TimedPoint> begin, end;
  };
  Event read(Span span);
  /// Reads the older half when many are pending, since a round may be a whole epoch.
  void read_some();

  Stream& stream_;
  std::unique_ptr<TimedPoint> origin_;
  double origin_seconds_ = 0;  // its time, since the round's start
  std::deque<Span> open_;      // not yet read
  std::vector<Span> free_;
  std::vector<Event> read_;
};

/// Derives receive times from compute times: a transfer starts when its producer ends and ends when
/// the device waiting for it continues, or at once if none waits. Receives from other processes
/// keep the host's times.
void time_receives(const Program& program, std::span<std::vector<Event>> events);

}  // namespace pipetrain
