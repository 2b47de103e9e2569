// A summary of a round's events, predicted or measured: duration, busy time, micro-batches in
// flight.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pipeline/program/event.h"
#include "pipeline/program/program.h"

namespace pipetrain {

/// [devices][instructions of the device], in the order of the program's lists.
using Events = std::vector<std::vector<Event>>;

struct Timeline {
  double seconds = 0;        // until the last instruction ends
  std::vector<double> busy;  // [devices], seconds of compute and updates
  double bubble = 0;         // the rest over devices times seconds: waits, transfers, collectives
};

/// Throws Error(kInternal) if the events are not those of the program.
Timeline timeline_of(const Program& program, const Events& events);

/// Of the seconds in which buckets of gradients were under way, the share before a backward of
/// their process was done and only the sum was left to wait for. None: there were no buckets.
std::optional<double> overlapped_share(const Program& program, const Events& events,
                                       std::span<const BucketEvent> buckets);

/// What became of the buckets: "12 buckets of gradients, 46.1 MiB, 87 % of their time during the
/// backward"; empty: there were none.
std::string buckets_text(const Program& program, const Events& events,
                         std::span<const BucketEvent> buckets);

/// A moment at which the number of micro-batches with activations on a device changes.
struct LiveChange {
  double seconds = 0;
  int stage = 0;
  int change = 0;  // +1 or -1
};

/// The changes on one device, in the order of time. Activations are held from the start of the
/// forward (with recompute: only while it runs, and again from the recompute) to the end of the
/// last backward; in an evaluation while the forward runs.
std::vector<LiveChange> live_changes(const Program& program, const Events& events, int device);

/// Most micro-batches whose activations each stage holds at once on one of its replicas, in list
/// order.
std::vector<int> peak_in_flight(const Program& program);

}  // namespace pipetrain
