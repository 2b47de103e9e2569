#include "pipeline/runtime/device_thread.h"

#include <fmt/core.h>
#include <omp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "base/cores.h"
#include "pipeline/runtime/core_claims.h"

namespace pipetrain {
namespace {

/// Pins the calling thread to cores that no other device and no other run has, if there are enough.
/// OpenMP threads inherit this.
void pin_to_cores(int device, int count) {
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  for (const int core : claim_cores(device, device * count, count)) CPU_SET(core, &chosen);
  if (CPU_COUNT(&chosen) == count) sched_setaffinity(0, sizeof chosen, &chosen);
}

/// The kernel's struct sched_attr in its first version (include/uapi/linux/sched/types.h), which
/// glibc does not declare.
struct SchedulingAttributes {
  std::uint32_t size = sizeof(SchedulingAttributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0;
  std::uint64_t deadline = 0;
  std::uint64_t period = 0;
};

/// From Linux 6.12 on a thread may request a short time slice. On a busy machine it then runs soon
/// after waking instead of milliseconds later; its share of the core does not change. Older kernels
/// ignore it.
void take_short_turns() {
  SchedulingAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.size = sizeof attributes;
  attributes.runtime = static_cast<std::uint64_t>(kTurnSeconds * 1e9);
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace

void become_device(int device, int devices, int threads, bool pin) {
  prctl(PR_SET_NAME, fmt::format("device {}", device).c_str());
  prctl(PR_SET_TIMERSLACK, 1UL);
  take_short_turns();
  omp_set_num_threads(threads);
  if (pin && devices * threads <= available_cores()) pin_to_cores(device, threads);
}

}  // namespace pipetrain
