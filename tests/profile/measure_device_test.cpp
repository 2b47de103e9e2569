// What is measured of a device by its own clock, on recorded devices.
#include "profile/measure_device.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "graph/builder.h"
#include "ops/registry/host_kernel.h"
#include "optim/update.h"
#include "profile/measure.h"
#include "profile/perceptron.h"
#include "profile/step_timing.h"
#include "support/recorded_devices.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

using test::perceptron;
using test::quick;

TEST(MeasureDevice, SaysWhatTheDevicesClockSays) {
  test::RecordedMachine machine(1, 3);
  const TrainingGraph training = perceptron(8, 32, 2);
  const Profile profile = measure_device_profile(training, machine.device(0), quick());
  EXPECT_TRUE(machine.problems().empty()) << machine.problems().front();
  EXPECT_EQ(profile.device, "recorded 0");
  EXPECT_EQ(profile.backend, "device");
  const std::vector<bool> is_read = values_read(training);
  int kernels = 0;
  for (std::size_t n = 0; n < training.graph.nodes.size(); ++n) {
    const Node& node = training.graph.nodes[n];
    if (node.op->flags & kView) {
      EXPECT_EQ(profile.node_seconds[n], 0);
      continue;
    }
    // Nothing comes out of the device's cache, and nothing is compiled while it is measured.
    std::size_t bytes = profile.workspace_bytes[n];
    for (const ValueId id : node.inputs) bytes += id ? training.graph[id].type.bytes() : 0;
    for (const ValueId id : node.outputs)
      bytes += is_read[static_cast<std::size_t>(id.index)] ? training.graph[id].type.bytes() : 0;
    const double seconds = test::recorded_seconds(bytes);
    // A workspace is one for all runs, so it may come out of the cache.
    EXPECT_GE(profile.node_seconds[n] * 1.0001,
              test::recorded_seconds(bytes - profile.workspace_bytes[n]))
        << node.op->name;
    EXPECT_LE(profile.node_seconds[n] * 0.9999, seconds) << node.op->name;
    ++kernels;
  }
  EXPECT_GT(kernels, 10);
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  EXPECT_NEAR(profile.accumulate_seconds_per_byte, test::recorded_seconds(2 * kBytes) / kBytes,
              1e-13);
  const auto slots = static_cast<std::size_t>(state_slots(quick().optimizer));
  EXPECT_NEAR(profile.update_seconds_per_byte,
              test::recorded_seconds((2 + slots) * kBytes) / kBytes, 1e-13);
}

// Bytes that the device's kernel of a product of two n x n matrices works in beside them: the
// recorded device runs the CPU's kernels, whose workspace follows the CPU's vectors.
std::size_t product_workspace(Device& device, DType dtype, std::int64_t n) {
  Graph graph;
  GraphBuilder builder = make_builder(graph);
  const auto input = [&](const char* name) {
    Value value;
    value.name = name;
    value.type = {dtype, Shape{n, n}};
    value.role = Role::kInput;
    return builder.add_value(value);
  };
  builder.add("MatMul", {input("a"), input("b")});
  const Node& node = graph.nodes[0];
  const std::unique_ptr<Stream> stream = device.make_stream();
  return make_kernel(*stream, {node, graph.input_types(node), graph.output_types(node)})
      ->workspace_bytes();
}

// 256 x 256 fill the recorded device's cache more than twice.
TEST(MeasureDevice, SpeedsOfALargeProductAndOfACopy) {
  test::RecordedMachine machine(1, 3);
  constexpr std::size_t kMatrix = std::size_t{256} * 256;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const DeviceSpeed speed = measure_device_speed(machine.device(0), dtype, quick());
    const double product = 2.0 * 256 * 256 * 256 / speed.flops_per_second;
    const double move = 2.0 * 4 * kMatrix / speed.bytes_per_second;
    // The matrices do not come out of the device's cache; the workspace, one for all runs, may.
    const std::size_t matrices = 3 * kMatrix * size_of(dtype);
    const std::size_t workspace = product_workspace(machine.device(0), dtype, 256);
    EXPECT_GE(product * 1.0001, test::recorded_seconds(matrices));
    EXPECT_LE(product * 0.9999, test::recorded_seconds(matrices + workspace));
    EXPECT_NEAR(move, test::recorded_seconds(2 * kMatrix * 4), move * 1e-3);
    EXPECT_EQ(speed.name, "recorded 0");
  }
  EXPECT_TRUE(machine.problems().empty()) << machine.problems().front();
}

TEST(MeasureDevice, RemembersWhatItsMakeTook) {
  const TemporaryDirectory folder;
  const TrainingGraph training = perceptron(8, 32, 1);
  ProfileOptions options = quick();
  options.use_cache = true;
  options.cache_directory = folder.path();
  test::RecordedMachine machine(2, 3);
  EXPECT_FALSE(known_device_profile(training, machine.device(0), options));
  const Profile first = measure_device_profile(training, machine.device(0), options);
  EXPECT_EQ(first.cached_nodes, 0);
  // An equal device has the same numbers.
  const std::uint64_t done = machine.operations();
  const Profile second = measure_device_profile(training, machine.device(1), options);
  EXPECT_EQ(second.cached_nodes, second.distinct_nodes);
  EXPECT_EQ(second.node_seconds, first.node_seconds);
  EXPECT_EQ(second.workspace_bytes, first.workspace_bytes);
  EXPECT_EQ(second.accumulate_seconds_per_byte, first.accumulate_seconds_per_byte);
  EXPECT_EQ(second.update_seconds_per_byte, first.update_seconds_per_byte);
  EXPECT_EQ(machine.operations(), done);
  EXPECT_TRUE(known_device_profile(training, machine.device(0), options));
  // TF32 is another kind of product; another optimizer has to be measured.
  ProfileOptions other = options;
  other.tensor_floats = true;
  EXPECT_FALSE(known_device_profile(training, machine.device(0), other));
  other = options;
  other.optimizer.kind = OptimizerKind::kLamb;
  EXPECT_FALSE(known_device_profile(training, machine.device(0), other));
  // The processor's own measurements are others.
  EXPECT_EQ(measure_profile(training, Backend::kCpu, 1, options).cached_nodes, 0);
}

}  // namespace
}  // namespace pipetrain
