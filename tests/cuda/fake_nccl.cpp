// A fake NCCL: an exchange completes when both ends have arrived. Ranks of several processes meet
// in the folder that FAKE_NCCL_FOLDER names.
#include <nccl.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <utility>

#include "fake_gpus.h"

using fake_gpus::Group;
using fake_gpus::Operation;

struct ncclComm {
  std::string id;
  int rank, ranks;
  std::vector<std::shared_ptr<Operation>> issued;
  bool aborted = false;
  std::map<std::pair<bool, int>, int> numbers;  // operations so far, by direction and peer
};

namespace {

std::map<std::string, std::map<int, ncclComm*>> communicators;
thread_local std::vector<std::pair<ncclComm*, std::shared_ptr<Operation>>> open_group;
thread_local cudaStream_t group_stream = nullptr;
thread_local bool in_group = false;
int ids = 0, aborts = 0;

/// The first pending operation of a rank that matches one of a peer.
Operation* first(ncclComm* communicator, bool sends, int peer) {
  for (const auto& operation : communicator->issued) {
    if (!operation->done && operation->peer == peer && (peer < 0 || operation->sends == sends))
      return operation.get();
  }
  return nullptr;
}

const char* const folder = std::getenv("FAKE_NCCL_FOLDER");

/// The file of a rank's message, for all others if `to` is -1.
std::string file_of(const ncclComm& communicator, int from, int to, int number) {
  return std::string(folder) + "/" + std::to_string(communicator.id[0]) + "." +
         std::to_string(from) + "." + std::to_string(to) + "." + std::to_string(number);
}
void leave_file(const std::string& file, const void* data, std::size_t bytes) {
  std::ofstream(file + ".new", std::ios::binary)
      .write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  std::rename((file + ".new").c_str(), file.c_str());
}
bool take_file(const std::string& file, void* data, std::size_t bytes) {
  std::ifstream in(file, std::ios::binary);
  return in && in.read(static_cast<char*>(data), static_cast<std::streamsize>(bytes));
}

/// Completes operations with peers in other processes; a send is done when its file is written.
void progress_in_folder(ncclComm& communicator) {
  for (const auto& operation : communicator.issued) {
    if (operation->done) continue;
    const int other = 1 - communicator.rank;
    const bool sum = operation->peer < 0, leaves = sum || operation->sends;
    const bool fresh = operation->number < 0;
    if (fresh) operation->number = communicator.numbers[{operation->sends, operation->peer}]++;
    if (leaves && fresh)
      leave_file(file_of(communicator, communicator.rank, operation->peer, operation->number),
                 operation->from, operation->bytes);
    if (!leaves)
      operation->done =
          take_file(file_of(communicator, operation->peer, communicator.rank, operation->number),
                    operation->to, operation->bytes);
    else if (!sum)
      operation->done = true;
    std::vector<float> theirs(sum ? operation->bytes / sizeof(float) : 0);
    if (!sum || !take_file(file_of(communicator, other, -1, operation->number), theirs.data(),
                           operation->bytes))
      continue;
    for (std::size_t i = 0; i < theirs.size(); ++i)
      static_cast<float*>(operation->to)[i] =
          static_cast<const float*>(operation->from)[i] + theirs[i];
    operation->done = true;
  }
}

ncclResult_t add(ncclComm* communicator, Operation operation, cudaStream_t stream) {
  if (fake_gpus::failing_call == "exchange") return ncclRemoteError;
  group_stream = stream;
  open_group.emplace_back(communicator, std::make_shared<Operation>(operation));
  return ncclInProgress;
}

}  // namespace

