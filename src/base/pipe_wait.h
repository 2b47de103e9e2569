#pragma once

namespace pipetrain {

// The other end of a pipe may belong to a program that is started together with this one and opens
// it a little later: how long to wait for it, and the pause between two tries, in milliseconds.
inline constexpr int kPipeWait = 2000;
inline constexpr int kPipePause = 20;

}  // namespace pipetrain
