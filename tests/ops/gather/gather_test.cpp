#include <gtest/gtest.h>
#include <omp.h>

#include "graph/op.h"
#include "ops/kernel/adding_kernel.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

Attributes axis(std::int64_t value) { return {{"axis", value}}; }

InputSpec indices(Shape shape, std::vector<double> values, DType dtype = DType::kInt64) {
  InputSpec spec{std::move(shape)};
  spec.dtype = dtype;
  spec.values = std::move(values);
  return spec;
}

Attributes with_shape(Attributes attributes, Ints shape) {
  attributes.set("shape", std::move(shape));
  return attributes;
}

TEST(Gather, RowsColumnsAndNegativeIndices) {
  const HostTensor table = floats({3, 2}, {1, 2, 3, 4, 5, 6});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    expect_values(run_op("Gather", axis(0), {table, int64s({2, 2}, {2, 0, -1, 1})}, backend)[0],
                  {2, 2, 2}, {5, 6, 1, 2, 5, 6, 3, 4});
    expect_values(run_op("Gather", axis(1), {table, int32s({3}, {1, -2, 1})}, backend)[0], {3, 3},
                  {2, 1, 2, 4, 3, 4, 6, 5, 6});
    expect_values(run_op("Gather", axis(-2), {table, int64s({}, {1})}, backend)[0], {2}, {3, 4});
    expect_values(
        run_op("Gather", axis(0), {int64s({3}, {7, 8, 9}), int64s({2}, {2, 0})}, backend)[0], {2},
        {9, 7});
    expect_values(run_op("Gather", axis(0), {bools({2}, {1, 0}), int64s({1}, {0})}, backend)[0],
                  {1}, {1});
  }
}

TEST(Gather, GradientAddsRepeatedIndices) {
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const auto dx =
        run_op("GatherGrad", with_shape(axis(0), {3, 2}),
               {floats({3, 2}, {1, 2, 10, 20, 100, 200}), int64s({3}, {2, -1, 0})}, backend);
    expect_values(dx[0], {3, 2}, {100, 200, 0, 0, 11, 22});
  }
}

TEST(Gather, GradientAddsInTheOrderOfTheIndices) {
  // In float, 1 + 1e8 - 1e8 is 0, and 1 if it is added the other way round.
  for (const std::int64_t rows : {2, 100}) {
    for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
      const auto dx = run_op("GatherGrad", with_shape(axis(0), {rows, 1}),
                             {floats({3, 1}, {1, 1e8, -1e8}), int64s({3}, {1, 1, 1})}, backend);
      EXPECT_EQ(dx[0].view().as<float>()[1], 0);
    }
  }
}

TEST(Gather, Gradients) {
  check_gradients("Gather", axis(0), {{{4, 3}}, indices({2, 3}, {0, 3, -1, 1, 0, 0})});
  check_gradients("Gather", axis(1), {{{2, 4, 3}}, indices({3}, {3, 3, 0}, DType::kInt32)});
  check_gradients("Gather", axis(-1), {{{2, 4}}, indices({}, {2})});
}

TEST(Gather, CpuAgreesWithReference) {
  std::vector<double> tokens;
  for (int i = 0; i < 600; ++i) tokens.push_back(i * 31 % 50 - (i % 3 == 0 ? 50 : 0));
  const InputSpec many = indices({4, 150}, tokens);
  check_cpu("Gather", axis(0), {{{50, 70}}, many}, 0);
  check_cpu("Gather", axis(1), {{{3, 50, 20}}, many}, 0);
  check_cpu("GatherGrad", with_shape(axis(0), {50, 70}), {{{4, 150, 70}}, many}, 1e-6);
  check_cpu("GatherGrad", with_shape(axis(1), {3, 50, 20}), {{{3, 4, 150, 20}}, many}, 1e-6);
  check_cpu("GatherGrad", with_shape(axis(0), {50}), {{{4, 150}}, many}, 1e-6);
}

