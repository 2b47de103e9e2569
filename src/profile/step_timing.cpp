#include "profile/step_timing.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/clock.h"
#include "base/statistics.h"

namespace pipetrain {
namespace {

constexpr int kWarmUps = 2;  // first use of code and memory
constexpr int kMostRounds = 200;
constexpr double kLongWalk = 0.1;  // what takes so long is known well after three rounds

class Rounds {
 public:
  Rounds(const std::vector<int>& group, const StepTimingOptions& options)
      : group_(group),
        options_(options),
        groups_(static_cast<std::size_t>(
            group.empty() ? 0 : std::max(0, 1 + *std::max_element(group.begin(), group.end())))),
        nodes_(groups_, 0),
        samples_(groups_),
        together_(options.copies),
        of_copy_(static_cast<std::size_t>(options.copies), std::vector<double>(group.size(), 0.0)) {
    for (const int g : group) {
      if (g >= 0) ++nodes_[static_cast<std::size_t>(g)];
    }
  }

  template <class Make>
  StepTiming run(const Make& make) {
    std::vector<std::thread> team;
    for (int copy = 0; copy < options_.copies; ++copy)
      team.emplace_back([&, copy] { walk(make, static_cast<std::size_t>(copy)); });
    for (std::thread& thread : team) thread.join();
    if (failure_) std::rethrow_exception(failure_);
    StepTiming out;
    for (const auto& samples : samples_) out.seconds.push_back(std::max(median(samples), 1e-9));
    out.workspace_bytes = std::move(workspace_bytes_);
    out.one_walk = rounds_ == 0;
    return out;
  }

 private:
  using Clock = double (*)();
  Clock clock() const { return options_.threads == 1 ? thread_cpu_seconds : steady_seconds; }

  /// What reading the clock twice takes.
  double clock_seconds() const {
    double least = 1;
    for (int i = 0; i < 50; ++i) {
      const double start = clock()();
      least = std::min(least, clock()() - start);
    }
    return least;
  }

  template <class Make>
  void walk(const Make& make, std::size_t copy) {
    omp_set_num_threads(options_.threads);
    std::unique_ptr<StepWalk> steps;
    const auto guarded = [&](auto&& body) {
      try {
        if (!failed_) body();
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
        failed_ = true;
      }
    };
    guarded([&] { steps = make(); });
    double walk_seconds = 0;
    for (int i = 0; i < (options_.brief ? 1 : kWarmUps); ++i) {
      together_.arrive_and_wait();
      guarded([&] {
        const double start = steady_seconds();
        steps->run(clock(), of_copy_[copy]);
        walk_seconds = steady_seconds() - start;
      });
    }
    together_.arrive_and_wait();
    if (copy == 0 && !failed_) {
      clock_seconds_ = clock_seconds();
      workspace_bytes_ = steps->workspace_bytes();
      rounds_ = options_.brief && walk_seconds > kLongWalk ? 0 : rounds_for(walk_seconds);
      if (rounds_ == 0) add_round();
    }
    together_.arrive_and_wait();
    for (int round = 0; round < rounds_; ++round) {
      guarded([&] { steps->run(clock(), of_copy_[copy]); });
      together_.arrive_and_wait();
      if (copy == 0 && !failed_) add_round();
      together_.arrive_and_wait();
    }
  }

  int rounds_for(double walk_seconds) const {
    const int least = walk_seconds > kLongWalk ? std::min(options_.repeats, 3) : options_.repeats;
    const double fit =
        std::min(options_.seconds / std::max(walk_seconds, 1e-9), static_cast<double>(kMostRounds));
    return std::max(least, static_cast<int>(fit));
  }

  void add_round() {
    const auto total = [](const std::vector<double>& seconds) {
      return std::accumulate(seconds.begin(), seconds.end(), 0.0);
    };
    const auto slowest = std::max_element(
        of_copy_.begin(), of_copy_.end(),
        [&](const auto& one, const auto& other) { return total(one) < total(other); });
    std::vector<double> sums(groups_, 0);
    for (std::size_t n = 0; n < group_.size(); ++n) {
      if (group_[n] >= 0)
        sums[static_cast<std::size_t>(group_[n])] += std::max((*slowest)[n] - clock_seconds_, 0.0);
    }
    for (std::size_t g = 0; g < groups_; ++g) samples_[g].push_back(sums[g] / nodes_[g]);
  }

  const std::vector<int>& group_;
  const StepTimingOptions& options_;
  std::size_t groups_;
  std::vector<int> nodes_;                    // of each group
  std::vector<std::vector<double>> samples_;  // [group][round]
  std::barrier<> together_;
  std::vector<std::vector<double>> of_copy_;  // [copy][node], of the round in progress
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;
  // Written by the first copy between two meetings.
  int rounds_ = 0;
  double clock_seconds_ = 0;
  std::vector<std::size_t> workspace_bytes_;
};

}  // namespace

StepTiming time_step(const TrainingGraph& training, Backend backend, const SampleData& data,
                     const std::vector<bool>& is_read, const std::vector<int>& group,
                     const StepTimingOptions& options) {
  return Rounds(group, options).run([&] {
    return std::make_unique<StepWalk>(training, backend, data, is_read);
  });
}

}  // namespace pipetrain
