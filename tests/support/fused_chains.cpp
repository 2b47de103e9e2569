#include "support/fused_chains.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/random.h"
#include "graph/op.h"
#include "support/device_kernel.h"
#include "support/emulated_kernels.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

constexpr std::size_t kEdge = 64;  // bytes around what a kernel writes

RunContext context_of(const FusedChain& chain) {
  RunContext context;
  context.seed = 5;
  context.step = 3;
  context.first_sample = 7;
  const Shape& shape = chain.outputs[0].shape;
  context.samples = shape.rank() > 0 ? shape[0] : 1;
  return context;
}

HostTensor operand(const TensorType& type, std::uint64_t seed) {
  const HostTensor wide = random_tensor({DType::kFloat32, type.shape, type.layout}, seed, -2, 2);
  if (type.dtype == DType::kFloat32) return wide;
  HostTensor out(type);
  for (std::int64_t i = 0; i < type.count(); ++i) {
    const float value = wide.view().as<float>()[i];
    out.view().as<std::uint16_t>()[i] =
        type.dtype == DType::kBFloat16 ? float_to_bfloat16(value) : float_to_half(value);
  }
  return out;
}

/// Where results go.
enum class Place { kApart, kOverInputs, kShifted };

/// Runs a kernel; `shift` elements' bytes before everything where Place says so.
std::vector<HostTensor> run(const KernelRequest& request, const std::vector<HostTensor>& inputs,
                            const RunContext& context, Place place) {
  const std::unique_ptr<Kernel> kernel = make_gpu_kernel(request);
  if (!kernel) return {};
  const auto block = [&](const TensorType& type) {
    return std::vector<std::byte>(type.bytes() + 2 * kEdge, std::byte{0xFF});
  };
  std::vector<std::vector<std::byte>> blocks;
  std::vector<Tensor> in, out;
  for (const HostTensor& input : inputs) {
    const std::size_t shift = place == Place::kShifted ? size_of(input.dtype()) : 0;
    blocks.push_back(block(input.type()));
    in.push_back({input.type(), blocks.back().data() + kEdge + shift});
    std::memcpy(in.back().data, input.view().data, input.type().bytes());
  }
  for (const TensorType& type : request.outputs) {
    blocks.push_back(block(type));
    out.push_back({type, blocks.back().data() + kEdge});
  }
  for (std::size_t i = 0; place == Place::kOverInputs && i < in.size(); ++i) {
    if (in[i].type != out[0].type) continue;
    out[0].data = in[i].data;
    break;
  }
  Buffer workspace(kernel->workspace_bytes());
  RunContext with_workspace = context;
  with_workspace.workspace = workspace.data();
  kernel->run(in, out, with_workspace);
  std::vector<HostTensor> results;
  for (const Tensor& result : out) {
    results.emplace_back(result.type);
    std::memcpy(results.back().view().data, result.data, result.type.bytes());
    const auto* bytes = result.as<std::byte>();
    if (place != Place::kApart) continue;
    for (std::size_t i = 1; i <= kEdge; ++i) {
      EXPECT_TRUE(bytes[-static_cast<std::ptrdiff_t>(i)] == std::byte{0xFF} &&
                  bytes[result.type.bytes() + i - 1] == std::byte{0xFF})
          << "writes beside a result";
    }
  }
  return results;
}

/// Every step as a node of its own.
std::vector<HostTensor> run_alone(const FusedChain& chain, const std::vector<HostTensor>& inputs,
                                  const RunContext& context) {
  const FusedProgram program =
      fused_program(chain.node.attributes, static_cast<int>(chain.inputs.size()));
  std::vector<HostTensor> values = inputs;
  for (std::size_t k = 0; k < program.steps.size(); ++k) {
    const FusedStep& step = program.steps[k];
    Node node;
    node.op = find_op(step.op);
    node.attributes = step.attributes;
    TensorType type = chain.outputs[0];
    type.dtype = program.stored(static_cast<int>(k), chain.inputs);
    KernelRequest request{node, {}, {type}};
    std::vector<HostTensor> operands;
    for (const int o : step.operands) {
      operands.push_back(values[static_cast<std::size_t>(o)]);
      request.inputs.push_back(operands.back().type());
    }
    values.push_back(run(request, operands, context, Place::kApart).at(0));
  }
  std::vector<HostTensor> out;
  for (const int result : program.results)
    out.push_back(values[inputs.size() + static_cast<std::size_t>(result)]);
  return out;
}