// Sums over micro-batches of two sizes, step by step, as a stage makes them: compared with the
// whole gradient of each micro-batch, added to the sum.
TEST(Gather, GradientsAreAddedByRowsWithTheSameBits) {
  constexpr std::int64_t kRows = 40, kWidth = 300;
  const TensorType table{DType::kFloat32, {kRows, kWidth}};
  Node node;
  node.op = find_op("GatherGrad");
  node.attributes = with_shape(axis(0), {kRows, kWidth});
  TouchedRows touched(kRows);
  std::vector<std::unique_ptr<Kernel>> kernels;
  std::vector<std::vector<TensorType>> types;
  for (const std::int64_t count : {12, 5}) {
    types.push_back({{DType::kFloat32, {count, kWidth}}, {DType::kInt64, Shape{count}}});
    kernels.push_back(make_kernel(Backend::kCpu, {node, types.back(), {table}}));
    auto* adding = dynamic_cast<RowAddingKernel*>(kernels.back().get());
    ASSERT_NE(adding, nullptr);
    EXPECT_EQ(adding->rows(), kRows);
    adding->share(touched);
  }
  // Previous content must not matter, if it is known to be there.
  touched.set_all();
  HostTensor sum = random_tensor(table, 9);
  std::uint64_t seed = 10;
  for (int step = 0; step < 4; ++step) {
    if (step == 2) {  // like another replica's sum
      for (float& one : sum.span<float>()) one = 7;
      touched.set_all();
    }
    HostTensor expected(table);
    for (const std::size_t size : {0, 1, 0}) {
      const bool first = size == 0 && seed % 3 == 1;
      const HostTensor dy = random_tensor(types[size][0], ++seed);
      HostTensor rows(types[size][1]);
      HostTensor whole(table);
      const auto count = rows.type().count();
      for (std::int64_t i = 0; i < count; ++i) {
        // Some indices repeat, some count from the end, some differ in every step.
        const std::int64_t row = (i * i + static_cast<std::int64_t>(seed)) % 13 + step;
        rows.span<std::int64_t>()[static_cast<std::size_t>(i)] = i % 2 ? row : row - kRows;
        for (std::int64_t c = 0; c < kWidth; ++c)
          whole.view().as<float>()[row * kWidth + c] += dy.view().as<float>()[i * kWidth + c];
      }
      for (std::size_t e = 0; e < static_cast<std::size_t>(kRows * kWidth); ++e) {
        float& to = expected.span<float>()[e];
        to = first ? whole.span<float>()[e] : to + whole.span<float>()[e];
      }
      const Buffer workspace(kernels[size]->workspace_bytes());
      RunContext context;
      context.workspace = workspace.data();
      const std::vector<Tensor> in = {dy.view(), rows.view()}, out = {sum.view()};
      if (first) {
        kernels[size]->run(in, out, context);
      } else {
        dynamic_cast<AddingKernel&>(*kernels[size]).run_adding(in, out, context);
      }
      expect_same_bits(sum, expected);
    }
    EXPECT_FALSE(touched.all());
    EXPECT_LE(touched.list().size(), 13U);
  }
}

