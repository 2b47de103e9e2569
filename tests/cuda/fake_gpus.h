// What the fake CUDA runtime (fake_gpus.cpp) and the fake NCCL (fake_nccl.cpp) know of each other.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace fake_gpus {

/// A send, a receive or a sum of one rank.
struct Operation {
  bool sends;
  const void* from;
  void* to;
  std::size_t bytes;
  int peer;  // -1: a sum
  bool done = false;
  int number = -1;  // sequence number of the operation with this peer, for the folder
};

using Group = std::vector<std::shared_ptr<Operation>>;

/// Guards all exchanges; whoever completes one says so.
extern std::mutex mutex;
extern std::condition_variable changed;

/// The call to fail: one that makes graphs, loads kernels or exchanges.
extern std::string failing_call;
/// Whether rank 1 of every communicator reports an error.
extern bool fails;

bool over(const std::vector<std::shared_ptr<Group>>& groups);

/// Completes operations whose both ends have arrived.
void progress();

/// Whether ranks of several processes meet in a folder.
bool meets_in_folder();

/// Waits until all operations of these groups are done.
void wait_for(std::unique_lock<std::mutex>& lock,
              const std::vector<std::shared_ptr<Group>>& groups);

}  // namespace fake_gpus

/// A stream: what it exchanges, and the graph that captures its work.
struct CUstream_st {
  std::vector<std::shared_ptr<fake_gpus::Group>> groups;
  struct CUgraph_st* captured = nullptr;
  unsigned flags = 0;
  bool invalidated = false;
};
