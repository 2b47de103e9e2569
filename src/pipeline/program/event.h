// When an instruction ran: the simulator predicts these records, the runtime measures them, so
// prediction and measurement are two columns of one table.
#pragma once

namespace pipetrain {

/// One instruction's time, in seconds since the start of the round. A wait for inputs is not part
/// of it.
struct Event {
  int device = 0;
  int index = 0;  // into Program::device[device]
  double start = 0;
  double end = 0;
};

}  // namespace pipetrain
