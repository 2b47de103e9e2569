#include "cuda/nccl_cuda.h"

#include <dlfcn.h>
#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"
#include "cuda/device_cuda.h"
#include "device/nvidia_libraries.h"

namespace pipetrain {
namespace {

/// The first version in which several communicators on one device launch in the order in which the
/// host issues their work (NCCL_LAUNCH_ORDER_IMPLICIT); without it they deadlock.
constexpr int kOldestVersion = NCCL_VERSION(2, 26, 0);

/// The functions of NCCL that are used.
struct Nccl {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init_rank;
  decltype(&ncclCommFinalize) finalize;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclAllReduce) all_reduce;
  std::string version;
};

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  PT_CHECK(function != nullptr, kResource, "the NCCL that was found has no {}", name);
}

std::string version_text(int code) {
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

Nccl load() {
  const FoundLibrary& found = nvidia_library(NvidiaLibrary::kNccl);
  void* library = found.handle;
  PT_CHECK(library != nullptr, kResource,
           "NCCL cannot be loaded ({}); it is Debian's package libnccl2 or PyPI's "
           "nvidia-nccl-cu13, whose libnccl.so.2 PIPETRAIN_NCCL can name",
           found.problem);
  Nccl nccl{};
  find(library, "ncclGetVersion", nccl.get_version);
  find(library, "ncclGetUniqueId", nccl.get_unique_id);
  find(library, "ncclCommInitRankConfig", nccl.init_rank);
  find(library, "ncclCommFinalize", nccl.finalize);
  find(library, "ncclCommDestroy", nccl.destroy);
  find(library, "ncclCommAbort", nccl.abort);
  find(library, "ncclCommGetAsyncError", nccl.async_error);
  find(library, "ncclGetErrorString", nccl.error_string);
  find(library, "ncclGetLastError", nccl.last_error);
  find(library, "ncclGroupStart", nccl.group_start);
  find(library, "ncclGroupEnd", nccl.group_end);
  find(library, "ncclSend", nccl.send);
  find(library, "ncclRecv", nccl.receive);
  find(library, "ncclAllReduce", nccl.all_reduce);
  int version = 0;
  nccl.get_version(&version);
  // The library may be older than the headers: it reads only those settings (ncclConfig_t) that it
  // knows.
  PT_CHECK(version >= kOldestVersion, kResource, "{} is NCCL {}, older than the {} that is needed",
           printable(found.path), version_text(version), version_text(kOldestVersion));
  nccl.version = version_text(version);
  // Several communicators on a device follow the order in which the host issues their work, devices
  // launch theirs without each other, and no call blocks: with other settings they may wait for
  // each other without end.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/1);
  setenv("NCCL_LAUNCH_MODE", "PARALLEL", /*overwrite=*/1);
  setenv("NCCL_COMM_BLOCKING", "0", /*overwrite=*/1);
  return nccl;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const Nccl& nccl, CudaDevice& device, const CommunicatorId& id, int rank,
                   int ranks, CommunicatorUse use)
      : nccl_(nccl), device_(device) {
    device_.enter();
    ncclUniqueId unique{};
    static_assert(sizeof unique == std::tuple_size_v<CommunicatorId>);
    std::memcpy(&unique, id.data(), id.size());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (use == CommunicatorUse::kEdges) {
      // A transfer needs few multiprocessors, and leaves the others to kernels.
      config.maxCTAs = 4;
      config.commName = "pipetrain edges";
    } else {
      config.commName = "pipetrain sums";
    }
    check(nccl_.init_rank(&comm_, ranks, unique, rank, &config), "to join");
  }
  ~NcclCommunicator() override {
    if (!comm_) return;
    ncclResult_t state = nccl_.finalize(comm_);
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::seconds(5);
    while (state == ncclInProgress && Clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (nccl_.async_error(comm_, &state) != ncclSuccess) break;
    }
    if (state == ncclSuccess) {
      nccl_.destroy(comm_);
    } else {
      nccl_.abort(comm_);
    }
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  void begin_group() override {
    device_.enter();
    check(nccl_.group_start(), "to begin a group");
    in_group_ = true;
  }
  void send(Stream& stream, const void* from, std::size_t bytes, int peer) override {
    check(nccl_.send(from, bytes, ncclInt8, peer, comm_, stream_of(stream)), "to send");
  }
  void receive(Stream& stream, void* to, std::size_t bytes, int peer) override {
    check(nccl_.receive(to, bytes, ncclInt8, peer, comm_, stream_of(stream)), "to receive");
  }
  void all_reduce(Stream& stream, float* values, std::size_t count) override {
    check(nccl_.all_reduce(values, values, count, ncclFloat32, ncclSum, comm_, stream_of(stream)),
          "to add up");
  }
  void end_group() override {
    in_group_ = false;
    check(nccl_.group_end(), "to issue a group");
  }

  bool is_settled() override {
    device_.enter();
    ncclResult_t state = ncclSuccess;
    check(nccl_.async_error(comm_, &state), "to tell how it is");
    check(state, "while it exchanged");
    return state != ncclInProgress;
  }
  void abort() noexcept override {
    // A group that has failed defers everything to its end, this call as well.
    if (std::exchange(in_group_, false)) nccl_.group_end();
    if (comm_) nccl_.abort(comm_);
    comm_ = nullptr;
  }

 private:
  void check(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess || result == ncclInProgress) return;
    const char* last = nccl_.last_error(comm_);
    PT_FAIL(kDevice, "NCCL failed {} on {}: {}{}{}", what, device_.name(),
            nccl_.error_string(result), last && *last ? "; " : "", printable(last ? last : ""));
  }

  const Nccl& nccl_;
  CudaDevice& device_;
  ncclComm_t comm_ = nullptr;
  bool in_group_ = false;
};

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives() : nccl_(load()) {}
  std::string name() const override { return "NCCL " + nccl_.version; }
  CommunicatorId make_id() override {
    ncclUniqueId unique{};
    const ncclResult_t result = nccl_.get_unique_id(&unique);
    PT_CHECK(result == ncclSuccess, kDevice, "NCCL failed to make an id: {}",
             nccl_.error_string(result));
    CommunicatorId id{};
    std::memcpy(id.data(), &unique, id.size());
    return id;
  }
  std::unique_ptr<Communicator> connect(Device& device, const CommunicatorId& id, int rank,
                                        int ranks, CommunicatorUse use) override {
    return std::make_unique<NcclCommunicator>(nccl_, static_cast<CudaDevice&>(device), id, rank,
                                              ranks, use);
  }

 private:
  const Nccl nccl_;
};

}  // namespace

Collectives& nccl_collectives() {
  // Never destroyed, like the plugin.
  static auto* const collectives = new NcclCollectives;
  return *collectives;
}

}  // namespace pipetrain