// An axis padded by its mirror image, and one in any order: neighbours are copied and summed
// together.
TEST(Gather, RunsOfNeighboursInManyRepetitions) {
  const std::vector<std::vector<double>> orders = {{3, 2, 1, 0, 1, 2, 3, 4, 5, 6, 7, 6, 5},
                                                   {5, 5, 2, 7, -8, -1, 6, 7},
                                                   {0, 1, 2, 3, 4, 5, 6, 7}};
  for (const std::vector<double>& order : orders) {
    const auto length = static_cast<std::int64_t>(order.size());
    for (const auto& [outer, inner] :
         {std::pair<std::int64_t, std::int64_t>{9000, 1},
          {6, 40},
          {2, 9000}}) {  // the last one: too long for a repetition's sum
      const InputSpec along = indices({length}, order);
      check_cpu("Gather", axis(1), {{{outer, 8, inner}}, along}, 0);
      const Attributes shaped = with_shape(axis(1), {outer, 8, inner});
      check_cpu("GatherGrad", shaped, {{{outer, length, inner}}, along}, 1e-6);

      Node node;
      node.op = find_op("GatherGrad");
      node.attributes = shaped;
      const HostTensor dy = random_tensor({DType::kFloat32, {outer, length, inner}}, 1);
      const std::vector<std::int64_t> rows(order.begin(), order.end());
      const HostTensor given = HostTensor::of<std::int64_t>({length}, rows);
      HostTensor sum = random_tensor({DType::kFloat32, {outer, 8, inner}}, 2);
      HostTensor expected = run_op("GatherGrad", shaped, {dy, given}, Backend::kCpu)[0];
      for (std::size_t i = 0; i < sum.span<float>().size(); ++i)
        expected.span<float>()[i] = sum.span<float>()[i] + expected.span<float>()[i];
      const auto kernel =
          make_kernel(Backend::kCpu, {node, {dy.type(), given.type()}, {sum.type()}});
      const Buffer workspace(kernel->workspace_bytes());
      RunContext context;
      context.workspace = workspace.data();
      dynamic_cast<AddingKernel&>(*kernel).run_adding(std::vector<Tensor>{dy.view(), given.view()},
                                                      std::vector<Tensor>{sum.view()}, context);
      expect_same_bits(sum, expected);
    }
  }
}

TEST(Gather, NarrowGradientsAreAddedAsTheyAre) {
  for (const DType narrow : {DType::kBFloat16, DType::kFloat16}) {
    HostTensor dy(TensorType{narrow, {4, 300}}), wide(TensorType{DType::kFloat32, {4, 300}});
    const HostTensor exact = random_tensor(wide.type(), 3);
    for (std::size_t i = 0; i < 1200; ++i) {
      const float x = exact.span<float>()[i];
      const bool brain = narrow == DType::kBFloat16;
      const std::uint16_t bits = brain ? float_to_bfloat16(x) : float_to_half(x);
      dy.span<std::uint16_t>()[i] = bits;
      wide.span<float>()[i] = brain ? bfloat16_to_float(bits) : half_to_float(bits);
    }
    Node node;
    node.op = find_op("GatherGrad");
    node.attributes = with_shape(axis(0), {6, 300});
    const HostTensor rows = int64s({4}, {2, 5, 2, -6});
    HostTensor sum(TensorType{DType::kFloat32, {6, 300}});
    const auto kernel = make_kernel(Backend::kCpu, {node, {dy.type(), rows.type()}, {sum.type()}});
    EXPECT_NE(dynamic_cast<RowAddingKernel*>(kernel.get()), nullptr);
    const Buffer workspace(kernel->workspace_bytes());
    RunContext context;
    context.workspace = workspace.data();
    kernel->run(std::vector<Tensor>{dy.view(), rows.view()}, std::vector<Tensor>{sum.view()},
                context);
    HostTensor expected(sum.type());
    const std::int64_t places[] = {2, 5, 2, 0};
    for (std::int64_t i = 0; i < 4; ++i) {
      for (std::int64_t c = 0; c < 300; ++c)
        expected.view().as<float>()[places[i] * 300 + c] += wide.view().as<float>()[i * 300 + c];
    }
    expect_same_bits(sum, expected);
  }
}

