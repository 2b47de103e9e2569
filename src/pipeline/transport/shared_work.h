// Work stealing between the CPU devices of one process (Blumofe and Leiserson 1999): an idle device
// runs its own deferred tasks, then tasks of busy devices. This evens out stages that no cut
// balances and cores that are temporarily slow.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace pipetrain {

/// Independent tasks. Their results do not depend on the device that runs them.
class SharedTasks {
 public:
  virtual ~SharedTasks() = default;
  virtual std::size_t count() const = 0;
  /// What a task took last time; 0: unknown.
  virtual double seconds(std::size_t task) const = 0;
  virtual std::size_t workspace_bytes(std::size_t task) const = 0;
  virtual void run(std::size_t task, std::byte* workspace) = 0;
};

/// Workspace of a kernel.
struct Workspace {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

class SharedWork {
 public:
  /// What a device waits for, and what a notice is of.
  enum class Notice : std::uint8_t { kNone, kArrival, kRelease };

  /// Tasks of one device. Its fields belong to SharedWork.
  class Job {
    friend SharedWork;
    int device = 0;
    SharedTasks* tasks = nullptr;  // null: not posted
    std::vector<bool> taken;
    int running = 0;          // tasks that devices run now
    bool completing = false;  // its own device works on it
    std::exception_ptr error;
  };

  /// `devices`: of the run. `devices_here`: of this process; each has a thread that calls these
  /// functions.
  SharedWork(int devices, int devices_here);
  explicit SharedWork(int devices) : SharedWork(devices, devices) {}
  /// Called between rounds. Deferred tasks stay deferred, unless the last round failed.
  void reset();
  /// Defers tasks of a device: any idle device may run them. Both arguments must stay valid until
  /// complete().
  void post(Job& job, int device, SharedTasks& tasks);
  /// Runs the tasks that have not started, and returns when all tasks of the job are done. Returns
  /// false at once if the job is not posted. Rethrows what a task has thrown.
  bool complete(Job& job, std::byte* workspace);
  /// post() and complete(): others only take tasks that the device itself would start later.
  void run(Job& job, int device, SharedTasks& tasks, std::byte* workspace);
  /// Waits until `over()`, which is checked again after a notice of what it waits for, or until
  /// abort(). Meanwhile runs posted tasks: first the device's own, then those of others that are
  /// deferred or that their device would start later. Returns the seconds spent on tasks.
  double wait(int device, Workspace workspace, const std::function<bool()>& over,
              Notice what = Notice::kArrival);
  /// Wakes all waiting devices, since any of them may have what it waits for.
  void notify_all();
  /// Whether a device runs a task.
  bool is_working() const { return working_.load(std::memory_order_relaxed) > 0; }
  /// Wakes this device alone, if it waits for that: others would look and go back to sleep.
  void notify(int device, Notice what = Notice::kArrival);
  /// As wait(), until all devices here have called it, at the end of a round.
  double finish(int device, Workspace workspace);
  /// Wakes all waiting devices, now and later, until reset().
  void abort();

 private:
  void post(Job& job, int device, SharedTasks& tasks, bool completing);
  template <typename Wanted>
  static std::optional<std::size_t> longest(const Job& job, const Wanted& wanted, bool last);
  bool take(int device, std::size_t workspace_bytes, Job*& job, std::size_t& task);
  void run(Job& job, std::size_t task, int device, std::byte* workspace,
           std::unique_lock<std::mutex>& lock);
  void wake_all();

  std::mutex mutex_;
  std::deque<std::condition_variable> changed_;  // by device, for those that wait
  std::condition_variable done_;                 // for devices whose tasks others run
  std::vector<Job*> posted_;
  std::vector<double> ends_at_;  // by device: the expected end of its current task
  std::vector<Notice> waits_;    // by device: what it waits for
  const int devices_here_;
  std::atomic<int> working_{0};  // tasks that run
  int finished_ = 0;
  bool aborted_ = false;
};

}  // namespace pipetrain
