// When an instruction ran. The simulator predicts these records and the runtime measures them.
#pragma once

namespace pipetrain {

/// One instruction's time, in seconds since the start of the round. Waiting for inputs is not
/// included.
struct Event {
  int device = 0;
  int index = 0;  // into Program::device[device]
  double start = 0;
  double end = 0;
};

}  // namespace pipetrain
