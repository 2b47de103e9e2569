#include "pipeline/timed_graph.h"

#include <algorithm>

namespace pipetrain {

int TimedGraph::add_task(double seconds) {
  seconds_.push_back(seconds);
  ready_.push_back(0);
  ordered_ = false;
  return size() - 1;
}

void TimedGraph::add_arc(int before, int after, double delay) {
  arcs_.push_back({before, after, delay});
  ordered_ = false;
}

void TimedGraph::set_ready(int task, double seconds) {
  ready_[static_cast<std::size_t>(task)] = seconds;
}

void TimedGraph::order_tasks() {
  const std::size_t count = seconds_.size();
  std::vector<int> waiting(count, 0);
  first_arc_.assign(count + 1, 0);
  for (const Arc& arc : arcs_) {
    ++waiting[static_cast<std::size_t>(arc.after)];
    ++first_arc_[static_cast<std::size_t>(arc.before) + 1];
  }
  for (std::size_t i = 0; i < count; ++i) first_arc_[i + 1] += first_arc_[i];
  std::vector<int> place(first_arc_.begin(), first_arc_.end() - 1);
  std::vector<Arc> sorted(arcs_.size());
  for (const Arc& arc : arcs_) {
    sorted[static_cast<std::size_t>(place[static_cast<std::size_t>(arc.before)]++)] = arc;
  }
  arcs_ = std::move(sorted);

  order_.clear();
  for (std::size_t i = 0; i < count; ++i) {
    if (waiting[i] == 0) order_.push_back(static_cast<int>(i));
  }
  for (std::size_t next = 0; next < order_.size(); ++next) {
    const auto task = static_cast<std::size_t>(order_[next]);
    for (int a = first_arc_[task]; a < first_arc_[task + 1]; ++a) {
      const int after = arcs_[static_cast<std::size_t>(a)].after;
      if (--waiting[static_cast<std::size_t>(after)] == 0) order_.push_back(after);
    }
  }
  ordered_ = true;
}

bool TimedGraph::relax() {
  if (!ordered_) order_tasks();
  start_ = ready_;
  for (const int task : order_) {
    const auto t = static_cast<std::size_t>(task);
    const double end_of_task = start_[t] + seconds_[t];
    for (int a = first_arc_[t]; a < first_arc_[t + 1]; ++a) {
      const Arc& arc = arcs_[static_cast<std::size_t>(a)];
      double& start = start_[static_cast<std::size_t>(arc.after)];
      start = std::max(start, end_of_task + arc.delay);
    }
  }
  return order_.size() == seconds_.size();
}

std::vector<int> TimedGraph::unfinished() const {
  std::vector<bool> done(seconds_.size(), false);
  for (const int task : order_) done[static_cast<std::size_t>(task)] = true;
  std::vector<int> result;
  for (std::size_t i = 0; i < done.size(); ++i) {
    if (!done[i]) result.push_back(static_cast<int>(i));
  }
  return result;
}

}  // namespace pipetrain