namespace fake_gpus {

std::mutex mutex;
std::condition_variable changed;
bool fails = false;

bool over(const std::vector<std::shared_ptr<Group>>& groups) {
  for (const auto& group : groups) {
    for (const auto& operation : *group) {
      if (!operation->done) return false;
    }
  }
  return true;
}

bool meets_in_folder() { return folder != nullptr; }

void progress() {
  if (folder) {
    for (auto& [id, ranks] : communicators) {
      for (auto& [rank, communicator] : ranks) progress_in_folder(*communicator);
    }
    return;
  }
  for (auto& [id, ranks] : communicators) {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& [rank, communicator] : ranks) {
        for (auto& [other, answering] : ranks) {
          Operation* send = first(communicator, true, other);
          Operation* receive = first(answering, false, rank);
          if (rank == other || !send || !receive) continue;
          std::memcpy(receive->to, send->from, receive->bytes);
          send->done = receive->done = moved = true;
        }
      }
      std::vector<Operation*> sums;
      for (auto& [rank, communicator] : ranks) {
        Operation* sum = first(communicator, true, -1);
        if (sum) sums.push_back(sum);
      }
      if (ranks.empty() || static_cast<int>(sums.size()) < ranks.begin()->second->ranks) continue;
      for (std::size_t i = 0; i < sums[0]->bytes / sizeof(float); ++i) {
        float total = 0;
        for (const Operation* sum : sums) total += static_cast<const float*>(sum->from)[i];
        for (Operation* sum : sums) static_cast<float*>(sum->to)[i] = total;
      }
      for (Operation* sum : sums) sum->done = true;
      moved = true;
    }
  }
}

void wait_for(std::unique_lock<std::mutex>& lock,
              const std::vector<std::shared_ptr<Group>>& groups) {
  while (folder && !over(groups)) {
    progress();
    changed.wait_for(lock, std::chrono::milliseconds(1));
  }
  changed.wait(lock, [&] { return over(groups); });
}

}  // namespace fake_gpus

using fake_gpus::changed;
using fake_gpus::mutex;
using fake_gpus::progress;

extern "C" {

// What a test asks for.
int fake_aborts() { return aborts; }
void fake_failure(int on) {
  const std::lock_guard lock(mutex);
  fake_gpus::fails = on != 0;
}

ncclResult_t ncclGetVersion(int* version) {
  const char* told = std::getenv("FAKE_NCCL_VERSION");
  *version = told ? std::atoi(told) : NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(mutex);
  std::memset(id, 0, sizeof *id);
  id->internal[0] = static_cast<char>(++ids);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const std::lock_guard lock(mutex);
  if (config->blocking != 0) return ncclInvalidArgument;
  *out = new ncclComm{std::string(id.internal, 1), rank, ranks, {}, false, {}};
  communicators[(*out)->id][rank] = *out;
  if (folder) leave_file(file_of(**out, rank, rank, 0), "joined", 6);
  return ncclInProgress;
}
static ncclResult_t leave(ncclComm_t communicator) {
  const std::lock_guard lock(mutex);
  communicators[communicator->id].erase(communicator->rank);
  delete communicator;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t communicator) { return leave(communicator); }
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  if (in_group) return ncclInProgress;  // deferred to the end of the group
  {
    const std::lock_guard lock(mutex);
    for (const auto& operation : communicator->issued) operation->done = true;
    ++aborts;
  }
  changed.notify_all();
  return leave(communicator);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  const std::lock_guard lock(mutex);
  bool all = static_cast<int>(communicators[communicator->id].size()) == communicator->ranks;
  if (folder) {
    const int other = 1 - communicator->rank;
    all = std::ifstream(file_of(*communicator, other, other, 0)).good();
  }
  // Ranks that have left count as having joined.
  const bool busy = !all && communicator->issued.empty();
  *state = fake_gpus::fails && communicator->rank == 1 ? ncclRemoteError
           : busy                                      ? ncclInProgress
                                                       : ncclSuccess;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "some error";
}
const char* ncclGetLastError(ncclComm_t) { return "a cable was pulled"; }
ncclResult_t ncclGroupStart() {
  in_group = true;
  open_group.clear();
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  in_group = false;
  {
    const std::lock_guard lock(mutex);
    auto group = std::make_shared<Group>();
    for (auto& [communicator, operation] : open_group) {
      communicator->issued.push_back(operation);
      group->push_back(operation);
    }
    if (!group->empty()) group_stream->groups.push_back(std::move(group));
    open_group.clear();
    progress();
  }
  changed.notify_all();
  return ncclInProgress;
}
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return add(communicator, {true, from, nullptr, count, peer}, stream);
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return add(communicator, {false, nullptr, to, count, peer}, stream);
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t,
                           ncclRedOp_t, ncclComm_t communicator, cudaStream_t stream) {
  return add(communicator, {true, from, to, count * sizeof(float), -1}, stream);
}

}  // extern "C"
