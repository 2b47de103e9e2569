// A round is one run of a program: where its units come from, and what comes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipeline/program/event.h"

namespace pipetrain {

/// One micro-batch of a round. `columns`: first byte of the micro-batch in each graph input, then
/// the label.
struct MicroBatch {
  int variant = 0;
  std::uint64_t step = 0;         // optimizer step that it belongs to: keys the random masks
  std::int64_t first_sample = 0;  // in its mini-batch
  double loss_scale = 1;
  std::vector<const std::byte*> columns;
  // Results.
  double loss_sum = 0;
  double correct = 0;
};

/// Gives the units of a round. Called from several threads.
class UnitSource {
 public:
  virtual ~UnitSource() = default;
  /// The unit; waits until its data are there. Stays valid until released.
  virtual MicroBatch& acquire(int unit) = 0;
  /// No stage needs the unit's data any more.
  virtual void release(int unit) = 0;
  /// Learning rate of the update that follows a unit (kSync: the round; unit 0), and how many
  /// updates came before a kSync round.
  virtual double learning_rate(int unit) const = 0;
  virtual std::int64_t updates_before() const = 0;
  /// Asynchronous rounds: a replica of a stage has made the update that follows a unit, and version
  /// `version` of its weights with it. Called in the stage's thread, which goes on afterwards.
  virtual void updated(int /*stage*/, int /*replica*/, int /*unit*/, int /*version*/) {}
};

struct RoundResult {
  double seconds = 0;
  double gradient_norm = 0;  // of kSync rounds with clipping or asked for; of the loss unscaled
  double loss_scale = 1;     // that the round's backward passes began with
  bool skipped = false;      // some gradient was not finite: nothing has been changed
  /// As the program's lists; by the devices' own clocks where there are devices. A receive lasts
  /// from when its data leave to when they are there, or when the device that waits for them goes
  /// on.
  std::vector<std::vector<Event>> events;
  std::vector<double>
      busy_seconds;            // per device: in compute instructions, and pieces of them in waits
  double worked_in_waits = 0;  // seconds of all devices for such pieces: events do not have them
  std::vector<double> cpu_seconds;  // per device: CPU time of the worker thread
};

}  // namespace pipetrain
