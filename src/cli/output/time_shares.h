// Where the time of the steps of a run went: kernels by kind, the optimizer, waiting.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "graph/op_traits.h"
#include "train/session.h"

namespace pipetrain {

/// Shares of the time of all devices; they sum up to 1.
struct TimeShares {
  std::array<double, kKernelKinds> kernels{};
  double optimizer = 0;
  double wait = 0;  // for other stages, data and what is between instructions
};

/// Adds up what rounds measure. The first round is kept apart: it pages in memory.
class TimeAccount {
 public:
  /// After a round has run. Takes the kernels' times out of the session's runtime; the profile of a
  /// session with one stage that only estimated it becomes that of its first round.
  void round(Session& session, const Program& program, const RoundResult& result);
  /// Of all rounds but the first; of that one where there is no other.
  TimeShares shares() const;
  /// "products 81.0 % · element-wise 9.1 % · …"; empty before the first round.
  std::string text() const;

 private:
  struct Sums {
    std::array<double, kKernelKinds> kernels{};
    double optimizer = 0;
    double total = 0;  // devices × seconds
  };
  Sums first_, later_;
  std::vector<std::vector<KernelKind>> kinds_;  // [variant][node]
  std::vector<std::vector<bool>> in_update_;    // kernels that an update runs
  int rounds_ = 0;
};

}  // namespace pipetrain
