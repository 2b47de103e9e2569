// Tasks with durations and "not before" arcs, timed by one relaxation in topological order. With
// every lane in order a schedule is such a graph, so no event queue is needed.
#pragma once

#include <vector>

namespace pipetrain {

class TimedGraph {
 public:
  /// Adds a task and returns its number. It may start at 0 until set_ready() says otherwise.
  int add_task(double seconds);
  /// Makes `after` start no earlier than `delay` seconds after `before` ends.
  void add_arc(int before, int after, double delay = 0);
  /// Sets the earliest start of a task, for the next relax().
  void set_ready(int task, double seconds);
  double ready(int task) const { return ready_[static_cast<std::size_t>(task)]; }

  /// Computes every start time, in O(tasks + arcs). Returns false if the arcs form a cycle; then
  /// unfinished() names the tasks that can never start.
  bool relax();
  std::vector<int> unfinished() const;

  double start(int task) const { return start_[static_cast<std::size_t>(task)]; }
  double end(int task) const {
    return start_[static_cast<std::size_t>(task)] + seconds_[static_cast<std::size_t>(task)];
  }
  double seconds(int task) const { return seconds_[static_cast<std::size_t>(task)]; }
  int size() const { return static_cast<int>(seconds_.size()); }

 private:
  struct Arc {
    int before;
    int after;
    double delay;
  };
  void order_tasks();

  std::vector<double> seconds_, ready_, start_;
  std::vector<Arc> arcs_;
  // Filled once by order_tasks(): arcs sorted by their first task, and the topological order.
  std::vector<int> first_arc_;
  std::vector<int> order_;
  bool ordered_ = false;
};

}  // namespace pipetrain