TEST(Gather, NarrowGradientsOfManyRepetitions) {
  const HostTensor exact = random_tensor({DType::kFloat32, {700, 5, 40}}, 1);
  HostTensor dy(TensorType{DType::kBFloat16, {700, 5, 40}}), wide(exact.type());
  for (std::size_t i = 0; i < wide.span<float>().size(); ++i) {
    dy.span<std::uint16_t>()[i] = float_to_bfloat16(exact.span<float>()[i]);
    wide.span<float>()[i] = bfloat16_to_float(dy.span<std::uint16_t>()[i]);
  }
  const HostTensor rows = int64s({5}, {1, 0, 1, 2, 3});
  HostTensor sum(TensorType{DType::kFloat32, {700, 4, 40}});
  Node node;
  node.op = find_op("GatherGrad");
  node.attributes = with_shape(axis(1), {700, 4, 40});
  const int before = omp_get_max_threads();
  for (const int threads : {1, 3}) {
    omp_set_num_threads(threads);
    const auto kernel = make_kernel(Backend::kCpu, {node, {dy.type(), rows.type()}, {sum.type()}});
    const Buffer workspace(kernel->workspace_bytes());
    RunContext context;
    context.workspace = workspace.data();
    kernel->run(std::vector<Tensor>{dy.view(), rows.view()}, std::vector<Tensor>{sum.view()},
                context);
    expect_same_bits(sum, run_op("GatherGrad", node.attributes, {wide, rows})[0]);
  }
  omp_set_num_threads(before);
}

TEST(Gather, NamesTheWrongIndex) {
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    expect_error(ErrorKind::kData, "index 3 at position 1 is outside an axis of 3 entries", [&] {
      run_op("Gather", axis(0), {floats({3}, {1, 2, 3}), int64s({2}, {0, 3})}, backend);
    });
    expect_error(ErrorKind::kData, "index -4 at position 0", [&] {
      run_op("Gather", axis(0), {floats({3}, {1, 2, 3}), int64s({2}, {-4, 0})}, backend);
    });
  }
  expect_error(ErrorKind::kModel, "axis 1", [] {
    infer_op("Gather", axis(1), {{DType::kFloat32, Shape{3}}, {DType::kInt64, Shape{2}}});
  });
  expect_error(ErrorKind::kModel, "int32 or int64", [] {
    infer_op("Gather", axis(0), {{DType::kFloat32, Shape{3}}, {DType::kFloat32, Shape{2}}});
  });
}

