// Messages of any size, in parts that the processes can carry.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "processes/processes.h"

namespace pipetrain {

/// `most`: bytes of a part; both ends pass the same.
inline void post_send_in_parts(Processes& processes, const std::byte* from, std::size_t bytes,
                               int peer, int tag, std::vector<Processes::Request>& requests,
                               std::size_t most = Processes::kMostBytes) {
  for (std::size_t begin = 0; begin < bytes; begin += most)
    requests.push_back(processes.post_send(from + begin, std::min(most, bytes - begin), peer, tag));
}

inline void post_receive_in_parts(Processes& processes, std::byte* to, std::size_t bytes, int peer,
                                  int tag, std::vector<Processes::Request>& requests,
                                  std::size_t most = Processes::kMostBytes) {
  for (std::size_t begin = 0; begin < bytes; begin += most)
    requests.push_back(
        processes.post_receive(to + begin, std::min(most, bytes - begin), peer, tag));
}

/// Whether all parts are done; those that are leave the list.
inline bool are_done(Processes& processes, std::vector<Processes::Request>& requests) {
  std::erase_if(requests, [&](Processes::Request request) { return processes.test(request); });
  return requests.empty();
}

}  // namespace pipetrain
