#include "train/local_replicas.h"

#include <utility>

#include "base/index.h"

namespace pipetrain {

LocalReplicas::LocalReplicas(PipelineRun& run, bool uses_run) {
  const Network& network = run.network();
  range_ = replicas_here(network);
  const CoreShare& cores = network.cores();
  const int places = network.replica_processes() ? cores.sharing_devices : range_.count;
  replicas_.resize(at(range_.count));
  for (int r = 0; r < range_.count; ++r) {
    replicas_[at(r)].worker =
        r == 0 && uses_run
            ? std::make_unique<PartWorker>(run)
            : std::make_unique<PartWorker>(run, range_.first + r, cores.devices_before + r, places);
  }
  for (int r = 0; r < range_.count; ++r) {
    replicas_[at(r)].thread =
        std::jthread([this, r](const std::stop_token& stop) { work(r, stop); });
  }
}

LocalReplicas::~LocalReplicas() = default;

void LocalReplicas::start(int replica, const DataPart& part, const NamedTensors& weights) {
  Replica& mine = replicas_[at(replica - range_.first)];
  mine.worker->set_weights(weights);  // it is idle
  {
    const std::lock_guard lock(mutex_);
    mine.part = part;
  }
  changed_.notify_all();
}

std::optional<LocalReplicas::Done> LocalReplicas::take() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  if (done_.empty()) return {};
  Done first = std::move(done_.front());
  done_.erase(done_.begin());
  return first;
}

void LocalReplicas::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, most, [&] { return failure_ || !done_.empty(); });
}

void LocalReplicas::work(int replica, const std::stop_token& stop) {
  Replica& mine = replicas_[at(replica)];
  for (;;) {
    DataPart part;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return mine.part.has_value(); })) return;
      part = *std::exchange(mine.part, std::nullopt);
    }
    std::optional<PartGradient> gradient;
    std::exception_ptr failure;
    try {
      gradient = mine.worker->compute(part);
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    if (gradient) done_.push_back({range_.first + replica, *std::move(gradient)});
    if (failure && !failure_) failure_ = failure;
    changed_.notify_all();
  }
}

}  // namespace pipetrain
