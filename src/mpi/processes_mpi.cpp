// The MPI transport, the only file that uses MPI; compiled into libpipetrain_mpi.so alone. No call
// blocks: MPI busy-waits, which would take cores from the stages.
#include <dlfcn.h>
#include <mpi.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "device/build_id.h"
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

/// One thread at a time: most MPI libraries are slower and less tested with concurrent calls.
class MpiProcesses final : public Processes {
 public:
  explicit MpiProcesses(int expected) {
    set_defaults();
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    PT_CHECK(provided >= MPI_THREAD_SERIALIZED, kResource,
             "this MPI cannot be called from several threads");
    // A separate communicator that returns errors instead of aborting.
    check(MPI_Comm_dup(MPI_COMM_WORLD, &all_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(all_, MPI_ERRORS_RETURN);
    check(MPI_Comm_rank(all_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(all_, &size_), "MPI_Comm_size");
    PT_CHECK(size_ == expected, kResource,
             "the launcher started {} processes, but {} sees {}: the launcher is of another MPI "
             "than the one that libpipetrain_mpi.so was built with",
             expected, name(), size_);
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
  std::string host() const override {
    char text[MPI_MAX_PROCESSOR_NAME] = {};
    int length = 0;
    MPI_Get_processor_name(text, &length);
    return {text, static_cast<std::size_t>(length)};
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Request post_send(const void* from, std::size_t bytes, int peer, int tag) override {
    const std::lock_guard lock(mutex_);
    return note([&](MPI_Request& request) {
      check(MPI_Isend(from, count_of(bytes), MPI_BYTE, peer, tag_of(tag), all_, &request),
            "MPI_Isend");
    });
  }
  Request post_receive(void* to, std::size_t bytes, int peer, int tag) override {
    const std::lock_guard lock(mutex_);
    return note([&](MPI_Request& request) {
      check(MPI_Irecv(to, count_of(bytes), MPI_BYTE, peer, tag_of(tag), all_, &request),
            "MPI_Irecv");
    });
  }
  bool test(Request number) override {
    const std::lock_guard lock(mutex_);
    int done = 0;
    check(MPI_Test(&requests_.at(number), &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done) requests_.erase(number);
    return done != 0;
  }
  void cancel(Request number) override {
    const std::lock_guard lock(mutex_);
    MPI_Request& request = requests_.at(number);
    check(MPI_Cancel(&request), "MPI_Cancel");
    check(MPI_Request_free(&request), "MPI_Request_free");
    requests_.erase(number);
  }
  void leave() override {
    const std::lock_guard lock(mutex_);
    MPI_Comm_free(&all_);
    check(MPI_Finalize(), "MPI_Finalize");
  }
  void abort(int code) noexcept override {
    // What Open MPI's MPI_Abort calls after it has had mpirun print a banner, below our error.
    using Abort = int (*)(MPI_Comm, int);
    if (const auto quiet = reinterpret_cast<Abort>(dlsym(RTLD_DEFAULT, "ompi_mpi_abort")))
      quiet(MPI_COMM_WORLD, code);
    MPI_Abort(MPI_COMM_WORLD, code);
  }

 private:
  template <class Post>
  Request note(const Post& post) {
    MPI_Request request = MPI_REQUEST_NULL;
    post(request);
    requests_.emplace(++last_, request);
    return last_;
  }
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
  int last_ = 0;
  std::unordered_map<int, MPI_Request> requests_;
};

Processes* join(int expected) {
  static MpiProcesses processes(expected);
  return &processes;
}

}  // namespace
}  // namespace pipetrain

extern "C" __attribute__((visibility("default")))
const pipetrain::ProcessesEntry pipetrain_processes = {PIPETRAIN_BUILD_ID, &pipetrain::join};
