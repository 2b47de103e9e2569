// Options of a runtime: networks, devices, training.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/registry/registry.h"
#include "optim/loss_scale.h"
#include "optim/optimizer.h"
#include "passes/training_graph.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/transport/bucket_floats.h"

namespace pipetrain {

class Collectives;
class ProcessGroup;

struct RuntimeOptions {
  Backend backend = Backend::kCpu;
  /// The device behind each of the program's devices; one may occur several times. Empty: the CPU,
  /// in host memory. They must outlive the runtime.
  std::vector<Device*> devices;
  /// Transfers and all-reduces between GPUs; null: peer-to-peer copies. Must outlive the runtime.
  Collectives* collectives = nullptr;
  /// The processes of a distributed run, each with some of the devices; null: this process runs
  /// all. All create their runtime from the same options. Must outlive the runtime.
  ProcessGroup* processes = nullptr;
  std::vector<int> process_of_device;
  /// With processes and devices (null: another process's): which of its process's devices each is.
  std::vector<int> device_numbers;
  BucketFloats buckets;  // of the gradients of replicas in several processes
  int threads = 1;       // OpenMP threads of each stage
  bool pin = true;       // give each stage cores of its own when there are enough
  /// Devices of several processes may share the cores of one machine: how many come before this
  /// process's own, and how many there are; 0: only its own.
  int devices_before = 0, sharing_devices = 0;
  int first_log = 0;  // of device 0 (last_instructions.h); runtimes that run beside others have own
  OptimizerSettings optimizer;
  bool shard_optimizer = false;  // replicas share the updates of their stage (update_owners.h)
  int accumulators = 0;          // leaves of the tree of sums (sum_tree.h); 0: in their order
  bool bfloat16_sums = false;    // gradients of replicas are summed as bfloat16, and so are sums
  double clip_norm = 0;          // 0: off
  LossScaling loss_scaling;      // one that skips needs programs with a gradient sync
  bool finds_nonfinite = false;  // look for the first value that is not finite
  std::uint64_t seed = 1;        // of dropout masks
  /// The runtime's constructor calls this once all stages of this process have a copy of a
  /// parameter's initial value, which then may be released; from any thread, one call at a time.
  std::function<void(const std::string&)> has_copied;
  double timeout_seconds = 60;  // the watchdog ends the run after this time without progress
  /// Per stage: sleep this long instead of running kernels, to measure the overhead of the runtime.
  std::vector<StageSeconds> emulated_stages;
  double emulated_latency_seconds = 0;  // of every link between stages
};

/// One shape at which the network runs. Index 0 is the full micro-batch.
struct RuntimeVariant {
  const TrainingGraph* training = nullptr;
  std::vector<int> stage_of_forward;
};

}  // namespace pipetrain
