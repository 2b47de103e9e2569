// What a runtime is asked for: networks, devices, how they train.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "ops/registry/registry.h"
#include "optim/loss_scale.h"
#include "optim/optimizer.h"
#include "passes/training_graph.h"
#include "pipeline/simulate/simulate.h"

namespace pipetrain {

class Collectives;
class ProcessGroup;

struct RuntimeOptions {
  Backend backend = Backend::kCpu;
  /// Which device each of the program's devices is; one may stand here several times. Empty: the
  /// CPU, in host memory. They outlive the runtime.
  std::vector<Device*> devices;
  /// What moves data between devices and adds up gradients over replicas on devices of their own;
  /// null: copies from device to device. Outlives the runtime.
  Collectives* collectives = nullptr;
  /// The processes that run the programs together, each some of the devices; null: this one runs
  /// all. Each has a runtime made from the same. Outlives the runtime.
  ProcessGroup* processes = nullptr;
  std::vector<int> process_of_device;
  /// With processes and devices (null: another process's): which of its process's devices each is.
  std::vector<int> device_numbers;
  int threads = 1;  // OpenMP threads of each stage
  bool pin = true;  // give each stage cores of its own when there are enough
  /// Of all devices that share the cores of this process, with those of other processes: how many
  /// come before its own, and how many there are; 0: its own alone.
  int devices_before = 0, sharing_devices = 0;
  OptimizerSettings optimizer;
  double clip_norm = 0;         // 0: off
  LossScaling loss_scaling;     // one that skips needs programs with a gradient sync
  std::uint64_t seed = 1;       // of dropout masks
  double timeout_seconds = 60;  // without any progress: the watchdog ends the run
  /// Per stage: sleep this long instead of computing. A emulated_stages shows what the runtime
  /// itself costs.
  std::vector<StageSeconds> emulated_stages;
  double emulated_latency_seconds = 0;  // of every link between stages
};

/// One shape at which the network runs. Index 0 is the full micro-batch.
struct RuntimeVariant {
  const TrainingGraph* training = nullptr;
  std::vector<int> stage_of_forward;
};

}  // namespace pipetrain
