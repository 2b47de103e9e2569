#include "pipeline/transport/shared_work.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/index.h"

namespace pipetrain {
namespace {

/// Shorter tasks are not worth waking a device up.
constexpr double kLeastSeconds = 50e-6;

}  // namespace

SharedWork::SharedWork(int devices, int devices_here)
    : changed_(at(devices)),
      ends_at_(at(devices), 0.0),
      waits_(at(devices), Notice::kNone),
      devices_here_(devices_here) {}

void SharedWork::reset() {
  const std::lock_guard lock(mutex_);
  if (aborted_) {
    for (Job* job : posted_) job->tasks = nullptr;
    posted_.clear();
  }
  finished_ = 0;
  aborted_ = false;
}

void SharedWork::post(Job& job, int device, SharedTasks& tasks) {
  post(job, device, tasks, /*completing=*/false);
}

void SharedWork::run(Job& job, int device, SharedTasks& tasks, std::byte* workspace) {
  post(job, device, tasks, /*completing=*/true);
  complete(job, workspace);
}

void SharedWork::post(Job& job, int device, SharedTasks& tasks, bool completing) {
  const std::lock_guard lock(mutex_);
  job.device = device;
  job.completing = completing;
  job.error = nullptr;
  job.tasks = &tasks;
  job.taken.assign(tasks.count(), false);
  posted_.push_back(&job);
  for (std::size_t i = 0; i < tasks.count(); ++i) {
    if (tasks.seconds(i) < kLeastSeconds) continue;
    wake_all();
    break;
  }
}

bool SharedWork::complete(Job& job, std::byte* workspace) {
  std::unique_lock lock(mutex_);
  if (!job.tasks) return false;
  job.completing = true;
  const auto left = [&](std::size_t i) { return !job.taken[i]; };
  const auto next = [&] { return longest(job, left, /*last=*/false); };
  for (auto task = next(); task && !job.error; task = next())
    run(job, *task, job.device, workspace, lock);
  posted_.erase(std::find(posted_.begin(), posted_.end(), &job));
  done_.wait(lock, [&] { return job.running == 0; });
  job.tasks = nullptr;
  if (job.error) std::rethrow_exception(std::exchange(job.error, nullptr));
  return true;
}

/// Runs a task on a device; unlocks meanwhile.
void SharedWork::run(Job& job, std::size_t task, int device, std::byte* workspace,
                     std::unique_lock<std::mutex>& lock) {
  job.taken[task] = true;
  ++job.running;
  ends_at_[at(device)] = steady_seconds() + job.tasks->seconds(task);
  ++working_;
  lock.unlock();
  std::exception_ptr error;
  try {
    job.tasks->run(task, workspace);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  --working_;
  if (error) job.error = error;
  if (--job.running == 0) done_.notify_all();
}

/// The longest of the `wanted` tasks of a job, so that short ones remain for the end; ties: the
/// first or the last.
template <typename Wanted>
std::optional<std::size_t> SharedWork::longest(const Job& job, const Wanted& wanted, bool last) {
  std::optional<std::size_t> out;
  for (std::size_t i = 0; i < job.taken.size(); ++i) {
    if (!wanted(i)) continue;
    const double more = out ? job.tasks->seconds(i) - job.tasks->seconds(*out) : 1;
    if (more > 0 || (more == 0 && last)) out = i;
  }
  return out;
}

/// Finds a task for an idle device: its own first; else one whose device has not started on the job
/// or would start it later.
bool SharedWork::take(int device, std::size_t workspace_bytes, Job*& job, std::size_t& task) {
  const auto fits = [&](const Job& one,
                        std::size_t i) {  // times of running tasks are being written
    return !one.taken[i] && one.tasks->workspace_bytes(i) <= workspace_bytes;
  };
  const auto take_of = [&](Job& one, const auto& wanted) {
    const std::optional<std::size_t> found = longest(one, wanted, one.device != device);
    if (!found) return false;
    job = &one;
    task = *found;
    return true;
  };
  for (Job* one : posted_) {
    if (one->device != device || one->error) continue;
    if (take_of(*one, [&](std::size_t i) { return fits(*one, i); })) return true;
  }
  for (Job* one : posted_) {
    if (one->device == device || one->error) continue;
    double before = std::max(0.0, ends_at_[at(one->device)] - steady_seconds());
    for (const Job* other : posted_) {
      for (std::size_t i = 0; i < other->taken.size() && other->device == one->device; ++i) {
        if (!other->taken[i]) before += other->tasks->seconds(i);
      }
    }
    const auto pays = [&](std::size_t i) {
      if (!fits(*one, i)) return false;
      const double seconds = one->tasks->seconds(i);
      return seconds >= kLeastSeconds && (!one->completing || 2 * seconds <= before);
    };
    if (take_of(*one, pays)) return true;
  }
  return false;
}

double SharedWork::wait(int device, Workspace workspace, const std::function<bool()>& over,
                        Notice what) {
  double worked = 0;
  std::unique_lock lock(mutex_);
  while (!aborted_ && !over()) {
    Job* job = nullptr;
    std::size_t task = 0;
    if (take(device, workspace.bytes, job, task)) {
      const double start = steady_seconds();
      run(*job, task, device, workspace.data, lock);
      worked += steady_seconds() - start;
    } else {
      waits_[at(device)] = what;
      changed_[at(device)].wait(lock);
      waits_[at(device)] = Notice::kNone;
    }
  }
  return worked;
}

void SharedWork::notify(int device, Notice what) {
  {
    const std::lock_guard lock(mutex_);
    if (waits_[at(device)] != what) return;
    waits_[at(device)] = Notice::kNone;  // one wake is enough
  }
  changed_[at(device)].notify_one();  // which takes the mutex at once
}

void SharedWork::notify_all() {
  const std::lock_guard lock(mutex_);
  wake_all();
}

void SharedWork::wake_all() {
  for (std::size_t device = 0; device < changed_.size(); ++device) {
    if (waits_[device] != Notice::kNone) changed_[device].notify_one();
  }
}

double SharedWork::finish(int device, Workspace workspace) {
  {
    const std::lock_guard lock(mutex_);
    if (++finished_ == devices_here_) wake_all();
  }
  return wait(device, workspace, [this] { return finished_ == devices_here_; });
}

void SharedWork::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  wake_all();
}

}  // namespace pipetrain