FusedStep step_of(RandomStream& random, int operands) {
  const auto any = [&] {
    return static_cast<int>(random.below(static_cast<std::uint32_t>(operands)));
  };
  static const std::vector<FusedStep> kUnary = {
      {"Relu", {}, {}},
      {"Gelu", {}, {{"approximate", "tanh"}}},
      {"Gelu", {}, {}},
      {"Tanh", {}, {}},
      {"Silu", {}, {}},
      {"Clip", {}, {{"min", -0.5}, {"max", 0.1}}},
      {"LeakyRelu", {}, {{"alpha", 0.3}}},
      {"Dropout", {}, {{"ratio", 0.25}, {"key", std::int64_t{4}}}},
      {"PowScalar", {}, {{"exponent", 2.0}}},
      {"Softplus", {}, {}},
      {"Neg", {}, {}}};
  static const std::vector<FusedStep> kBinary = {
      {"Add", {}, {}},      {"Mul", {}, {}},      {"Sub", {}, {}},      {"Max", {}, {}},
      {"ReluGrad", {}, {}}, {"TanhGrad", {}, {}}, {"GeluGrad", {}, {}}, {"SigmoidGrad", {}, {}}};
  const auto pick = [&](const std::vector<FusedStep>& list) {
    return list[random.below(static_cast<std::uint32_t>(list.size()))];
  };
  const std::uint32_t kind = random.below(10);
  FusedStep step = kind < 4 ? pick(kUnary) : kind < 9 ? pick(kBinary) : FusedStep{"Sum", {}, {}};
  const int count = kind < 4 ? 1 : kind < 9 ? 2 : 3;
  for (int k = 0; k < count; ++k) step.operands.push_back(any());
  return step;
}

bool takes_only_whole_tensors(const std::string& op) { return op.ends_with("Grad") || op == "Sum"; }

/// The same program with operands and steps stored in types of their own.
FusedChain stored_in_mixed_types(const RandomProgram& from, std::uint64_t seed) {
  RandomStream random(seed, 2);
  FusedProgram program = from.program;
  const auto any = [&] {
    static const DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
    return kTypes[random.below(3)];
  };
  FusedChain out;
  for (const HostTensor& input : from.inputs) out.inputs.push_back({any(), input.shape()});
  for (FusedStep& step : program.steps) step.stored = any();
  // From one type to another, and a type that is written wide.
  program.steps.push_back({"Cast", {static_cast<int>(from.inputs.size())}, {}, any()});
  program.results.push_back(static_cast<int>(program.steps.size()) - 1);
  out.node.op = find_op("Fused");
  out.node.attributes = fused_attributes(program);
  out.outputs = infer_op("Fused", out.node.attributes, out.inputs);
  return out;
}

/// Channels-last feature maps, with a value per channel and one per position.
FusedChain chain_with_channels_last(std::int64_t channels) {
  FusedChain out;
  out.node.op = find_op("Fused");
  out.node.attributes = {
      {"program", std::string("Mul 0 1 as=bfloat16; Add 4 2 as=bfloat16; Add 5 3 as=bfloat16; "
                              "Relu 6 as=bfloat16")},
      {"results", Ints{3}}};
  out.inputs = {{DType::kBFloat16, {2, channels, 3, 5}, Layout::kChannelsLast},
                {DType::kFloat32, {channels, 1, 1}},
                {DType::kFloat32, {1, channels, 1, 1}},
                {DType::kFloat32, {3, 5}}};
  out.outputs = infer_op("Fused", out.node.attributes, out.inputs);
  return out;
}

void expect_bits(const std::vector<HostTensor>& actual, const std::vector<HostTensor>& expected,
                 const char* what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t k = 0; k < actual.size(); ++k) expect_same_bits(actual[k], expected[k], what);
}

}  // namespace

