// Times a function on several threads at once.
#pragma once

#include <functional>
#include <memory>

namespace pipetrain {

/// A function to be timed repeatedly.
class Work {
 public:
  virtual ~Work() = default;
  /// Restores the cache state of training; not timed.
  virtual void prepare() = 0;
  virtual void run() = 0;
};

struct TimingOptions {
  int threads = 1;  // OpenMP threads of each copy
  int copies = 1;   // that run at the same time
  int repeats = 5;
  double sample_seconds = 2e-3;
};

/// Median time of one run. `make` is called once for each copy, on the thread that runs it. With
/// one thread it is the thread's CPU time, otherwise wall time. The first error of any copy is
/// thrown again.
double median_seconds(const std::function<std::unique_ptr<Work>()>& make,
                      const TimingOptions& options);

}  // namespace pipetrain
