// A small network cut into stages, and the runtime that trains it in host memory or on recorded
// devices: what the tests of the runtime share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/runtime/runtime.h"
#include "pipeline/schedule/generate.h"
#include "support/recorded_devices.h"
#include "support/small_networks.h"

namespace pipetrain::test {

inline constexpr std::int64_t kBatch = 10,
                              kMicroBatch = 4;  // 4 + 4 + 2: the last micro-batch is uneven
inline const std::vector<std::int64_t> kSizes = {4, 2};

/// A network cut into stages, with a program to run on it.
struct Pipeline {
  Pipeline(bool tied, int stages, std::vector<std::int64_t> sizes);
  /// `micro_batches` of a step; 0: weights are not packed, nothing is batched.
  Pipeline(OnnxModel network, int stages, const std::vector<std::int64_t>& sizes,
           std::int64_t micro_batches = 0, DType precision = DType::kFloat32, bool for_gpus = false,
           const ParameterOptions& parameters = {});

  Program program(const std::string& schedule, int micro_batches, bool recompute = false,
                  bool clip = false) const;
  /// The program of any schedule for the stages of this pipeline.
  Program program(ScheduleOptions options, bool clip = false) const;

  OnnxModel model;
  int stages;
  std::vector<std::unique_ptr<TrainingGraph>> graphs;
  std::vector<RuntimeVariant> variants;
  std::vector<Edge> edges;
  bool tied_stages = false;
  int packed_weights = 0, batch_gradients = 0;
};

/// Where a program is run.
enum class Place : std::uint8_t { kReference, kCpu, kOneDevice, kManyDevices, kExchanging };

RuntimeOptions runtime_options(Place place, double clip = 0);

/// A runtime, and the devices that are recorded if it runs on any.
struct PlacedRuntime {
  PlacedRuntime(const Pipeline& pipeline, const Program& program, Place place, double clip = 0,
                const LossScaling& scaling = {});
  /// Reports the problems of the devices.
  ~PlacedRuntime();
  RoundResult run(const Program& program, MicroBatchSource& source);
  HostTensor read(const std::string& name) const { return runtime->read(name); }

  std::unique_ptr<RecordedMachine> machine;
  std::unique_ptr<Runtime> runtime;
  static inline std::uint64_t machines = 0, operations = 0, compared = 0, groups = 0, exchanged = 0,
                              replayed = 0;
};

/// Everything that training changes, as bytes.
template <class Reader>
std::string fingerprint(const Pipeline& pipeline, const Reader& reader) {
  std::string out;
  for (const Value& value : pipeline.graphs[0]->graph.values) {
    if (value.role != Role::kParameter && value.role != Role::kState) continue;
    const HostTensor content = reader.read(value.name);
    EXPECT_TRUE(static_cast<bool>(content)) << value.name;
    if (content) out.append(static_cast<const char*>(content.view().data), content.type().bytes());
  }
  return out;
}

}  // namespace pipetrain::test
