#include "profile/work.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/statistics.h"

namespace pipetrain {
namespace {

class Stopwatch {
 public:
  explicit Stopwatch(const TimingOptions& options) : options_(options), start_(options.copies) {}

  double median_of(const std::function<std::unique_ptr<Work>()>& make) {
    std::vector<std::thread> team;
    for (int i = 0; i < options_.copies; ++i) team.emplace_back([&] { run(make); });
    for (std::thread& thread : team) thread.join();
    if (failure_) std::rethrow_exception(failure_);
    return median(seconds_);
  }

 private:
  double now() const { return options_.threads == 1 ? thread_cpu_seconds() : steady_seconds(); }

  // What reading the clock twice takes.
  double overhead() const {
    double least = 1;
    for (int i = 0; i < 20; ++i) {
      const double start = now();
      least = std::min(least, now() - start);
    }
    return least;
  }

  double time(Work& work, int count) const {
    double sum = 0;
    for (int i = 0; i < count; ++i) {
      work.prepare();
      const double start = now();
      work.run();
      sum += now() - start;
    }
    return sum / count;
  }

  void run(const std::function<std::unique_ptr<Work>()>& make) {
    omp_set_num_threads(options_.threads);
    std::unique_ptr<Work> work;
    int count = 1;
    try {
      work = make();
      time(*work, 1);  // first use of code and memory
      const double once = std::max(time(*work, 1), 1e-7);
      count = static_cast<int>(std::clamp(options_.sample_seconds / once, 1.0, 1000.0));
    } catch (...) {
      fail();
    }
    start_.arrive_and_wait();
    if (failed_) return;
    try {
      measure(*work, count);
      ++finished_;
      // Those who are done keep the shared memory busy until all are.
      while (finished_ < options_.copies && !failed_) time(*work, 1);
    } catch (...) {
      fail();
    }
  }

  void measure(Work& work, int count) {
    const double clock = overhead();
    const auto sample = [&] { return std::max(time(work, count) - clock, 1e-9); };
    std::vector<double> samples = {sample()};
    // What takes long is known well after three samples.
    const int repeats = samples[0] * count > 0.1 ? std::min(options_.repeats, 3) : options_.repeats;
    while (static_cast<int>(samples.size()) < repeats) samples.push_back(sample());
    const std::lock_guard lock(mutex_);
    seconds_.insert(seconds_.end(), samples.begin(), samples.end());
  }

  void fail() {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
    failed_ = true;
  }

  const TimingOptions& options_;
  std::barrier<> start_;
  std::atomic<int> finished_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::vector<double> seconds_;
  std::exception_ptr failure_;
};

}  // namespace

double median_seconds(const std::function<std::unique_ptr<Work>()>& make,
                      const TimingOptions& options) {
  return Stopwatch(options).median_of(make);
}

}  // namespace pipetrain
