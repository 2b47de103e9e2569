// When a device worked on each instruction, by its own clock: the thread that puts work into a
// stream is long past an instruction when the device comes to it.
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

/// Of the instructions that one thread puts into one stream.
class DeviceTimes {
 public:
  explicit DeviceTimes(Stream& stream) : stream_(stream) {}

  /// Begins a round. `round_start`: of steady_seconds(). Waits for the stream, which tells how the
  /// device's clock stands.
  void start(double round_start);
  /// What is put in from here on belongs to instruction `index`; said again of the same one: from
  /// here on.
  void begin(int index);
  /// What was put in until now belonged to it; the first time counts.
  void end();
  /// Replaces the times of the events that were begun. The stream has been synchronized.
  void finish(std::span<Event> events);

 private:
  struct Span {
    int index = -1;
    bool ended = false;
    std::unique_ptr<TimedPoint> begin, end;
  };
  Event read(Span span);
  /// Reads the older half when there are many: a round may be a whole epoch.
  void read_some();

  Stream& stream_;
  std::unique_ptr<TimedPoint> origin_;
  double origin_seconds_ = 0;  // when the device came by it, since the round's start
  std::deque<Span> open_;      // not yet read
  std::vector<Span> free_;
  std::vector<Event> read_;
};

/// When receives were over, from when devices computed: data leave when the sender is done with the
/// micro-batch, and are there when the device that waits for them goes on, or at once if none
/// waits. Devices of other processes have no events; what comes from them keeps the host's times.
void time_receives(const Program& program, std::span<std::vector<Event>> events);

}  // namespace pipetrain
