// One round as a graph of delays fitted to events, used by trace_diff.h to compare two timings.
#pragma once

#include <vector>

#include "pipeline/program/program.h"
#include "pipeline/simulate/timeline.h"
#include "pipeline/view/trace_diff.h"

namespace pipetrain {

/// Nodes take time, arcs delay the start of a node after the end of another. Which causes they
/// belong to and what is connected follows from the program; how long, from events.
class StepGraph {
 public:
  /// Reads a program that check() accepts, and keeps a reference to it.
  explicit StepGraph(const Program& program);

  /// Causes without their seconds.
  const std::vector<DifferenceCause>& causes() const { return causes_; }

  /// Seconds of every node, then of every arc.
  using Delays = std::vector<double>;

  /// Returns delays with which every node starts and ends exactly as in the events. Where several
  /// arcs end at a node, the events determine only the delay of the arc that ended last. The others
  /// take the length of their receive or, if it has none (no device waited for it), their delay in
  /// `expected`, as far as the events allow.
  Delays fit(const Events& events, const Delays* expected = nullptr) const;

  /// The longest path at from + position (to - from).
  struct Path {
    double seconds = 0;
    std::vector<double> per_cause;  // sum of (to - from) over the path, [causes]
    double slope = 0;               // sum of per_cause
  };
  Path longest_path(const Delays& from, const Delays& to, double position) const;

  /// Mean duration of the nodes of each cause [causes]; 0 for causes of arcs.
  std::vector<double> mean_durations(const Delays& delays) const;

 private:
  struct Node {
    int cause = -1;         // of its duration
    std::vector<int> arcs;  // that end here; first the one from the device's previous node
  };
  struct Arc {
    int from = -1;  // node; -1: the start of the round
    int to = -1;
    int cause = -1;
    int receive_device = -1, receive_index = -1;  // its receive instruction, if there is one
  };
  /// The nodes of one instruction. A collective is three: arrival, the meeting of all that take
  /// part, and the end.
  struct Nodes {
    int begin = -1, meeting = -1, end = -1;  // -1: a transfer
  };
  struct Times {
    std::vector<double> start, end;  // [nodes]
  };

  int cause(const DifferenceCause& wanted);
  int add_node(int cause);
  void add_arc(const Arc& arc);
  void add_devices();
  void add_edges();
  void order_nodes();
  Times times_of(const Events& events) const;
  void time_meetings(const Events& events, Times& times) const;

  const Program& program_;
  std::vector<DifferenceCause> causes_;
  std::vector<Node> nodes_;
  std::vector<Arc> arcs_;
  std::vector<int> order_;                  // nodes, topologically
  std::vector<std::vector<Nodes>> placed_;  // [devices][instructions]
};

}  // namespace pipetrain
