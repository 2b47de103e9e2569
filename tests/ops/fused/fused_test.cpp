#include "ops/fused/fused.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/random.h"
#include "graph/op.h"
#include "ops/fused/fused_source.h"
#include "support/fused_chains.h"
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

using Program = RandomProgram;

/// Every step by the kernel of its operator.
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

TEST(Fused, OverBFloat16GivesTheBitsOfItsStepsAlone) {
  const auto check = [](Program program) {
    for (HostTensor& input : program.inputs) input = as_float(input, DType::kBFloat16);
    SCOPED_TRACE(program.program.text());
    const RunContext context = context_of(3);
    const auto fused =
        run_op("Fused", fused_attributes(program.program), program.inputs, Backend::kCpu, context);
    const auto alone = run_steps(program, Backend::kCpu, context);
    ASSERT_EQ(fused.size(), alone.size());
    for (std::size_t k = 0; k < fused.size(); ++k) expect_same_bits(fused[k], alone[k]);
  };
  const Shape shape{3, 40, 701};
  Program residual;
  for (std::uint64_t seed = 0; seed < 3; ++seed)
    residual.inputs.push_back(random_tensor({DType::kFloat32, shape}, seed, -2, 2));
  residual.inputs[0].span<float>()[5] = NAN;
  residual.program.steps = {{"Add", {0, 1}, {}},        {"Relu", {3}, {}},    {"Sum", {0, 2}, {}},
                            {"ReluGrad", {5, 4}, {}},   {"Sigmoid", {3}, {}}, {"Mul", {7, 2}, {}},
                            {"SigmoidGrad", {8, 7}, {}}};
  residual.program.results = {1, 3, 6};
  check(residual);
  for (std::uint64_t seed = 0; seed < 40; ++seed) check(random_program(seed, shape));
}

/// A program of comparisons, logic, choices, casts and arithmetic over float32, bool and int64.
Program random_masks(std::uint64_t seed, const Shape& shape) {
  using enum DType;
  RandomStream random(seed, 4);
  const auto below = [&](std::size_t n) { return random.below(static_cast<std::uint32_t>(n)); };
  const Shape row(std::vector<std::int64_t>{shape[shape.rank() - 1]});
  const Shape column(std::vector<std::int64_t>{shape[shape.rank() - 2], 1});
  Program out;
  std::map<DType, std::vector<int>> whole, any;  // operands by type
  for (const DType type : {kFloat32, kBool, kInt64}) {
    for (const Shape& of : {shape, shape, row, column, Shape{}}) {
      const int number = static_cast<int>(out.inputs.size());
      out.inputs.push_back(random_tensor({type, of}, seed * 20 + number, type == kBool ? 0 : -3,
                                         type == kBool ? 2 : 3));
      if (of == shape) whole[type].push_back(number);
      any[type].push_back(number);
    }
  }
  out.inputs[0].span<float>()[1] = NAN;
  out.inputs[1].span<float>()[2] = -INFINITY;
  const auto pick = [&](std::map<DType, std::vector<int>>& from, DType type) {
    return from[type][below(from[type].size())];
  };
  const auto add = [&](const char* op, std::vector<int> operands, DType to,
                       Attributes attributes = {}) {
    const int number = static_cast<int>(out.inputs.size() + out.program.steps.size());
    out.program.steps.push_back({op, std::move(operands), std::move(attributes), to});
    whole[to].push_back(number);
    any[to].push_back(number);
  };
  for (int k = 0; k < 8; ++k) {
    static const char* const kComparisons[] = {"Equal", "Greater", "GreaterOrEqual", "Less",
                                               "LessOrEqual"};
    static const char* const kLogic[] = {"And", "Or", "Xor", "Equal"};
    static const DType kTypes[] = {kFloat32, kBool, kInt64};
    const DType number = below(2) ? kFloat32 : kInt64;
    switch (below(8)) {
      case 0:
        add(kComparisons[below(5)], {pick(any, number), pick(whole, number)}, kBool);
        break;
      case 1:
        add(kLogic[below(4)], {pick(whole, kBool), pick(any, kBool)}, kBool);
        break;
      case 2:
        add("Not", {pick(whole, kBool)}, kBool);
        break;
      case 3:
        add("IsNaN", {pick(whole, kFloat32)}, kBool);
        break;
      case 4: {
        const std::size_t from = below(3), to = (from + 1 + below(2)) % 3;
        // NaN and values out of range have no defined integer.
        const int operand = kTypes[from] == kFloat32 ? 2 : pick(whole, kTypes[from]);
        if (operand == 2) break;
        add("Cast", {operand}, kTypes[to], {{"to", static_cast<std::int64_t>(kTypes[to])}});
        break;
      }
      case 5:
        add("Cast", {pick(whole, kFloat32)}, kBool, {{"to", static_cast<std::int64_t>(kBool)}});
        break;
      case 6:
        add("Where", {pick(whole, kBool), pick(any, number), pick(any, number)}, number);
        break;
      default:
        add(below(2) ? "Mul" : "Sub", {pick(whole, kFloat32), pick(any, kFloat32)}, kFloat32);
    }
  }
  // Two results of different types where there are two.
  const int last = static_cast<int>(out.program.steps.size()) - 1;
  out.program.results = {last};
  for (int k = 0; k < last && out.program.results.size() < 2; ++k) {
    if (out.program.steps[static_cast<std::size_t>(k)].stored !=
        out.program.steps[static_cast<std::size_t>(last)].stored)
      out.program.results.push_back(k);
  }
  return out;
}

