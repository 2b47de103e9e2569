// Stages with frozen weights: what they compute, and the memory that these take on devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/runtime/oracle.h"
#include "pipeline/stage/slice.h"
#include "pipeline/stage/stage_arena.h"
#include "support/placed_runtime.h"

namespace pipetrain::test {
namespace {

/// The network of wide layers, of which the first is frozen: 512 x 72 weights and 512 biases.
Pipeline with_frozen_layer(int stages, const std::vector<std::int64_t>& sizes, DType precision,
                           bool freezes = true, const OnnxModel& network = wide_network()) {
  ParameterOptions parameters;
  if (freezes) parameters.freeze = {"layer1.*"};
  return {network, stages, sizes, 0, precision, /*for_gpus=*/false, parameters};
}

OnnxInitializer& first_weights(OnnxModel& model) {
  return *std::ranges::find(model.initializers, "layer1.weight", &OnnxInitializer::name);
}

/// The weights of the first layer are stored in float16, so that each network converts them.
OnnxModel with_half_weights() {
  OnnxModel model = wide_network();
  model.graph_name = "half weights";
  OnnxInitializer& weights = first_weights(model);
  HostTensor half(TensorType{DType::kFloat16, weights.value.shape()});
  std::ranges::transform(weights.value.span<float>(), half.span<std::uint16_t>().begin(),
                         float_to_half);
  weights.value = half;
  weights.file_dtype = DType::kFloat16;
  return model;
}

/// The weights of the first layer are stored the other way round, so that each network turns them.
OnnxModel with_turned_weights() {
  OnnxModel model = wide_network();
  model.graph_name = "turned weights";
  OnnxInitializer& weights = first_weights(model);
  weights.shape = Shape{72, 512};
  weights.value = weights.value.reshaped(weights.shape);  // other weights, as good
  std::vector<OnnxNode>& nodes = model.nodes.edit();
  for (OnnxNode& node : nodes)
    std::ranges::replace(node.inputs, weights.name, std::string("turned"));
  OnnxNode turn;
  turn.name = "turn";
  turn.op_type = "Transpose";
  turn.inputs = {weights.name};
  turn.outputs = {"turned"};
  turn.opset = model.opset;
  turn.file_index = nodes.size();
  nodes.insert(nodes.begin(), std::move(turn));
  return model;
}

constexpr std::size_t kFrozenWeights = 512 * 72 * sizeof(float),
                      kFrozenBiases = 512 * sizeof(float);

/// In bfloat16, with a stage that prepares frozen weights and has no others. Every stage has a
/// kernel.
Pipeline with_frozen_stage() {
  for (const int stages : {2, 3, 4, 5}) {
    Pipeline pipeline = with_frozen_layer(stages, kSizes, DType::kBFloat16);
    const Slices slices =
        slice_stages(*pipeline.graphs[0], pipeline.variants[0].stage_of_forward, stages);
    const bool has_kernels = std::ranges::none_of(
        slices.stages, [](const StageSlice& slice) { return slice.forward.empty(); });
    const bool is_frozen = std::ranges::any_of(slices.stages, [](const StageSlice& slice) {
      return slice.parameters.empty() && !slice.prepare.empty();
    });
    if (has_kernels && is_frozen) return pipeline;
  }
  ADD_FAILURE() << "no stage has only frozen weights";
  return with_frozen_layer(2, kSizes, DType::kBFloat16);
}

// No weight that is written tells such a stage to prepare its weights.
TEST(FrozenWeights, AStageThatHasOnlyThemComputesWithThem) {
  const Pipeline pipeline = with_frozen_stage();
  const Program program = pipeline.program("1f1b", 3);
  const auto train = [&](auto& runner) {
    FixedData data(2 * kBatch, 5);
    std::vector<double> losses;
    for (std::int64_t step = 0; step < 2; ++step) {
      data.set_mini_batch(step * kBatch, kBatch, kMicroBatch, step, kSizes);
      runner.run(program, data);
      for (const MicroBatch& micro_batch : data.micro_batches())
        losses.push_back(micro_batch.loss_sum);
    }
    return std::pair(losses, fingerprint(pipeline, runner));
  };
  for (const Place place : {Place::kReference, Place::kCpu, Place::kOneDevice, Place::kManyDevices,
                            Place::kExchanging}) {
    Oracle oracle(pipeline.variants, pipeline.stages, runtime_options(place));
    PlacedRuntime runtime(pipeline, program, place);
    const auto expected = train(oracle);
    const auto found = train(runtime);
    EXPECT_EQ(found.first, expected.first) << static_cast<int>(place);
    EXPECT_TRUE(found.second == expected.second) << static_cast<int>(place);
  }
}

/// Bytes of parameters and constants of the only stage.
std::size_t weights_of_stage(const Pipeline& pipeline, Place place) {
  const Program program = pipeline.program("gpipe", 3);
  const PlacedRuntime runtime(pipeline, program, place);
  return runtime.runtime->memory(0).parameters;
}

TEST(FrozenWeights, AreCopiedToADeviceOnceForAllSizesOfMicroBatches) {
  const auto on_device = [](bool freezes) {
    const Pipeline pipeline = with_frozen_layer(1, kSizes, DType::kFloat32, freezes);
    return weights_of_stage(pipeline, Place::kOneDevice) - weights_of_stage(pipeline, Place::kCpu);
  };
  // Beside the other constants of the network.
  EXPECT_EQ(on_device(true) - on_device(false), kFrozenWeights + kFrozenBiases);
  const auto uploaded = [](const std::vector<std::int64_t>& sizes) {
    const Pipeline pipeline = with_frozen_layer(1, sizes, DType::kFloat32);
    const Program program = pipeline.program("gpipe", 3);
    const PlacedRuntime runtime(pipeline, program, Place::kOneDevice);
    return runtime.machine->uploaded();
  };
  EXPECT_LT(uploaded(kSizes), uploaded({kMicroBatch}) + kFrozenBiases);
}

// Their networks have tensors of their own with the same numbers.
TEST(FrozenWeights, AreCopiedToADeviceOnceWhereTheyAreConvertedOrFolded) {
  for (const OnnxModel& network : {with_half_weights(), with_turned_weights()}) {
    SCOPED_TRACE(network.graph_name);
    const auto constants = [&](const std::vector<std::int64_t>& sizes) {
      const Pipeline pipeline =
          with_frozen_layer(1, sizes, DType::kFloat32, /*freezes=*/true, network);
      return weights_of_stage(pipeline, Place::kOneDevice) -
             weights_of_stage(pipeline, Place::kCpu);
    };
    EXPECT_GE(constants(kSizes), kFrozenWeights + kFrozenBiases);
    // The other size has small constants of its own.
    EXPECT_LT(constants(kSizes), constants({kMicroBatch}) + kFrozenBiases);
  }
}

void expect_predicted_memory(const Pipeline& pipeline) {
  const Program program = pipeline.program("gpipe", 3);
  std::vector<Slices> slices;
  for (const RuntimeVariant& variant : pipeline.variants)
    slices.push_back(slice_stages(*variant.training, variant.stage_of_forward, 1));
  std::vector<StageVariant> variants;
  for (std::size_t v = 0; v < slices.size(); ++v)
    variants.push_back({pipeline.variants[v].training, &slices[v]});
  const StageCapacity capacity = stage_capacities({&program})[0];
  const ArenaBytes predicted =
      predict_arena(variants, 0, capacity, runtime_options(Place::kCpu).optimizer);
  EXPECT_EQ(weights_of_stage(pipeline, Place::kCpu), predicted.parameters);
  EXPECT_EQ(weights_of_stage(pipeline, Place::kOneDevice),
            predicted.parameters + constant_bytes(variants, 0));
}

TEST(FrozenWeights, ArePredictedForDevices) {
  for (const OnnxModel& network : {wide_network(), with_half_weights(), with_turned_weights()}) {
    SCOPED_TRACE(network.graph_name);
    expect_predicted_memory(
        with_frozen_layer(1, kSizes, DType::kFloat32, /*freezes=*/true, network));
  }
}

}  // namespace
}  // namespace pipetrain::test
