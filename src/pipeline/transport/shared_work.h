// CPU devices of one process share their memory: one that waits runs tasks of work that it has put
// off itself, or takes over what others have before them (work stealing, Blumofe and Leiserson
// 1999). So stages need not take equally long, which nodes that cannot be divided often prevent,
// and a core that is slower for a while holds nobody up.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace pipetrain {

/// Tasks of work of which none depends on another. What they compute does not depend on who runs
/// them.
class SharedTasks {
 public:
  virtual ~SharedTasks() = default;
  virtual std::size_t count() const = 0;
  /// What a task took last time; 0: nobody knows.
  virtual double seconds(std::size_t task) const = 0;
  virtual std::size_t workspace_bytes(std::size_t task) const = 0;
  virtual void run(std::size_t task, std::byte* workspace) = 0;
};

/// Memory that a kernel may write while it runs.
struct Workspace {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

class SharedWork {
 public:
  /// Tasks that one device has to do. Its content is SharedWork's.
  class Job {
    friend SharedWork;
    int device = 0;
    SharedTasks* tasks = nullptr;  // null: not posted
    std::vector<bool> taken;
    int running = 0;          // tasks in hands of devices
    bool completing = false;  // its own device works at it
    std::exception_ptr error;
  };

  /// For so many devices, each with a thread that calls these functions.
  explicit SharedWork(int devices);
  /// Between rounds. What was put off stays so, unless the last round has failed.
  void reset();
  /// Puts tasks of a device off: whoever waits may run them. Both stay where they are until
  /// complete().
  void post(Job& job, int device, SharedTasks& tasks);
  /// Runs what nobody has begun, and returns when all tasks of the job are done; false, and at
  /// once, if it is not posted. Throws what a task has thrown.
  bool complete(Job& job, std::byte* workspace);
  /// Both at once: others only take tasks that the device could not do as early.
  void run(Job& job, int device, SharedTasks& tasks, std::byte* workspace);
  /// Waits until `over()`, which notify() makes it look at again, or until abort(). Meanwhile runs
  /// posted tasks: those of the device itself, then of others the ones that they have put off or
  /// could not have done as early. Returns the seconds it has worked.
  double wait(int device, Workspace workspace, const std::function<bool()>& over);
  void notify();
  /// The same until all devices have called it, at the end of a round.
  double finish(int device, Workspace workspace);
  /// Lets everybody go, now and later, until reset().
  void abort();

 private:
  void post(Job& job, int device, SharedTasks& tasks, bool completing);
  template <typename Wanted>
  static std::optional<std::size_t> longest(const Job& job, const Wanted& wanted, bool last);
  bool take(int device, std::size_t workspace_bytes, Job*& job, std::size_t& task);
  void run(Job& job, std::size_t task, int device, std::byte* workspace,
           std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;  // for those that wait
  std::condition_variable done_;     // for those whose tasks others run
  std::vector<Job*> posted_;
  std::vector<double> ends_at_;  // by device: when the task is done that it runs, as far as known
  int waiting_ = 0;
  int finished_ = 0;
  bool aborted_ = false;
};

}  // namespace pipetrain