TEST(Fused, MasksHaveTheBitsOfTheirStepsAlone) {
  for (const Shape& shape : {Shape{3, 7}, Shape{2, 5, 611}, Shape{3, 40, 701}}) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      const Program program = random_masks(seed, shape);
      const RunContext context = context_of(shape[0]);
      SCOPED_TRACE(program.program.text());
      for (const Backend backend : {Backend::kCpu, Backend::kReference}) {
        if (backend == Backend::kReference && seed > 4) continue;
        const auto fused =
            run_op("Fused", fused_attributes(program.program), program.inputs, backend, context);
        const auto alone = run_steps(program, backend, context);
        ASSERT_EQ(fused.size(), alone.size());
        for (std::size_t k = 0; k < fused.size(); ++k) {
          EXPECT_EQ(fused[k].type(), alone[k].type());
          expect_same_bits(fused[k], alone[k]);
        }
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

TEST(Fused, KernelsOfGpusGiveTheBitsOfTheStepsAlone) {
  EXPECT_GT(check_fused_chains(random_chains(/*programs=*/6)), 50);
}

TEST(Fused, SourcesAreForAnyBatch) {
  FusedProgram program;
  program.steps = {{"Add", {0, 1}, {}}, {"Gelu", {2}, {{"approximate", "tanh"}}}};
  program.results = {1};
  const auto source = [&](std::int64_t batch) {
    const TensorType whole{DType::kFloat32, Shape{batch, 3, 8}};
    return fused_source(program, {whole, {DType::kFloat32, Shape{3, 1}}}, {whole});
  };
  EXPECT_EQ(source(4).text, source(7).text);
  EXPECT_TRUE(source(4).wide);
  EXPECT_NE(source(4).text.find("v3 = GeluTanh<float, DeviceMath>{}(v2);"), std::string::npos)
      << source(4).text;
  EXPECT_NE(source(4).text.find("v1 = x1[i / 8 % 3];"), std::string::npos) << source(4).text;
  program.steps[0].op = "MatMul";
  EXPECT_EQ(source(4).text, "");
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
  program.steps[1].stored = DType::kBFloat16;
  EXPECT_NE(program.text().find("Gelu 2 approximate=tanh as=bfloat16; "), std::string::npos);
  EXPECT_EQ(fused_program(fused_attributes(program), 2).text(), program.text());
  const auto refused = [](const char* text, Ints results, std::string_view why) {
    expect_error(ErrorKind::kModel, why, [&] {
      fused_program({{"program", std::string(text)}, {"results", results}}, 2);
    });
  };
  refused("Add 0 2", {0}, "no operand 2");
  refused("MatMul 0 1", {0}, "is not a fused step");
  refused("Add 0 1", {1}, "no result 1");
  refused("Add 0 1", {}, "no result");
  refused("Add 0 1 as=int32", {0}, "cannot be stored as");
}

}  // namespace
}  // namespace pipetrain::test
