// What a run can be asked for from outside, and why it ended.
#pragma once

#include <cstdint>

namespace pipetrain {

/// Requests to a run from outside.
struct RunRequests {
  bool stop = false;  // finish the step, save and end
  bool save = false;  // save and continue
  bool out_of_time = false;

  void add(const RunRequests& more) {
    stop = stop || more.stop;
    save = save || more.save;
    out_of_time = out_of_time || more.out_of_time;
  }
};

/// Why a run ended.
enum class RunEnd : std::uint8_t { kDone, kStopped, kTime, kStalled };

}  // namespace pipetrain