// The examples of the ONNX specification.
TEST(GatherND, SlicesAndBatches) {
  const HostTensor x = floats({2, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    expect_values(run_op("GatherND", {}, {x, int64s({2, 2}, {0, 1, 1, 0})}, backend)[0], {2, 2},
                  {2, 3, 4, 5});
    expect_values(run_op("GatherND", {}, {x, int64s({1, 3}, {1, -1, 0})}, backend)[0], {1}, {6});
    const Attributes batch = {{"batch_dims", std::int64_t{1}}};
    expect_values(run_op("GatherND", batch, {x, int64s({2, 1}, {1, 0})}, backend)[0], {2, 2},
                  {2, 3, 4, 5});
  }
}

TEST(GatherND, GradientsAndErrors) {
  check_gradients("GatherND", {}, {{{3, 2, 4}}, indices({3, 2}, {0, 1, 2, -1, 0, 1})});
  check_gradients("GatherND", {{"batch_dims", std::int64_t{1}}},
                  {{{2, 3, 2}}, indices({2, 2, 1}, {0, 0, 2, 1})});
  check_cpu("GatherNDGrad", {{"shape", Ints{3, 2, 4}}},
            {{{3, 4}}, indices({3, 2}, {0, 1, 2, -1, 0, 1})}, 1e-6);
  const Attributes batch = {{"batch_dims", std::int64_t{1}}, {"shape", Ints{2, 3, 5}}};
  const InputSpec tuples = indices({2, 4, 1}, {0, 0, 2, -1, 1, -3, 1, 1});
  check_cpu("GatherND", {}, {{{3, 2, 4}}, indices({2, 2}, {0, 1, 2, -2})}, 0);
  check_cpu("GatherND", {}, {{{3, 2, 4}}, indices({2, 3}, {0, 1, 3, -1, -2, 0})}, 0);
  check_cpu("GatherND", batch, {{{2, 3, 5}}, tuples}, 0);
  check_cpu("GatherNDGrad", batch, {{{2, 4, 5}}, tuples}, 1e-6);
  const Attributes pairs = {{"batch_dims", std::int64_t{1}}, {"shape", Ints{2, 3, 4, 5}}};
  const InputSpec of_pairs =
      indices({2, 3, 2}, {0, 1, 2, -1, 0, 1, 1, -4, -3, 3, 1, 0}, DType::kInt32);
  check_cpu("GatherND", pairs, {{{2, 3, 4, 5}}, of_pairs}, 0);
  check_cpu("GatherND", pairs, {{{2, 3, 4, 5}, -9, 9, DType::kInt64}, of_pairs}, 0);
  check_cpu("GatherNDGrad", pairs, {{{2, 3, 5}}, of_pairs}, 1e-6);
  expect_error(ErrorKind::kModel, "do not fit", [] {
    infer_op("GatherND", {}, {{DType::kFloat32, Shape{3}}, {DType::kInt64, Shape{1, 2}}});
  });
}

Attributes reducing(const char* reduction, Attributes attributes = {}) {
  attributes.set("reduction", std::string(reduction));
  return attributes;
}

TEST(GatherElements, AlongEachAxis) {
  const HostTensor x = floats({2, 2}, {1, 2, 3, 4});
  expect_values(run_op("GatherElements", axis(1), {x, int64s({2, 2}, {0, 0, 1, 0})})[0], {2, 2},
                {1, 1, 4, 3});
  expect_values(run_op("GatherElements", axis(0), {x, int64s({1, 2}, {-1, 0})})[0], {1, 2}, {3, 2});
  check_gradients("GatherElements", axis(1),
                  {{{2, 3}}, indices({2, 4}, {0, 0, 2, -1, 1, 1, 1, 0})});
  check_gradients("GatherElements", axis(0), {{{4, 3}}, indices({2, 2}, {0, 3, -1, 1})});
  expect_error(ErrorKind::kModel, "one rank", [] {
    infer_op("GatherElements", axis(0),
             {{DType::kFloat32, Shape{3}}, {DType::kInt64, Shape{1, 2}}});
  });
}

TEST(GatherElements, OnTheCpu) {
  InputSpec at{{20, 7, 30}, -11, 11, DType::kInt64};
  check_cpu("GatherElements", axis(1), {{{20, 11, 30}}, at}, 0);
  check_cpu("GatherElementsGrad", with_shape(axis(1), {20, 11, 30}), {{{20, 7, 30}}, at}, 1e-6);
  // Small enough for the emulator of GPUs.
  const InputSpec middle = indices(
      {2, 6, 2}, {0, 1, 2, 3, -1, -2, -3, -4, 1, 1, 1, 1, 3, 3, 2, 2, 0, 0, -1, -4, 0, 3, 2, 1});
  for (const DType type : {DType::kInt32, DType::kInt64}) {
    InputSpec indices_of = middle;
    indices_of.dtype = type;
    check_cpu("GatherElements", axis(1), {{{3, 4, 5}}, indices_of}, 0);
    check_cpu("GatherElements", axis(1), {{{3, 4, 5}, -9, 9, DType::kInt64}, indices_of}, 0);
    check_cpu("GatherElementsGrad", with_shape(axis(1), {3, 4, 5}), {{{2, 6, 2}}, indices_of},
              1e-6);
    check_cpu("GatherElements", axis(0), {{{4, 7, 3}}, indices_of}, 0);
    check_cpu("GatherElementsGrad", with_shape(axis(0), {4, 7, 3}), {{{2, 6, 2}}, indices_of},
              1e-6);
  }
  const InputSpec fewer = indices({2, 3}, {0, -1, 4, 4, 4, 1});  // than the data have rows
  check_cpu("GatherElements", axis(1), {{{4, 5}}, fewer}, 0);
  check_cpu("GatherElementsGrad", with_shape(axis(1), {4, 5}), {{{2, 3}}, fewer}, 1e-6);
  const InputSpec many{{1, 1100}, -40, 40, DType::kInt64};  // repeated; sorted in two runs
  check_cpu("GatherElements", axis(-1), {{{2, 40}}, many}, 0);
  check_cpu("GatherElementsGrad", with_shape(axis(-1), {2, 40}), {{{1, 1100}}, many}, 1e-5);
  at.dtype = DType::kInt32;
  check_cpu("GatherElements", axis(1), {{{30, 11, 30}, -9, 9, DType::kInt64}, at}, 0);
}

// So many positions that threads share them.
TEST(GatherElements, OfManyPositions) {
  for (const std::int64_t along : {0, 1, 2}) {
    const InputSpec at{{30, 40, 50}, -9, 9, DType::kInt64};
    check_cpu("GatherElements", axis(along), {{{30, 40, 50}}, at}, 0);
    check_cpu("GatherElementsGrad", with_shape(axis(along), {30, 40, 50}), {{{30, 40, 50}}, at},
              1e-5);
    for (const char* reduction : {"none", "add"}) {
      check_cpu("ScatterElements", reducing(reduction, axis(along)),
                {{{30, 40, 50}}, at, {{30, 40, 50}}}, 1e-5);
    }
  }
  // More columns than a task has.
  const InputSpec wide{{60, 1100}, -9, 9, DType::kInt32};
  check_cpu("GatherElementsGrad", with_shape(axis(0), {60, 1100}), {{{60, 1100}}, wide}, 1e-5);
  const InputSpec rows{{400, 1}, -9, 9, DType::kInt64};
  for (const char* reduction : {"none", "add"})
    check_cpu("ScatterND", reducing(reduction), {{{9, 150}}, rows, {{400, 150}}}, 1e-5);
  std::vector<std::int64_t> indices(100'000);
  indices[70'000] = indices[90'000] = 5;
  expect_error(ErrorKind::kData, "index 5 at position 70000", [&] {
    run_op("GatherElements", axis(1), {floats({1, 3}, {1, 2, 3}), int64s({1, 100'000}, indices)},
           Backend::kCpu);
  });
}

TEST(ScatterElements, WritesAndAdds) {
  const HostTensor x = floats({1, 5}, {1, 2, 3, 4, 5});
  const HostTensor at = int64s({1, 2}, {1, -2});
  const HostTensor updates = floats({1, 2}, {10, 20});
  expect_values(run_op("ScatterElements", axis(1), {x, at, updates})[0], {1, 5}, {1, 10, 3, 20, 5});
  const Imported adding = import_node(
      "ScatterElements", 16, {{"axis", std::int64_t{1}}, {"reduction", std::string("add")}},
      {data(x), data(at), data(updates)});
  expect_values(adding.run()[0], {1, 5}, {1, 12, 3, 24, 5});
  const auto reduced = [&](const char* reduction) {
    return run_op("ScatterElements",
                  {{"axis", std::int64_t{1}}, {"reduction", std::string(reduction)}},
                  {x, int64s({1, 3}, {1, 1, 3}), floats({1, 3}, {10, -1, 3})})[0];
  };
  expect_values(reduced("mul"), {1, 5}, {1, -20, 3, 12, 5});
  expect_values(reduced("max"), {1, 5}, {1, 10, 3, 4, 5});
  expect_values(reduced("min"), {1, 5}, {1, -1, 3, 3, 5});
}

TEST(ScatterElements, Gradients) {
  const InputSpec once = indices({2, 2}, {0, 3, -1, 1});
  for (const char* reduction : {"none", "add"}) {
    check_gradients("ScatterElements", reducing(reduction, axis(1)), {{{2, 4}}, once, {{2, 2}}});
    check_gradients("ScatterElements", reducing(reduction, axis(0)),
                    {{{5, 2, 3}}, indices({1, 2, 3}, {0, 1, -1, 4, 2, 2}), {{1, 2, 3}}});
  }
  check_gradients("ScatterElements", reducing("add", axis(0)),
                  {{{3}}, indices({4}, {1, 1, 0, -2}), {{4}}});
  expect_error(ErrorKind::kModel, "\"mul\" has no gradient", [&] {
    check_gradients("ScatterElements", reducing("mul", axis(1)), {{{2, 4}}, once, {{2, 2}}});
  });
}

TEST(ScatterElements, NothingToWrite) {
  const HostTensor x = floats({2, 1}, {1, 2});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    expect_values(
        run_op("ScatterElements", axis(0), {x, int64s({0, 1}, {}), floats({0, 1}, {})}, backend)[0],
        {2, 1}, {1, 2});
    expect_values(run_op("ScatterND", {}, {x, int64s({0, 1}, {}), floats({0, 1}, {})}, backend)[0],
                  {2, 1}, {1, 2});
    EXPECT_EQ(run_op("GatherElements", axis(0), {x, int64s({0, 1}, {})}, backend)[0].shape().text(),
              "(0, 1)");
  }
}

TEST(ScatterElements, OnTheCpu) {
  const InputSpec at{{20, 7, 30}, -11, 11, DType::kInt64};
  const InputSpec tuples{{50, 2}, -5, 5, DType::kInt64};
  for (const char* reduction : {"none", "add", "max"}) {
    check_cpu("ScatterElements", reducing(reduction, axis(1)), {{{20, 11, 30}}, at, {{20, 7, 30}}},
              1e-6);
    check_cpu("ScatterND", reducing(reduction), {{{5, 6, 9}}, tuples, {{50, 9}}}, 1e-6);
  }
}

// The examples of the ONNX specification, and the reductions.
TEST(ScatterND, WritesReducesAndDifferentiates) {
  const HostTensor x = floats({8}, {1, 2, 3, 4, 5, 6, 7, 8});
  const HostTensor at = int64s({4, 1}, {4, 3, 1, 7});
  const HostTensor updates = floats({4}, {9, 10, 11, 12});
  expect_values(run_op("ScatterND", {}, {x, at, updates})[0], {8}, {1, 11, 3, 10, 9, 6, 7, 12});
  const auto twice = [&](const char* reduction) {
    return run_op(
        "ScatterND", reducing(reduction),
        {floats({2, 2}, {1, 2, 3, 4}), int64s({2, 1}, {-1, 1}), floats({2, 2}, {5, 1, 2, 7})})[0];
  };
  expect_values(twice("add"), {2, 2}, {1, 2, 10, 12});
  expect_values(twice("mul"), {2, 2}, {1, 2, 30, 28});
  expect_values(twice("max"), {2, 2}, {1, 2, 5, 7});
  expect_values(twice("min"), {2, 2}, {1, 2, 2, 1});
  expect_values(
      run_op("ScatterND", {}, {int32s({3}, {1, 2, 3}), int64s({1, 1}, {0}), int32s({1}, {9})})[0],
      {3}, {9, 2, 3});
  for (const char* reduction : {"none", "add"}) {
    check_gradients("ScatterND", reducing(reduction),
                    {{{4, 3}}, indices({2, 1}, {-1, 1}), {{2, 3}}});
    check_gradients("ScatterND", reducing(reduction),
                    {{{2, 3, 2}}, indices({2, 1, 2}, {0, 1, 1, -1}), {{2, 1, 2}}});
  }
  expect_error(ErrorKind::kData, "outside an axis", [&] {
    run_op("ScatterND", {}, {x, int64s({1, 1}, {8}), floats({1}, {0})});
  });
}

TEST(GatherImport, FoldsConstants) {
  const Imported imported = import_node(
      "Gather", 13, {}, {constant(int64s({4}, {2, 3, 5, 7})), constant(int64s({}, {2}))});
  EXPECT_TRUE(imported.is_constant());
  expect_values(imported.run()[0], {}, {5});
}

}  // namespace
}  // namespace pipetrain::test
