// The MPI transport, the only file that uses MPI; compiled into libpipetrain_mpi.so alone. No call
// blocks: MPI busy-waits, which would take cores from the stages.
#include <dlfcn.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "device/build_id.h"
#include "processes/process_memory.h"
#include "processes/processes.h"

namespace pipetrain {
namespace {

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  PT_FAIL(kDevice, "{} failed: {}", what,
          printable(std::string(text, static_cast<std::size_t>(length))));
}

/// Settings of Open MPI that others are better for, unless the user has set them: messages that the
/// processes copy themselves need many parts under way, and activations over a network should not
/// wait for an answer before they leave.
void set_defaults() {
  setenv("OMPI_MCA_pml_ob1_send_pipeline_depth", "64", /*overwrite=*/0);
  const std::string eager = std::to_string(Processes::kEagerBytes + 4096);  // with a header
  setenv("OMPI_MCA_btl_tcp_eager_limit", eager.c_str(), /*overwrite=*/0);
  setenv("OMPI_MCA_btl_tcp_max_send_size", eager.c_str(), /*overwrite=*/0);
}

std::string host_name() {
  char text[MPI_MAX_PROCESSOR_NAME] = {};
  int length = 0;
  MPI_Get_processor_name(text, &length);
  return printable(std::string(text, static_cast<std::size_t>(length)));
}

/// Ends all processes with an exit code.
[[noreturn]] void end_all(int code) noexcept {
  // What Open MPI's MPI_Abort calls after it has had mpirun print a banner, below our error.
  using Abort = int (*)(MPI_Comm, int);
  if (const auto quiet = reinterpret_cast<Abort>(dlsym(RTLD_DEFAULT, "ompi_mpi_abort")))
    quiet(MPI_COMM_WORLD, code);
  MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

/// Whether the processes are still connecting to each other.
std::atomic<bool> is_meeting = false;

constexpr const char* kUnreachable =
    "all hosts must be able to reach each other on all TCP ports; if they have several networks, "
    "name the one that connects them in Open MPI's setting btl_tcp_if_include";

/// Connects all pairs of processes, the higher rank to the lower one, so that a pair that cannot be
/// connected ends all of them before training begins, after kMeetSeconds.
void meet(int rank, int size) {
  constexpr double kMeetSeconds = 30;
  struct Peer {
    MPI_Request heard = MPI_REQUEST_NULL, called = MPI_REQUEST_NULL;
    char answer = 0;
    bool is_there = false;
  };
  std::vector<Peer> peers(static_cast<std::size_t>(size));
  const char call = 0;
  const auto say_hello = [&](int peer, Peer& to) {
    check(MPI_Isend(&call, 1, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &to.called), "MPI_Isend");
  };
  is_meeting = true;
  for (int peer = 0; peer < size; ++peer) {
    Peer& other = peers[static_cast<std::size_t>(peer)];
    other.is_there = peer == rank;
    if (other.is_there) continue;
    check(MPI_Irecv(&other.answer, 1, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &other.heard),
          "MPI_Irecv");
    if (peer < rank) say_hello(peer, other);
  }
  const double begin = steady_seconds();
  for (int missing = 0; missing >= 0;) {
    missing = -1;
    for (int peer = 0; peer < size; ++peer) {
      Peer& other = peers[static_cast<std::size_t>(peer)];
      int done = 0;
      if (!other.is_there) {
        check(MPI_Test(&other.heard, &done, MPI_STATUS_IGNORE), "MPI_Test");
        other.is_there = done != 0;
        if (done && peer > rank) say_hello(peer, other);
        if (!done) missing = peer;
      } else if (other.called != MPI_REQUEST_NULL) {
        check(MPI_Test(&other.called, &done, MPI_STATUS_IGNORE), "MPI_Test");
        if (!done) missing = peer;
      }
    }
    const double waited = steady_seconds() - begin;
    // Process 0 has the same to say, a moment earlier.
    if (missing >= 0 && waited > (missing == 0 ? kMeetSeconds + 5 : kMeetSeconds)) {
      is_meeting = false;
      std::fprintf(stderr,
                   "error: process %d on %s gets no answer from process %d for %.0f s; %s\n", rank,
                   host_name().c_str(), missing, kMeetSeconds, kUnreachable);
      end_all(static_cast<int>(ErrorKind::kResource));
    }
    if (waited > 0.01) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  is_meeting = false;
}

/// The requests under way. MPI_Test of a pending request polls all transports, which takes
/// microseconds. One MPI_Testsome polls for all requests; for a moment its outcome answers one
/// test() of each.
class OpenRequests {
 public:
  /// Returns the number of the request that `post` begins.
  template <class Post>
  Processes::Request add(const Post& post) {
    MPI_Request request = MPI_REQUEST_NULL;
    post(request);
    states_.emplace(++last_, State{open_.size(), polls_});
    open_.push_back(request);
    numbers_.push_back(last_);
    return last_;
  }
  bool test(Processes::Request number) {
    const auto found = states_.find(number);
    PT_CHECK(found != states_.end(), kDevice, "a message between processes has failed before");
    State& state = found->second;
    constexpr double kMoment = 1e-3;
    if (state.place != kDone && (state.told == polls_ || steady_seconds() - polled_ > kMoment))
      poll();
    state.told = polls_;
    if (state.place != kDone) return false;
    const int code = state.code;
    states_.erase(number);
    check(code, "MPI_Testsome");
    return true;
  }
  /// Nothing where a failure of the request has been reported.
  void cancel(Processes::Request number) {
    const auto found = states_.find(number);
    if (found == states_.end()) return;
    const std::size_t place = found->second.place;
    if (place != kDone) {
      check(MPI_Cancel(&open_[place]), "MPI_Cancel");
      check(MPI_Request_free(&open_[place]), "MPI_Request_free");
      remove(place);
    }
    states_.erase(number);
  }

 private:
  static constexpr std::size_t kDone = static_cast<std::size_t>(-1);
  struct State {
    std::size_t place;   // among the open ones
    std::uint64_t told;  // the poll whose outcome test() has returned
    int code = MPI_SUCCESS;
  };

  void poll() {
    ++polls_;
    polled_ = steady_seconds();
    places_.resize(open_.size());
    statuses_.resize(open_.size());
    int count = 0;
    const int code = MPI_Testsome(static_cast<int>(open_.size()), open_.data(), &count,
                                  places_.data(), statuses_.data());
    if (code != MPI_ERR_IN_STATUS) check(code, "MPI_Testsome");
    if (count == MPI_UNDEFINED || count == 0) return;
    for (int i = 0; i < count; ++i) {
      const auto n = static_cast<std::size_t>(i);
      State& state = states_.at(numbers_[static_cast<std::size_t>(places_[n])]);
      state.place = kDone;
      if (code == MPI_ERR_IN_STATUS) state.code = statuses_[n].MPI_ERROR;
    }
    const auto done = std::span(places_).first(static_cast<std::size_t>(count));
    std::ranges::sort(done, std::greater<>());
    for (const int place : done) remove(static_cast<std::size_t>(place));
  }
  /// Puts the last one in the place of another.
  void remove(std::size_t place) {
    if (place + 1 < open_.size()) {
      open_[place] = open_.back();
      numbers_[place] = numbers_.back();
      states_.at(numbers_[place]).place = place;
    }
    open_.pop_back();
    numbers_.pop_back();
  }

  std::vector<MPI_Request> open_;
  std::vector<Processes::Request> numbers_;  // of the open ones
  std::unordered_map<Processes::Request, State> states_;
  std::vector<int> places_;
  std::vector<MPI_Status> statuses_;
  std::uint64_t polls_ = 0;
  double polled_ = 0;
  Processes::Request last_ = 0;
};

/// One thread at a time: most MPI libraries are slower and less tested with concurrent calls.
class MpiProcesses final : public Processes {
 public:
  explicit MpiProcesses(int expected) {
    set_defaults();
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    PT_CHECK(provided >= MPI_THREAD_SERIALIZED, kResource,
             "this MPI cannot be called from several threads");
    // Errors are returned instead of aborting.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
    PT_CHECK(size_ == expected, kResource,
             "the launcher started {} processes, but {} sees {}: the launcher is of another MPI "
             "than the one that libpipetrain_mpi.so was built with",
             expected, name(), size_);
    meet(rank_, size_);
    check(MPI_Comm_dup(MPI_COMM_WORLD, &all_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(all_, MPI_ERRORS_RETURN);
    int* most = nullptr;
    int found = 0;
    check(MPI_Comm_get_attr(all_, MPI_TAG_UB, static_cast<void*>(&most), &found), "MPI_TAG_UB");
    most_tag_ = found ? *most : 32'767;
  }

  std::string name() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(text, &length);
    const std::string whole(text, static_cast<std::size_t>(length));
    return whole.substr(0, whole.find_first_of(",\n"));
  }
  std::string host() const override { return host_name(); }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Request post_send(const void* from, std::size_t bytes, int peer, int tag) override {
    const std::lock_guard lock(mutex_);
    return requests_.add([&](MPI_Request& request) {
      check(MPI_Isend(from, count_of(bytes), MPI_BYTE, peer, tag_of(tag), all_, &request),
            "MPI_Isend");
    });
  }
  Request post_receive(void* to, std::size_t bytes, int peer, int tag) override {
    const std::lock_guard lock(mutex_);
    return requests_.add([&](MPI_Request& request) {
      check(MPI_Irecv(to, count_of(bytes), MPI_BYTE, peer, tag_of(tag), all_, &request),
            "MPI_Irecv");
    });
  }
  bool test(Request number) override {
    const std::lock_guard lock(mutex_);
    return requests_.test(number);
  }
  void cancel(Request number) override {
    const std::lock_guard lock(mutex_);
    requests_.cancel(number);
  }
  bool may_read_memory() const override {
    // Open MPI reads the memory of other processes, too, unless this says otherwise.
    const char* mechanism = std::getenv("OMPI_MCA_btl_vader_single_copy_mechanism");
    return !mechanism || std::string_view(mechanism) == "cma";
  }
  int read_memory(std::int64_t process, std::uint64_t from, void* to, std::size_t bytes) override {
    return read_process_memory(process, from, to, bytes);
  }
  void leave() override {
    const std::lock_guard lock(mutex_);
    MPI_Comm_free(&all_);
    check(MPI_Finalize(), "MPI_Finalize");
  }
  void abort(int code) noexcept override { end_all(code); }

 private:
  static int count_of(std::size_t bytes) {
    PT_CHECK(bytes <= kMostBytes, kInternal, "a message of {} bytes", bytes);
    return static_cast<int>(bytes);
  }
  int tag_of(int tag) const {
    PT_CHECK(tag <= most_tag_, kResource, "this MPI supports {} tags, but {} are needed", most_tag_,
             tag);
    return tag;
  }

  std::mutex mutex_;
  MPI_Comm all_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, most_tag_ = 0;
  OpenRequests requests_;
};

Processes* join(int expected) {
  static MpiProcesses processes(expected);
  return &processes;
}

}  // namespace
}  // namespace pipetrain

/// In place of Open MPI's function of this name, which its transports call where a connection
/// fails: they cannot return errors. Open MPI's own one ends the process.
extern "C" __attribute__((visibility("default"))) void ompi_rte_abort(int code, char* format, ...) {
  std::array<char, 1024> text{};
  if (format) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text.data(), text.size(), format, arguments);
    va_end(arguments);
  }
  if (pipetrain::is_meeting.exchange(false)) {
    std::fprintf(stderr, "error: %s cannot connect to another host of this run; %s\n",
                 pipetrain::host_name().c_str(), pipetrain::kUnreachable);
    code = static_cast<int>(pipetrain::ErrorKind::kResource);
  }
  char own_format[] = "%s";
  using Abort = void (*)(int, char*, ...);
  if (const auto abort = reinterpret_cast<Abort>(dlsym(RTLD_NEXT, "ompi_rte_abort")))
    abort(code, format ? own_format : nullptr, text.data());
  std::_Exit(code);
}

extern "C" __attribute__((visibility("default")))
const pipetrain::ProcessesEntry pipetrain_processes = {PIPETRAIN_BUILD_ID, &pipetrain::join};
