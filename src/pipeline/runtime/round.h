// A round is one run of a program (program.h): the source of its micro-batches, and its results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
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
  bool has_loss = false;  // that was computed in this process
  double loss_sum = 0;
  double correct = 0;
};

/// Provides the micro-batches of a round. Called from several threads.
class MicroBatchSource {
 public:
  virtual ~MicroBatchSource() = default;
  /// Waits for the micro-batch's data. Valid until released.
  virtual MicroBatch& acquire(int micro_batch) = 0;
  /// The network that runs a micro-batch, before there are data for it.
  virtual int variant(int micro_batch) { return acquire(micro_batch).variant; }
  /// Called when no stage needs the micro-batch's data any more.
  virtual void release(int micro_batch) = 0;
  /// The round has been aborted: acquire() no longer waits, neither for data nor for other
  /// micro-batches to be released, but throws ChannelAborted. From any thread.
  virtual void abort() {}
  /// Learning rate of the update that follows a micro-batch (kSync: the round; micro-batch 0), and
  /// how many updates came before a kSync round.
  virtual double learning_rate(int micro_batch) const = 0;
  virtual std::int64_t updates_before() const = 0;
  /// Asynchronous rounds: called before a device begins a micro-batch. If the round ends early,
  /// before this micro-batch is done, returns its number of micro-batches, one of cut_points();
  /// otherwise a number greater than micro_batch. The same in all processes. May block.
  virtual int end_before(int /*micro_batch*/) { return std::numeric_limits<int>::max(); }
  /// Asynchronous rounds: a replica of a stage has made the update after a micro-batch, which
  /// produced weight version `version`. Called on the stage's thread.
  virtual void updated(int /*stage*/, int /*replica*/, int /*micro-batch*/, int /*version*/) {}
};

/// What a stage has handed to another for a micro-batch.
struct SentValues {
  int from = 0, to = 0;  // stages
  int micro_batch = 0;
  bool gradient = false;
  std::uint32_t crc32c = 0;
};

struct RoundResult {
  double seconds = 0;
  double gradient_norm = 0;  // of kSync rounds with clipping or asked for; of the loss unscaled
  double loss_scale = 1;     // that the round's backward passes began with
  bool skipped = false;      // some gradient was not finite: the step changed nothing
  /// Indexed like the program's lists; on GPUs measured by the device's clock. A receive lasts from
  /// the departure of its data to their arrival, or until the waiting device continues.
  std::vector<std::vector<Event>> events;
  std::vector<BucketEvent> buckets;  // of replicas in several processes
  std::vector<double>
      busy_seconds;           // per device: in compute instructions, and in tasks run while waiting
  double stolen_seconds = 0;  // seconds of all devices in such tasks, which have no events
  std::vector<double> cpu_seconds;  // per device: CPU time of the worker thread
  std::vector<SentValues> sent;     // with Runtime::note_sends(), where stages are in host memory
};

/// What processes tell each other beside the results of their rounds, in the same message. Called
/// at the end of each round, by the thread that runs it.
struct RoundNotes {
  std::function<std::string()> mine;
  std::function<void(const std::vector<std::string>&)> all;  // by process
};

}  // namespace pipetrain
