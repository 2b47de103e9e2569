// Messages of any size, in parts that the processes can carry.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "processes/processes.h"

namespace pipetrain {

inline void post_send_in_parts(Processes& processes, const std::byte* from, std::size_t bytes,
                               int peer, int tag, std::vector<Processes::Request>& requests) {
  for (std::size_t begin = 0; begin < bytes; begin += Processes::kMostBytes) {
    requests.push_back(processes.post_send(
        from + begin, std::min(Processes::kMostBytes, bytes - begin), peer, tag));
  }
}

inline void post_receive_in_parts(Processes& processes, std::byte* to, std::size_t bytes, int peer,
                                  int tag, std::vector<Processes::Request>& requests) {
  for (std::size_t begin = 0; begin < bytes; begin += Processes::kMostBytes) {
    requests.push_back(processes.post_receive(
        to + begin, std::min(Processes::kMostBytes, bytes - begin), peer, tag));
  }
}

}  // namespace pipetrain
