// Simulated GPUs: streams run their work late, in any order that events allow, on memory that only
// the device may access. All work is checked: data races between streams, foreign memory passed to
// kernels, memory freed while in use, objects that outlive their stream, and deadlocks. Each stream
// has a clock: work takes a microsecond, plus a nanosecond per byte of operands that is not in the
// device's cache; the first run of a kernel takes long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/communicator.h"
#include "device/device.h"
#include "ops/kernel/kernel.h"

namespace pipetrain::test {

class RecordedStreams;

inline constexpr std::size_t kRecordedCache = std::size_t{16} << 10;  // bytes
inline constexpr double kRecordedCompiling = 1e-3;                    // seconds

/// What work on `bytes` of operands takes by a stream's clock, with nothing in the cache.
inline double recorded_seconds(std::size_t bytes) {
  return 1e-6 + 1e-9 * static_cast<double>(bytes);
}

using MakeKernelOfRequest = std::function<std::unique_ptr<Kernel>(const KernelRequest&)>;

/// Some devices of one machine. Its kernels are the CPU's, run when the work's turn comes.
class RecordedMachine {
 public:
  /// `seed` chooses among all streams that could continue.
  RecordedMachine(int devices, std::uint64_t seed);
  ~RecordedMachine();

  Device& device(int index);
  /// Communicators of the devices: what their groups do is done when both ends have been reached,
  /// no earlier. Checked as well: that ranks agree on what they exchange and in which order, that
  /// one thread makes all calls of a device, and that everything could go on if a device did its
  /// groups one by one in the order in which they were issued, whatever the streams.
  Collectives& collectives();
  /// Drops the next group that a device issues, so that its peers hang.
  void lose_group(int device);
  /// Streams made from now on record work (device/recorded_work.h); every `failing`-th recording of
  /// a stream fails, none if it is 0. Said before: they do not.
  void allow_recordings(int failing = 0);
  /// Kernels made from now on come from `make`; where it gives none, devices have none. Said
  /// before: they are the CPU's.
  void use_kernels(MakeKernelOfRequest make);
  /// Disables peer access between devices.
  void part_devices();
  /// Says that the host writes memory which devices copy from: nothing may still want it.
  void host_writes(const void* data, std::size_t bytes);
  /// Recordings that were put in.
  std::uint64_t replayed() const;
  /// The errors found, one sentence each.
  std::vector<std::string> problems() const;
  /// How much work has been done and how many pairs of accesses of different streams were compared.
  std::uint64_t operations() const;
  std::uint64_t compared() const;
  /// Bytes that streams have copied from memory of the host.
  std::uint64_t uploaded() const;
  /// How often memory was freed.
  std::uint64_t frees() const;
  /// Copies from memory of a device to memory of the host.
  std::uint64_t downloads() const;
  /// Copies from host memory that no device has given, which the host itself must do; and bytes.
  std::pair<std::uint64_t, std::uint64_t> pageable_copies() const;
  /// Groups that were issued, and sends, receives and sums in them that were done.
  std::uint64_t groups() const;
  std::uint64_t exchanged() const;

 private:
  std::unique_ptr<RecordedStreams> streams_;
  std::unique_ptr<Collectives> collectives_;
  std::vector<std::unique_ptr<Device>> devices_;
};

}  // namespace pipetrain::test
