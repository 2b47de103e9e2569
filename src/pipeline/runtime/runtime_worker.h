// What a device's thread keeps while it works: shared by the files of the runtime, and by nobody
// else.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "pipeline/runtime/device_times.h"
#include "pipeline/runtime/runtime.h"

namespace pipetrain {

struct Runtime::Worker {
  // What it waits for, where that is no device.
  static constexpr int kNobody = -1;
  static constexpr int kFinished = -2;
  static constexpr int kEverybody = -3;  // in a barrier

  int device = 0;
  std::thread thread;
  std::unique_ptr<Stream> compute, transfer;  // null: the CPU
  std::unique_ptr<DeviceTimes> times;         // of the compute stream
  std::vector<Event> events;
  double cpu_seconds = 0;
  double worked_in_waits = 0;           // seconds
  std::atomic<int> at{-1};              // index of the instruction in progress
  std::atomic<int> waits_for{kNobody};  // a device, or one of the above

  Event& event() { return events[static_cast<std::size_t>(at.load(std::memory_order_relaxed))]; }

  /// Begins the work of the instruction in progress, once it has all it waits for; ends it.
  void begin_work(double round_start) {
    event().start = steady_seconds() - round_start;
    if (times) times->begin(at.load(std::memory_order_relaxed));
  }
  void end_work() const {
    if (times) times->end();
  }

  /// Waits for the device.
  void synchronize() const {
    if (!compute) return;
    transfer->synchronize();
    compute->synchronize();
  }

  /// Notes whom the worker waits for as long as it exists.
  class Wait {
   public:
    Wait(Worker& worker, int device) : worker_(worker) {
      worker_.waits_for.store(device, std::memory_order_relaxed);
    }
    ~Wait() { worker_.waits_for.store(kNobody, std::memory_order_relaxed); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    Worker& worker_;
  };
};

}  // namespace pipetrain
