// Writes predicted and measured rounds as a trace for Perfetto (ui.perfetto.dev) and
// chrome://tracing, incrementally, so memory does not grow.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "pipeline/program/program.h"
#include "pipeline/simulate/timeline.h"

namespace pipetrain {

/// The two processes of a trace.
enum class TraceSide : std::uint8_t { kMeasured, kPredicted };

/// The name of a side in trace files: "measured", "predicted".
const char* to_text(TraceSide side);

struct TraceLabels {
  std::string title;                      // of the run, for example the model's name
  std::string run;                        // its name, as in its events; may be empty
  std::vector<std::string> device_names;  // empty: "device 0", …
  std::vector<std::int64_t>
      bytes_per_micro_batch;  // [stages], activations kept for one micro-batch; or empty
};

/// Writes one trace file, in the format of Chrome's trace events (JSON). Each device has a track of
/// compute and one of communication (more where transfers overlap, since events on one track must
/// not), one of the buckets of gradients that replicas sum, arrows from what makes data to what
/// reads it, and a counter of the micro-batches, or bytes, whose activations it holds. The programs
/// are included as text, so that read_trace() restores everything.
class TraceWriter {
 public:
  /// Begins a file; nothing is at `path` before end(). Throws Error(kResource).
  TraceWriter(const std::filesystem::path& path, TraceLabels labels);

  /// Appends one round, `start_seconds` after the beginning of the trace. Steps of one side follow
  /// each other in time. Throws Error(kInternal) if the events are not those of the program,
  /// Error(kResource) on a full disk.
  void add_step(TraceSide side, const Program& program, const Events& events, double start_seconds,
                std::int64_t step, std::span<const BucketEvent> buckets = {});
  /// Completes the file.
  void end();

 private:
  /// Tracks of one device on one side: the last end on each, in ns.
  struct DeviceTracks {
    std::int64_t compute_end = 0;
    std::vector<std::int64_t> communication_end, buckets_end;
    bool named = false;
  };
  struct SideState {
    bool named = false;
    std::vector<DeviceTracks> devices;
    std::int64_t steps_end = 0;
  };

  void put(const std::string& event);
  void name_side(TraceSide side);
  void name_track(TraceSide side, int track, const std::string& name);
  std::string device_name(std::size_t device) const;
  void add_slice(TraceSide side, const Program& program, const Event& event, std::int64_t origin,
                 std::int64_t step);
  int free_lane(TraceSide side, int device, std::vector<std::int64_t>& ends, int first, int most,
                const char* name, std::int64_t& start);
  void add_buckets(TraceSide side, std::span<const BucketEvent> buckets, std::int64_t origin,
                   std::int64_t step);
  void add_flows(TraceSide side, const Program& program, const Events& events, std::int64_t origin);
  void add_counters(TraceSide side, const Program& program, const Events& events,
                    std::int64_t origin);
  std::size_t number_of(const Program& program);
  void flush(std::size_t at_least);

  AtomicFile file_;
  TraceLabels labels_;
  std::string buffer_;
  bool first_ = true;
  std::int64_t next_flow_ = 1;
  SideState sides_[2];
  std::vector<Program> programs_;
  std::vector<std::string> steps_;  // JSON objects for the end of the file
};

/// One round read from a trace file: events in seconds since its start.
struct TraceStep {
  TraceSide side = TraceSide::kMeasured;
  std::int64_t step = 0;
  std::size_t program = 0;  // into TraceFile::programs
  double start_seconds = 0;
  Events events;
  std::vector<BucketEvent> buckets;
};

struct TraceFile {
  std::string run;  // that wrote it; empty: not known
  std::vector<Program> programs;
  std::vector<TraceStep> steps;
};

/// Reads a file that TraceWriter wrote (at most 256 MiB). Throws Error(kUsage) that names the field
/// where it is something else, damaged, or lacks an instruction.
TraceFile read_trace(const std::filesystem::path& path);

}  // namespace pipetrain
