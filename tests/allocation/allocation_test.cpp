// Counts what CPU stages allocate in steady state: nothing, but for what oneDNN does inside itself.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "ops/conv/conv.h"
#include "ops/conv/tile_convolution_cpu.h"
#include "ops/conv/tile_image_cpu.h"
#include "passes/build.h"
#include "passes/linearise.h"
#include "pipeline/program/check.h"
#include "pipeline/runtime/runtime.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "support/small_networks.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

/// Counts what the threads of devices ask for, except oneDNN inside itself.
void count_allocation(const void* caller) {
  if (!counting.load(std::memory_order_relaxed)) return;
  char name[16] = {};
  prctl(PR_GET_NAME, name);
  if (std::strncmp(name, "device ", 7) != 0) return;
  Dl_info library{};
  const bool known = dladdr(caller, &library) != 0 && library.dli_fname;
  if (!known || !std::strstr(library.dli_fname, "libdnnl")) ++allocations;
}

}  // namespace

void* operator new(std::size_t bytes) {
  count_allocation(__builtin_return_address(0));
  if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  count_allocation(__builtin_return_address(0));
  const auto align = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace pipetrain {
namespace {

/// Convolutions of groups, of images and of volumes, with group normalization behind them.
OnnxModel grouped_network() {
  OnnxBuilder builder("grouped");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 2}, {"", 6}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
  const auto weight = [&](const char* name, Shape shape) {
    HostTensor numbers(TensorType{DType::kFloat32, std::move(shape)});
    for (std::size_t i = 0; i < numbers.span<float>().size(); ++i)
      numbers.span<float>()[i] = static_cast<float>(i % 7) * 0.1F - 0.3F;
    builder.initializer(name, std::move(numbers));
  };
  const auto integers = [&](const char* name, const std::vector<std::int64_t>& values) {
    const auto count = static_cast<std::int64_t>(values.size());
    builder.initializer(name, HostTensor::of<std::int64_t>({count}, values));
  };
  weight("stem.w", {32, 2, 3, 3});
  weight("scale", {32});
  weight("shift", {32});
  weight("groups.w", {32, 8, 3, 3});
  weight("volume.w", {32, 8, 1, 3, 3});
  weight("head.w", {32, 5});
  integers("volume", {-1, 32, 1, 4, 4});
  integers("flat", {-1, 32});
  builder.node("Conv", {"x", "stem.w"}, {"stem"}, {OnnxAttribute::of_ints("pads", {1, 1, 1, 1})},
               "stem");
  builder.node("InstanceNormalization", {"stem", "scale", "shift"}, {"norm"}, {}, "norm");
  builder.node("Conv", {"norm", "groups.w"}, {"groups"}, {OnnxAttribute::of_int("group", 4)}, "g");
  builder.node("Reshape", {"groups", "volume"}, {"deep"}, {}, "deep");
  builder.node("Conv", {"deep", "volume.w"}, {"wide"}, {OnnxAttribute::of_int("group", 4)}, "v");
  builder.node("GlobalAveragePool", {"wide"}, {"mean"}, {}, "mean");
  builder.node("Reshape", {"mean", "flat"}, {"rows"}, {}, "rows");
  builder.node("MatMul", {"rows", "head.w"}, {"logits"}, {}, "head");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

/// Between channel-blocked tensors.
std::unique_ptr<TrainingGraph> blocked_graph(const OnnxModel& model) {
  BuildOptions options;
  options.lower.micro_batch = 4;
  options.fusion = FusionTarget::kCpu;
  options.feature_map_layout = convolution_layout();
  return std::make_unique<TrainingGraph>(
      build_training_graph(model, classify_tensors(model, {}), options));
}

void expect_no_allocations(const TrainingGraph& graph) {
  for (const std::string schedule : {"gpipe", "1f1b", "pipedream"}) {
    const Chain chain = linearise(graph);
    const std::vector<int> stage_of =
        stages_of_chain(graph, chain, {0, static_cast<int>(chain.order.size()) / 2});
    const Slices slices = slice_stages(graph, stage_of, 2);
    std::vector<Edge> edges;
    for (const ValueEdge& edge : slices.edges)
      edges.push_back({edge.from, edge.to, static_cast<std::int64_t>(edge.bytes), edge.gradient});
    ScheduleOptions options;
    options.name = schedule;
    options.stages = 2;
    options.micro_batches = 3;
    const Program program = lower(generate(options), edges);
    check(program);
    RuntimeOptions runtime_options;
    runtime_options.backend = Backend::kCpu;
    Runtime runtime({{&graph, stage_of}}, {&program}, runtime_options);
    test::FixedData data(12, 5);
    for (int step = 0; step < 4; ++step) {
      if (schedule == "pipedream")
        data.set_stream(3, 4, 0);
      else
        data.set_mini_batch(0, 12, 4, step, {4});
      counting = step == 3;
      allocations = 0;
      runtime.run(program, data);
      counting = false;
    }
    EXPECT_EQ(allocations.load(), 0) << schedule;
  }
}

TEST(Runtime, StagesAllocateNothingInSteadyState) {
  expect_no_allocations(*test::training_graph(test::difficult_network(/*tied=*/false), 4));
  expect_no_allocations(*blocked_graph(grouped_network()));
}

/// Runs a kernel of convolutions of bfloat16 numbers, whose values do not matter, twice.
void expect_no_allocations(Kernel& kernel, const std::vector<TensorType>& in,
                           const TensorType& out) {
  std::vector<HostTensor> held;
  std::vector<Tensor> inputs;
  for (const TensorType& type : in) {
    held.emplace_back(type);
    inputs.push_back(held.back().view());
  }
  const HostTensor result(out);
  const std::vector<Tensor> outputs = {result.view()};
  const Buffer workspace(kernel.workspace_bytes());
  RunContext context;
  context.workspace = workspace.data();
  prctl(PR_SET_NAME, "device 0");
  for (const bool again : {false, true}) {
    counting = again;
    allocations = 0;
    kernel.run(inputs, outputs, context);
    counting = false;
  }
  EXPECT_EQ(allocations.load(), 0);
}

TEST(Kernels, OfConvolutionsOnTilesAllocateNothing) {
  const auto blocked = [](std::int64_t channels, std::int64_t size) {
    return TensorType{DType::kBFloat16, Shape{1, channels, size, size}, Layout::kBlocked16};
  };
  const TensorType weights{DType::kBFloat16, Shape{32, 32, 3, 3}};
  for (const std::int64_t stride : {1, 2}) {
    const WindowAxis axis{16, 3, stride, 1, 1, 1, 16 / stride};
    const TileConvolution shape{1, 32, 32, axis, axis};
    const TensorType x = blocked(32, 16), y = blocked(32, axis.output);
    expect_no_allocations(*make_tile_pass(shape, false, tiles::portable()), {x, weights}, y);
    expect_no_allocations(*make_tile_pass(shape, true, tiles::portable()), {y, weights}, x);
    expect_no_allocations(*make_tile_weight_gradient(shape, tiles::portable()), {x, y},
                          {DType::kFloat32, weights.shape});
  }
  const ConvGeometry geometry = conv_geometry({{"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}},
                                              {1, 3, 16, 16}, {16, 3, 3, 3});
  const TileImage image = tile_image(geometry).value();
  const TensorType x{DType::kBFloat16, Shape{1, 3, 16, 16}}, y = blocked(16, 8);
  const Shape w{16, 3, 3, 3};
  expect_no_allocations(*make_tile_image_forward(image, tiles::portable()),
                        {x, {DType::kBFloat16, w}}, y);
  expect_no_allocations(*make_tile_image_weight_gradient(image, tiles::portable()), {x, y},
                        {DType::kFloat32, w});
}

}  // namespace
}  // namespace pipetrain
