// The last instructions of every device, reported when a run stalls or crashes, or on request. The
// memory can be shared with the process that restarts this one, so that it can report them even
// after a kill.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "pipeline/program/program.h"

namespace pipetrain {

/// What one device does. Written by its thread alone, without waiting; all zeros: nothing yet.
class DeviceLog {
 public:
  static constexpr std::size_t kLength = 256;
  // What a device waits for if not a device.
  static constexpr int kNobody = -1;
  static constexpr int kFinished = -2;
  static constexpr int kEverybody = -3;  // in a barrier
  static constexpr int kData = -4;       // a mini-batch

  void begin_round();
  void begin(const Program& program, const Instruction& instruction, double seconds);
  void end(double seconds) { entry(begun() - 1).end = seconds; }
  /// From now on it waits for `whom`.
  void wait_for(int whom, double seconds);

  std::uint64_t begun() const { return begun_.load(std::memory_order_relaxed); }
  /// A device, or one of the above.
  int waits_for() const { return waits_for_.load(std::memory_order_relaxed) - kOffset; }
  double waits_since() const { return since_.load(std::memory_order_relaxed); }
  /// Writes what it waits for and its instructions as text, relative to `now`. Async-signal-safe.
  void write(int descriptor, int device, double now) const;

 private:
  static constexpr int kOffset = 100;  // zeros are no device
  struct Entry {
    double begin, end;  // end < begin: not yet
    std::int32_t stage, micro_batch, peer;
    Kind kind;
    bool gradient;
  };
  Entry& entry(std::uint64_t number) { return entries_[number % kLength]; }
  const Entry& entry(std::uint64_t number) const { return entries_[number % kLength]; }

  std::atomic<std::uint64_t> begun_;
  std::atomic<std::uint64_t> rounds_;
  std::atomic<int> waits_for_;
  std::atomic<double> since_;
  Entry entries_[kLength];
};

inline constexpr std::size_t kLoggedDevices = 64;
inline constexpr std::size_t kDeviceLogBytes = kLoggedDevices * sizeof(DeviceLog);

/// Keeps the logs of later runtimes in other memory, of kDeviceLogBytes zeros.
void keep_device_logs_in(std::byte* memory);
/// The log of a device. Those beyond kLoggedDevices share one that is never written out.
DeviceLog& log_of_device(int device);
/// Instructions that all devices have begun.
std::uint64_t instructions_begun();

/// Names the file of dump_last_instructions(), and writes it at crashes, too.
void dump_last_instructions_to(const std::filesystem::path& path);
/// Writes the logs of all devices to the file; without effect before it is named.
/// Async-signal-safe.
void dump_last_instructions();
/// Likewise to a descriptor.
void write_last_instructions(int descriptor);

}  // namespace pipetrain
