// A round is one run of a program: where its micro-batches come from, and what comes out.
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

/// Gives the micro-batches of a round. Called from several threads.
class MicroBatchSource {
 public:
  virtual ~MicroBatchSource() = default;
  /// The micro-batch; waits until its data are there. Stays valid until released.
  virtual MicroBatch& acquire(int micro_batch) = 0;
  /// No stage needs the micro-batch's data any more.
  virtual void release(int micro_batch) = 0;
  /// Learning rate of the update that follows a micro-batch (kSync: the round; micro-batch 0), and
  /// how many updates came before a kSync round.
  virtual double learning_rate(int micro_batch) const = 0;
  virtual std::int64_t updates_before() const = 0;
  /// Asynchronous rounds: a replica of a stage has made the update that follows a micro-batch, and
  /// version `version` of its weights with it. Called in the stage's thread, which goes on
  /// afterwards.
  virtual void updated(int /*stage*/, int /*replica*/, int /*micro-batch*/, int /*version*/) {}
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
      busy_seconds;           // per device: in compute instructions, and pieces of them in waits
  double stolen_seconds = 0;  // seconds of all devices for such pieces: events do not have them
  std::vector<double> cpu_seconds;  // per device: CPU time of the worker thread
};

}  // namespace pipetrain
