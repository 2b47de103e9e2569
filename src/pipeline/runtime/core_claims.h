// Which cores this process has to itself among the runs of pipetrain on this machine.
#pragma once

#include <vector>

namespace pipetrain {

/// Takes `count` cores that no other run has taken, the ones from `first` on (of those that this
/// process may use) if they are free, and keeps them until the process ends. Empty if too few are
/// free. The same device gets its cores again.
std::vector<int> claim_cores(int device, int first, int count);

}  // namespace pipetrain