RandomProgram random_program(std::uint64_t seed, const Shape& shape) {
  RandomStream random(seed, 1);
  RandomProgram out;
  const TensorType whole{DType::kFloat32, shape};
  const std::int64_t last = shape[shape.rank() - 1];
  out.inputs = {random_tensor(whole, seed, -2, 2), random_tensor(whole, seed + 1, -2, 2),
                random_tensor({DType::kFloat32, Shape{}}, seed + 2),
                random_tensor({DType::kFloat32, Shape{last}}, seed + 3)};
  if (shape.rank() == 3)
    out.inputs.push_back(random_tensor({DType::kFloat32, Shape{shape[1], 1}}, seed + 4));
  const int inputs = static_cast<int>(out.inputs.size());
  for (int k = 0; k < 8; ++k) {
    FusedStep step = step_of(random, inputs + k);
    for (std::size_t o = 0; o < step.operands.size(); ++o) {
      const bool small = step.operands[o] >= 2 && step.operands[o] < inputs;
      if (small && (o == 0 || takes_only_whole_tensors(step.op)))
        step.operands[o] = k ? inputs + k - 1 : 0;
    }
    out.program.steps.push_back(step);
  }
  out.program.results = {7};
  if (seed % 2) out.program.results.push_back(3);
  return out;
}

std::vector<FusedChain> random_chains(int programs) {
  std::vector<FusedChain> out;
  for (const Shape& shape :
       {Shape{3, 7}, Shape{4, 33}, Shape{5, 640}, Shape{2, 5, 61}, Shape{3, 6, 16}}) {
    for (int seed = 0; seed < programs; ++seed) {
      const RandomProgram program = random_program(static_cast<std::uint64_t>(seed) + 100, shape);
      FusedChain chain;
      chain.node.op = find_op("Fused");
      chain.node.attributes = fused_attributes(program.program);
      for (const HostTensor& input : program.inputs) chain.inputs.push_back(input.type());
      chain.outputs = infer_op("Fused", chain.node.attributes, chain.inputs);
      out.push_back(std::move(chain));
      out.push_back(stored_in_mixed_types(program, static_cast<std::uint64_t>(seed)));
    }
  }
  for (const std::int64_t channels : {5, 16}) out.push_back(chain_with_channels_last(channels));
  return out;
}

std::vector<FusedChain> fused_chains(const Graph& graph) {
  std::vector<FusedChain> out;
  for (const Node& node : graph.nodes) {
    if (node.op->name == "Fused")
      out.push_back({node, graph.input_types(node), graph.output_types(node)});
  }
  return out;
}

int check_fused_chains(const std::vector<FusedChain>& chains) {
  std::vector<std::vector<HostTensor>> inputs, expected;
  note_generated_kernels();
  for (const FusedChain& chain : chains) {
    SCOPED_TRACE(chain.node.attributes.text("program", ""));
    std::vector<HostTensor> operands;
    for (const TensorType& type : chain.inputs) operands.push_back(operand(type, operands.size()));
    const RunContext context = context_of(chain);
    const KernelRequest request{chain.node, chain.inputs, chain.outputs};
    expected.push_back(run_alone(chain, operands, context));
    for (const Place place : {Place::kApart, Place::kOverInputs})
      expect_bits(run(request, operands, context, place), expected.back(), "steps as one kernel");
    inputs.push_back(std::move(operands));
  }
  // A GPU has compiled them itself.
  const int kernels =
      device_under_test() ? static_cast<int>(chains.size()) : compile_generated_kernels();
  for (std::size_t c = 0; c < chains.size(); ++c) {
    SCOPED_TRACE(chains[c].node.attributes.text("program", ""));
    const KernelRequest request{chains[c].node, chains[c].inputs, chains[c].outputs};
    for (const Place place : {Place::kApart, Place::kOverInputs, Place::kShifted})
      expect_bits(run(request, inputs[c], context_of(chains[c]), place), expected[c],
                  "the generated kernel");
  }
  forget_generated_kernels();
  if (const char* log = std::getenv("PIPETRAIN_EMULATED_LOG"))
    std::ofstream(log, std::ios::app) << "Fused\n";
  return kernels;
}

}  // namespace pipetrain::test
