// When an instruction ran. The simulator predicts these records and the runtime measures them.
#pragma once

#include <cstdint>

namespace pipetrain {

/// One instruction's time, in seconds since the start of the round. Waiting for inputs is not
/// included.
struct Event {
  int device = 0;
  int index = 0;  // into Program::device[device]
  double start = 0;
  double end = 0;
};

/// A bucket of gradients that replicas in several processes sum during the backward: from when it
/// leaves until its sum is there.
struct BucketEvent {
  int stage = 0;
  int device = 0;  // the first replica's in the process that saw it
  int bucket = 0;  // in the order in which the backward completes them
  std::int64_t bytes = 0;
  double start = 0;
  double end = 0;
};

}  // namespace pipetrain
