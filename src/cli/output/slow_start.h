// Whether the first steps of a run are much slower than predicted, as beside other programs.
#pragma once

#include <string>
#include <vector>

namespace pipetrain {

class SlowStart {
 public:
  /// `predicted_seconds` of a step; 0: not known. `threads`: of each stage.
  SlowStart(double predicted_seconds, int threads)
      : predicted_(predicted_seconds), threads_(threads), decided_(predicted_seconds <= 0) {}
  /// Takes the time of the next step. Returns what to say about the first ones, once; else empty.
  std::string add(double seconds);

 private:
  double predicted_;
  int threads_;
  bool decided_;
  double sum_ = 0;
  std::vector<double> seconds_;
};

}  // namespace pipetrain
