// A CPU device is a thread with cores of its own.
#pragma once

namespace pipetrain {

/// Makes the calling thread the device of this number: names it, gives it an OpenMP team of
/// `threads`, asks for short turns on its core and for sleeps that end on time, so that it goes on
/// at once although others compute there, and with `pin` takes cores that no other device has, if
/// there are enough for all `devices`.
void become_device(int device, int devices, int threads, bool pin);

}  // namespace pipetrain
