#include "ops/fused.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "graph/op.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

RunContext context_of(std::int64_t samples) {
  RunContext context;
  context.seed = 5;
  context.step = 3;
  context.first_sample = 7;
  context.samples = samples;
  return context;
}

struct Program {
  FusedProgram program;
  std::vector<HostTensor> inputs;
};

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

/// Operands: two tensors of the shape, one number, one row, one number a channel; then the steps.
Program random_program(std::uint64_t seed, const Shape& shape) {
  RandomStream random(seed, 1);
  Program out;
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

/// Every step by the kernel that its operator has alone.
std::vector<HostTensor> run_steps(const Program& program, Backend backend,
                                  const RunContext& context) {
  std::vector<HostTensor> values = program.inputs;
  for (const FusedStep& step : program.program.steps) {
    std::vector<HostTensor> operands;
    for (const int operand : step.operands)
      operands.push_back(values[static_cast<std::size_t>(operand)]);
    values.push_back(run_op(step.op, step.attributes, operands, backend, context)[0]);
  }
  std::vector<HostTensor> out;
  for (const int result : program.program.results)
    out.push_back(values[program.inputs.size() + static_cast<std::size_t>(result)]);
  return out;
}

TEST(Fused, GivesTheBitsOfItsStepsAlone) {
  for (const Shape& shape : {Shape{3, 7}, Shape{4, 33}, Shape{2, 5, 611}, Shape{3, 40, 701}}) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      const Program program = random_program(seed, shape);
      const Attributes attributes = fused_attributes(program.program);
      const RunContext context = context_of(shape[0]);
      SCOPED_TRACE(program.program.text());
      for (const Backend backend : {Backend::kCpu, Backend::kReference}) {
        if (backend == Backend::kReference && seed > 4) continue;
        const auto fused = run_op("Fused", attributes, program.inputs, backend, context);
        const auto alone = run_steps(program, backend, context);
        ASSERT_EQ(fused.size(), alone.size());
        for (std::size_t k = 0; k < fused.size(); ++k) expect_same_bits(fused[k], alone[k]);
      }
      if (HasFailure()) return;
    }
  }
}

TEST(Fused, WritesOverAnInput) {
  const Shape shape{5, 1000};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Program program = random_program(seed, shape);
    const auto alone = run_steps(program, Backend::kCpu, context_of(5));
    for (const std::size_t over : {0, 1}) {
      Node node;
      node.op = find_op("Fused");
      node.attributes = fused_attributes(program.program);
      KernelRequest request{node, {}, {}};
      std::vector<HostTensor> inputs;
      std::vector<Tensor> in, out;
      for (const HostTensor& input : program.inputs) {
        inputs.push_back(as_float(input, DType::kFloat32));
        inputs.back() =
            floats(input.shape(), {input.span<float>().begin(), input.span<float>().end()});
        request.inputs.push_back(input.type());
        in.push_back(inputs.back().view());
      }
      std::vector<HostTensor> results;
      for (const HostTensor& result : alone) {
        request.outputs.push_back(result.type());
        results.emplace_back(result.type());
        out.push_back(results.back().view());
      }
      out[0].data = in[over].data;
      make_kernel(Backend::kCpu, request)->run(in, out, context_of(5));
      expect_same_bits(inputs[over], alone[0], program.program.text());
    }
  }
}

TEST(Fused, ProgramsReadAsTheyAreWritten) {
  FusedProgram program;
  program.steps = {{"Clip", {0}, {{"min", 0.0}, {"max", 1e30}}},
                   {"Gelu", {2}, {{"approximate", "tanh"}}},
                   {"LeakyRelu", {3}, {{"alpha", 0.1}}},
                   {"Dropout", {4}, {{"ratio", 0.5}, {"key", std::int64_t{3}}}},
                   {"Sum", {0, 1, 5}, {}}};
  program.results = {4, 1};
  EXPECT_EQ(program.text(),
            "Clip 0 min=0.0 max=1e+30; Gelu 2 approximate=tanh; LeakyRelu 3 "
            "alpha=0.10000000000000001; Dropout 4 ratio=0.5 key=3; Sum 0 1 5");
  const FusedProgram read = fused_program(fused_attributes(program), 2);
  EXPECT_EQ(read.text(), program.text());
  EXPECT_EQ(read.results, program.results);
  EXPECT_EQ(read.steps[0].attributes.real("min"), 0.0);
  EXPECT_EQ(read.steps[3].attributes.integer("key"), 3);
  const auto refused = [](const char* text, Ints results, std::string_view why) {
    expect_error(ErrorKind::kModel, why, [&] {
      fused_program({{"program", std::string(text)}, {"results", results}}, 2);
    });
  };
  refused("Add 0 2", {0}, "no operand 2");
  refused("MatMul 0 1", {0}, "no fused step");
  refused("Add 0 1", {1}, "no result 1");
  refused("Add 0 1", {}, "no result");
}

}  // namespace
}  // namespace pipetrain::test
