// NCCL between two processes that share one GPU, through the plugin's communicators: sends and
// receives in one group, sums, and the death of the other process. NCCL refuses two ranks on one
// GPU unless they seem to be on different machines, so each process has its own host id and they
// communicate over loopback (which NVIDIA supports for tests only).
//
//   first process:  id ─ file ─┐   exchange, add up, exit silently
//   second process:            └─  exchange, add up, send … abort
//
// nccl_processes: exit 0, 1 on a failure, 77 where there is no GPU or no NCCL, with a sentence.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/plugin.h"
#include "gate_check.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kSkipped = 77;
constexpr std::chrono::seconds kLimit{60};

/// Waits for a condition; anything else is an error.
template <class Condition>
void wait_until(const char* what, const Condition& condition) {
  const auto limit = Clock::now() + kLimit;
  while (!condition()) {
    check(Clock::now() < limit, std::string("took more than a minute ") + what);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// One of the two processes.
class Rank {
 public:
  Rank(int rank, const fs::path& folder)
      : rank_(rank),
        device_(cuda_plugin().open(0)),
        stream_(device_.make_stream()),
        reached_(device_.make_point()),
        memory_(device_.allocate(2 * kCount * sizeof(float))) {
    Collectives& collectives = cuda_plugin().collectives();
    const fs::path file = folder / "id";
    CommunicatorId id{};
    if (rank == 0) {
      id = collectives.make_id();
      std::ofstream(file.string() + ".new", std::ios::binary).write(id.data(), id.size());
      fs::rename(file.string() + ".new", file);
    } else {
      wait_until("until the id was there", [&] { return fs::exists(file); });
      std::ifstream(file, std::ios::binary).read(id.data(), id.size());
    }
    group_ = collectives.connect(device_, id, rank, 2, CommunicatorUse::kEdges);
    settle("to join");
  }

  void exchange_and_add_up() {
    for (int round = 0; round < 3; ++round) {
      fill(value_of(rank_, round));
      group_->begin_group();
      group_->send(*stream_, sent(), kBytes, 1 - rank_);
      group_->receive(*stream_, received(), kBytes, 1 - rank_);
      group_->end_group();
      finish("to exchange");
      expect(received(), value_of(1 - rank_, round), "what was received");
      group_->begin_group();
      group_->all_reduce(*stream_, sent(), kCount);
      group_->end_group();
      finish("to add up");
      expect(sent(), value_of(0, round) + value_of(1, round), "a sum");
    }
  }

  /// The other process is gone: its message never arrives, and aborting ends the wait.
  void outlive() {
    // NCCL may detect and report it; otherwise the wait is aborted after a while.
    const auto limit = Clock::now() + std::chrono::seconds(2);
    std::string noticed = "nothing";
    try {
      group_->begin_group();
      group_->receive(*stream_, received(), kBytes, 1 - rank_);
      group_->end_group();
      settle("to begin the receive");  // before that, the stream may not have the receive yet
      stream_->record(*reached_);
      while (Clock::now() < limit) {
        group_->is_settled();
        check(!reached_->reached(), "something was received from nobody");
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    } catch (const Error& error) {
      noticed = error.message();
    }
    std::printf("the other process died; NCCL said: %s\n", noticed.c_str());
    group_->abort();
    stream_->synchronize();
    check(true, "");
  }

 private:
  static constexpr std::size_t kCount = std::size_t{1} << 16, kBytes = kCount * sizeof(float);

  static float value_of(int rank, int round) {
    return static_cast<float>(1 + 10 * round + 100 * rank);
  }
  float* sent() const { return reinterpret_cast<float*>(memory_.data()); }
  float* received() const { return sent() + kCount; }
  void fill(float value) {
    const std::vector<float> values(kCount, value);
    stream_->copy(sent(), values.data(), kBytes);
    stream_->synchronize();
  }
  void expect(const float* data, float value, const std::string& what) {
    std::vector<float> there(kCount);
    stream_->copy(there.data(), data, kBytes);
    stream_->synchronize();
    for (const float one : there) {
      if (one != value)
        check(false, what + " is " + std::to_string(one) + ", not " + std::to_string(value));
    }
    check(true, what);
  }
  void settle(const char* what) {
    wait_until(what, [&] { return group_->is_settled(); });
  }
  void finish(const char* what) {
    settle(what);
    stream_->record(*reached_);
    wait_until(what, [&] {
      group_->is_settled();
      return reached_->reached();
    });
  }

  int rank_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<StreamPoint> reached_;
  DeviceMemory memory_;
  std::unique_ptr<Communicator> group_;
};

int run_rank(int rank, const fs::path& folder) {
  try {
    Rank here(rank, folder);
    here.exchange_and_add_up();
    if (rank == 0) {
      std::printf("rank 0: %d checks\n", checks);
      std::fflush(stdout);
      std::raise(SIGKILL);  // like a lost process
    }
    here.outlive();
    std::printf("rank 1: %d checks\n", checks);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d, check %d: %s\n", rank, checks, error.what());
    return 1;
  }
}

/// Starts this program again as one of the two.
pid_t start(const char* program, int rank, const fs::path& folder) {
  const pid_t child = fork();
  if (child != 0) return child;
  const std::string host = "r" + std::to_string(rank), name = std::to_string(rank);
  const std::pair<const char*, const char*> recipe[] = {
      {"NCCL_HOSTID", host.c_str()}, {"NCCL_NET", "Socket"},     {"NCCL_SOCKET_IFNAME", "lo"},
      {"NCCL_P2P_DISABLE", "1"},     {"NCCL_SHM_DISABLE", "1"},  {"NCCL_IB_DISABLE", "1"},
      {"NCCL_NVLS_ENABLE", "0"},     {"NCCL_MNNVL_ENABLE", "0"}, {"NCCL_MAX_CTAS", "2"}};
  for (const auto& [variable, value] : recipe) setenv(variable, value, /*overwrite=*/1);
  execl(program, program, name.c_str(), folder.c_str(), static_cast<char*>(nullptr));
  std::_Exit(127);
}

/// How a process ended, or that it timed out.
std::string ending_of(pid_t process) {
  const auto limit = Clock::now() + 2 * kLimit;
  int status = 0;
  while (waitpid(process, &status, WNOHANG) == 0) {
    if (Clock::now() > limit) {
      kill(process, SIGKILL);
      waitpid(process, &status, 0);
      return "took too long";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return "exit " + std::to_string(WEXITSTATUS(status));
}

int run_both(const char* program) {
  // Reports missing requirements before anything is started; this process opens no GPU.
  try {
    cuda_plugin().devices();
    std::printf("two processes on one GPU, %s\n", cuda_plugin().collectives().name().c_str());
    std::fflush(stdout);
  } catch (const Error& error) {
    std::printf("skipped: %s\n", error.message().c_str());
    return error.kind() == ErrorKind::kResource ? kSkipped : 1;
  }
  char place[] = "/tmp/nccl_processes_XXXXXX";
  if (!mkdtemp(place)) return 1;
  const pid_t first = start(program, 0, place), second = start(program, 1, place);
  const std::string one = ending_of(first), other = ending_of(second);
  fs::remove_all(place);
  std::printf("rank 0: %s, rank 1: %s\n", one.c_str(), other.c_str());
  return one == "signal 9" && other == "exit 0" ? 0 : 1;
}

}  // namespace
}  // namespace pipetrain

int main(int count, char** arguments) {
  if (count == 3) return pipetrain::run_rank(std::atoi(arguments[1]), arguments[2]);
  return pipetrain::run_both("/proc/self/exe");
}
