#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

/// 0, 1, 2, … as float.
HostTensor counting(const Shape& shape) {
  std::vector<float> values(static_cast<std::size_t>(shape.count()));
  std::iota(values.begin(), values.end(), 0.0F);
  return floats(shape, values);
}

Attributes slice(Ints starts, Ints ends, Ints axes, Ints steps) {
  return {{"starts", starts}, {"ends", ends}, {"axes", axes}, {"steps", steps}};
}

// --- Transpose ---

/// By coordinates: out[c[perm[0]], c[perm[1]], …] = in[c].
std::vector<double> transpose_by_definition(const HostTensor& x, const Ints& perm) {
  const Shape& shape = x.shape();
  std::vector<std::int64_t> dims;
  for (const std::int64_t axis : perm) dims.push_back(shape[static_cast<std::size_t>(axis)]);
  const std::vector<std::int64_t> to = Shape(dims).strides();
  const std::vector<std::int64_t> from = shape.strides();
  const std::vector<double> values = x.to_doubles();
  std::vector<double> out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::int64_t at = 0;
    for (std::size_t k = 0; k < perm.size(); ++k) {
      const auto axis = static_cast<std::size_t>(perm[k]);
      at += static_cast<std::int64_t>(i) / from[axis] % shape[axis] * to[k];
    }
    out[static_cast<std::size_t>(at)] = values[i];
  }
  return out;
}

struct TransposeCase {
  Shape shape;
  Ints perm;
};
const std::vector<TransposeCase>& transposes() {
  static const std::vector<TransposeCase> cases = {
      {{3, 5}, {1, 0}},
      {{33, 47}, {1, 0}},
      {{2, 48, 32}, {0, 2, 1}},
      {{2, 3, 4, 5}, {0, 2, 1, 3}},
      {{2, 3, 4, 16}, {0, 2, 1, 3}},
      {{2, 3, 4, 5}, {0, 2, 3, 1}},
      {{2, 3, 4, 5}, {0, 3, 1, 2}},
      {{2, 3, 4, 5}, {3, 2, 1, 0}},
      {{2, 17, 3, 18}, {3, 2, 1, 0}},
      {{2, 17, 3, 18}, {1, 3, 0, 2}},
      {{2, 1, 4, 5}, {0, 2, 1, 3}},
      {{4, 3, 2}, {0, 1, 2}},
      {{0, 3}, {1, 0}},
      {{}, {}},
      {{3, 40, 2, 40}, {2, 0, 3, 1}},
  };
  return cases;
}

TEST(Movement, TransposeMatchesItsDefinition) {
  for (const auto& [shape, perm] : transposes()) {
    const HostTensor x = counting(shape);
    for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
      const HostTensor y = run_op("Transpose", {{"perm", perm}}, {x}, backend)[0];
      SCOPED_TRACE(shape.text());
      expect_values(y, y.shape(), transpose_by_definition(x, perm), 0);
    }
    check_cpu("Transpose", {{"perm", perm}}, {{.shape = shape}}, 0);
    if (shape.count() > 0) check_gradients("Transpose", {{"perm", perm}}, {{.shape = shape}});
  }
  check_cpu("Transpose", {{"perm", Ints{0, 2, 1, 3}}}, {{.shape = {4, 40, 12, 64}}}, 0);
  check_cpu("Transpose", {{"perm", Ints{0, 2, 3, 1}}}, {{.shape = {4, 40, 24, 64}}}, 0);
}

TEST(Movement, EveryElementSize) {
  for (const DType dtype : {DType::kBool, DType::kInt8, DType::kBFloat16, DType::kInt32,
                            DType::kInt64, DType::kFloat64}) {
    const HostTensor x = random_tensor({dtype, {17, 3, 18}}, 3, 0, dtype == DType::kBool ? 2 : 100);
    for (const Ints& perm : {Ints{2, 1, 0}, Ints{1, 0, 2}}) {
      expect_same_bits(run_op("Transpose", {{"perm", perm}}, {x}, Backend::kCpu)[0],
                       run_op("Transpose", {{"perm", perm}}, {x})[0]);
    }
    const Attributes padding{{"pads", Ints{1, 0, 2, 0, 1, 0}}, {"value", 1.0}};
    expect_same_bits(run_op("Pad", padding, {x}, Backend::kCpu)[0], run_op("Pad", padding, {x})[0]);
  }
}

// --- Slice, Split, Concat ---

TEST(Movement, Slice) {
  const HostTensor x = counting({3, 4});
  expect_values(run_op("Slice", slice({1}, {3}, {1}, {1}), {x})[0], {3, 2}, {1, 2, 5, 6, 9, 10});
  expect_values(run_op("Slice", slice({0, 3}, {3, -1}, {0, 1}, {2, -2}), {x})[0], {2, 2},
                {3, 1, 11, 9});
  expect_values(run_op("Slice", slice({2}, {2}, {0}, {1}), {x})[0], {0, 4}, {});
  for (const Attributes& attributes :
       {slice({1}, {3}, {1}, {1}), slice({1, 2}, {3, -1}, {0, 1}, {1, -1}),
        slice({0}, {4}, {1}, {3}), slice({1, 1}, {2, 4}, {0, 1}, {1, 2})}) {
    check_gradients("Slice", attributes, {{.shape = {3, 4}}});
    check_gradients("Slice", attributes, {{.shape = {3, 4, 5}}});
    check_cpu("Slice", attributes, {{.shape = {3, 4}}}, 0);
    check_cpu("Slice", attributes, {{.shape = {3, 4, 5}}}, 0);
    Attributes back = attributes;
    back.set("shape", Ints{3, 4, 5});
    const Shape part = infer_op("Slice", attributes, {{DType::kFloat32, {3, 4, 5}}})[0].shape;
    check_cpu("SliceGrad", back, {{.shape = part}}, 0);
    check_gradients("SliceGrad", back, {{.shape = part}});
  }
  check_cpu("Slice", slice({8}, {72}, {2}, {1}), {{.shape = {30, 40, 80}}}, 0);
  expect_error(ErrorKind::kModel, "out of range", [] {
    infer_op("Slice", slice({1}, {5}, {1}, {1}), {{DType::kFloat32, {3, 4}}});
  });
  expect_error(ErrorKind::kModel, "step 0", [] {
    infer_op("Slice", slice({1}, {2}, {1}, {0}), {{DType::kFloat32, {3, 4}}});
  });
}

TEST(Movement, SplitAndConcat) {
  const HostTensor x = counting({2, 5});
  const Attributes parts{{"axis", std::int64_t{1}}, {"sizes", Ints{2, 3}}};
  const auto split = run_op("Split", parts, {x});
  expect_values(split[0], {2, 2}, {0, 1, 5, 6});
  expect_values(split[1], {2, 3}, {2, 3, 4, 7, 8, 9});
  expect_same_bits(run_op("Concat", {{"axis", std::int64_t{1}}}, split)[0], x);
  for (const std::int64_t axis : {0, 1, 2}) {
    const Attributes thirds{{"axis", axis}, {"sizes", Ints{1, 2, 3}}};
    check_cpu("Split", thirds, {{.shape = {6, 6, 6}}}, 0);
    check_gradients("Split", thirds, {{.shape = {6, 6, 6}}}, {.outputs = {0, 1, 2}});
    check_gradients("Split", thirds, {{.shape = {6, 6, 6}}},
                    {.outputs = {0, 2}});  // one output is unused
    check_gradients("Split", thirds, {{.shape = {6, 6, 6}}}, {.outputs = {1}});
    Shape small{6, 6, 6};
    small[static_cast<std::size_t>(axis)] = 2;
    check_cpu("Concat", {{"axis", axis}},
              {{.shape = {6, 6, 6}}, {.shape = small}, {.shape = small}}, 0);
    check_gradients("Concat", {{"axis", axis}},
                    {{.shape = {6, 6, 6}}, {.shape = small}, {.shape = small}});
  }
  expect_error(ErrorKind::kModel, "cannot split", [&] {
    infer_op("Split", parts, {{DType::kFloat32, {2, 6}}});
  });
  expect_error(ErrorKind::kModel, "cannot join", [&] {
    infer_op("Concat", {{"axis", std::int64_t{0}}},
             {{DType::kFloat32, {2, 6}}, {DType::kFloat32, {2, 5}}});
  });
}

TEST(Movement, ConcatOfBlockedChannels) {
  // Channels 0-7 hold 1, channels 8-23 hold 2 and 3, in blocks of 8 channels.
  const auto filled = [](std::int64_t channels, float first) {
    HostTensor x(TensorType{DType::kFloat32, {2, channels, 2, 2}, Layout::kBlocked8});
    for (std::int64_t i = 0; i < x.type().count(); ++i) {
      x.view().as<float>()[i] = first + static_cast<float>(i / 32 % (channels / 8));
    }
    return x;
  };
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const HostTensor y =
        run_op("Concat", {{"axis", std::int64_t{1}}}, {filled(8, 1), filled(16, 2)}, backend)[0];
    EXPECT_EQ(static_cast<int>(y.type().layout), static_cast<int>(Layout::kBlocked8));
    expect_same_bits(y, filled(24, 1));
    const auto parts =
        run_op("Split", {{"axis", std::int64_t{1}}, {"sizes", Ints{8, 16}}}, {y}, backend);
    expect_same_bits(parts[1], filled(16, 2));
  }
}

// --- Expand, Pad, Trilu, CumSum ---

TEST(Movement, Expand) {
  const auto to = [](Ints shape) { return Attributes{{"shape", shape}}; };
  expect_values(run_op("Expand", to({2, 3}), {floats({2, 1}, {1, 2})})[0], {2, 3},
                {1, 1, 1, 2, 2, 2});
  expect_values(run_op("Expand", to({2, 3}), {floats({3}, {1, 2, 3})})[0], {2, 3},
                {1, 2, 3, 1, 2, 3});
  for (const Shape& shape : {Shape{}, Shape{5}, Shape{4, 1}, Shape{3, 1, 5}, Shape{1, 4, 1}}) {
    check_gradients("Expand", to({3, 4, 5}), {{.shape = shape}});
    check_cpu("Expand", to({3, 4, 5}), {{.shape = shape}}, 0);
  }
  check_cpu("Expand", to({300, 4, 70}), {{.shape = {4, 1}}}, 0);
  expect_error(ErrorKind::kModel, "cannot expand", [&] {
    infer_op("Expand", to({1, 3}), {{DType::kFloat32, {2, 3}}});
  });
}

TEST(Movement, Pad) {
  const Attributes attributes{{"pads", Ints{1, 0, 0, 2}}, {"value", 9.0}};
  expect_values(run_op("Pad", attributes, {floats({1, 2}, {1, 2})})[0], {2, 4},
                {9, 9, 9, 9, 1, 2, 9, 9});
  check_gradients("Pad", attributes, {{.shape = {3, 4}}});
  check_cpu("Pad", attributes, {{.shape = {3, 4}}}, 0);
  check_cpu("Pad", {{"pads", Ints{0, 0, 3, 3, 0, 0, 3, 3}}}, {{.shape = {2, 3, 32, 32}}}, 0);
  // So large that threads fill parts.
  for (const double value : {0.0, 9.0})
    check_cpu("Pad", {{"pads", Ints{1, 2, 3, 4}}, {"value", value}}, {{.shape = {300, 301}}}, 0);
}

TEST(Movement, Trilu) {
  const HostTensor x = counting({2, 3});
  const auto with = [](std::int64_t upper, std::int64_t k) {
    return Attributes{{"upper", upper}, {"k", k}};
  };
  expect_values(run_op("Trilu", with(1, 0), {x})[0], {2, 3}, {0, 1, 2, 0, 4, 5});
  expect_values(run_op("Trilu", with(0, -1), {x})[0], {2, 3}, {0, 0, 0, 3, 0, 0});
  expect_values(run_op("Trilu", with(0, 1), {bools({2, 3}, {1, 1, 1, 1, 1, 1})})[0], {2, 3},
                {1, 1, 0, 1, 1, 1});
  using Limits = std::numeric_limits<std::int64_t>;
  for (const std::int64_t k : {Limits::min(), Limits::max()}) {
    for (const std::int64_t upper : {0, 1})
      check_cpu("Trilu", with(upper, k), {{.shape = {3, 5, 4}}}, 0);
  }
  for (const std::int64_t k : {-7, -1, 0, 2, 7}) {
    for (const std::int64_t upper : {0, 1}) {
      check_cpu("Trilu", with(upper, k), {{.shape = {3, 5, 4}}}, 0);
      check_gradients("Trilu", with(upper, k), {{.shape = {3, 5, 4}}});
    }
  }
}

// --- import ---

TEST(MovementImport, Reshape) {
  const ImportInput x = data(counting({2, 3, 4}));
  const auto shape_of = [&](std::vector<std::int64_t> to, std::int64_t allowzero = 0) {
    const auto rank = static_cast<std::int64_t>(to.size());
    const Imported node = import_node("Reshape", 14, {{"allowzero", allowzero}},
                                      {x, constant(int64s({rank}, std::move(to)))});
    return node.run()[0].shape().text();
  };
  EXPECT_EQ(shape_of({4, -1}), "(4, 6)");
  EXPECT_EQ(shape_of({0, -1}), "(2, 12)");
  EXPECT_EQ(shape_of({0, 0, 2, 2}), "(2, 3, 2, 2)");
  EXPECT_EQ(shape_of({-1}), "(24)");
  expect_error(ErrorKind::kModel, "unknown", [&] { shape_of({-1, -1}); });
  expect_error(ErrorKind::kModel, "reshape", [&] { shape_of({5, -1}); });
  expect_error(ErrorKind::kModel, "reshape", [&] { shape_of({5, 5}); });
  expect_error(ErrorKind::kModel, "reshape", [&] { shape_of({0, 24}, 1); });
  expect_error(ErrorKind::kModel, "shape", [&] {
    import_node("Reshape", 14, {}, {x, data(int64s({1}, {-1}))});
  });
  EXPECT_EQ(import_node("Identity", 14, {}, {x}).ops(), "");
}

TEST(MovementImport, ShapesWithoutData) {
  const ImportInput x = data(counting({2, 1, 4, 1}));
  const auto shape = [](const Imported& node) { return node.run()[0].shape().text(); };
  EXPECT_EQ(shape(import_node("Flatten", 13, {}, {x})), "(2, 4)");
  EXPECT_EQ(shape(import_node("Flatten", 13, {{"axis", std::int64_t{-1}}}, {x})), "(8, 1)");
  EXPECT_EQ(shape(import_node("Flatten", 13, {{"axis", std::int64_t{0}}}, {x})), "(1, 8)");
  EXPECT_EQ(shape(import_node("Squeeze", 11, {{"axes", Ints{1}}}, {x})), "(2, 4, 1)");
  EXPECT_EQ(shape(import_node("Squeeze", 13, {}, {x, constant(int64s({1}, {-1}))})), "(2, 1, 4)");
  EXPECT_EQ(shape(import_node("Squeeze", 13, {}, {x})), "(2, 4)");
  EXPECT_EQ(shape(import_node("Unsqueeze", 11, {{"axes", Ints{0, 5}}}, {x})), "(1, 2, 1, 4, 1, 1)");
  EXPECT_EQ(shape(import_node("Unsqueeze", 13, {}, {x, constant(int64s({1}, {-1}))})),
            "(2, 1, 4, 1, 1)");
  expect_error(ErrorKind::kModel, "squeeze", [&] {
    import_node("Squeeze", 11, {{"axes", Ints{2}}}, {x});
  });
}

TEST(MovementImport, Transpose) {
  const ImportInput x = data(counting({2, 1, 3}));
  EXPECT_EQ(import_node("Transpose", 13, {{"perm", Ints{1, 0, 2}}}, {x}).ops(), "Reshape");
  EXPECT_EQ(import_node("Transpose", 13, {{"perm", Ints{0, 1, 2}}}, {x}).ops(), "");
  expect_values(import_node("Transpose", 13, {}, {x}).run()[0], {3, 1, 2}, {0, 3, 1, 4, 2, 5});
  expect_error(ErrorKind::kModel, "once", [&] {
    import_node("Transpose", 13, {{"perm", Ints{0, 0, 2}}}, {x});
  });
}

TEST(MovementImport, Slice) {
  const ImportInput x = data(counting({2, 4}));
  const auto with = [&](std::int64_t start, std::int64_t end, std::int64_t step) {
    const auto one = [](std::int64_t value) { return constant(int64s({1}, {value})); };
    return import_node("Slice", 13, {}, {x, one(start), one(end), one(1), one(step)}).run()[0];
  };
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
  expect_values(with(1, kFar, 1), {2, 3}, {1, 2, 3, 5, 6, 7});
  expect_values(with(-2, kFar, 1), {2, 2}, {2, 3, 6, 7});
  expect_values(with(0, -1, 1), {2, 3}, {0, 1, 2, 4, 5, 6});
  expect_values(with(-1, -kFar, -1), {2, 4}, {3, 2, 1, 0, 7, 6, 5, 4});
  expect_values(with(kFar, -5, -2), {2, 2}, {3, 1, 7, 5});
  expect_values(with(1, 4, kFar), {2, 1}, {1, 5});
  expect_values(with(3, 0, -kFar - 1), {2, 1}, {3, 7});
  expect_values(with(3, 1, 1), {2, 0}, {});
  expect_values(with(1, 3, -1), {2, 0}, {});
  EXPECT_EQ(import_node("Slice", 9, {{"starts", Ints{0}}, {"ends", Ints{9}}}, {x}).ops(), "");
  expect_values(import_node("Slice", 9, {{"starts", Ints{1}}, {"ends", Ints{9}}}, {x}).run()[0],
                {1, 4}, {4, 5, 6, 7});
}

TEST(MovementImport, Split) {
  const ImportInput x = data(counting({5, 2}));
  const auto sizes = [](const Imported& node) {
    std::string text;
    for (const HostTensor& part : node.run()) text += part.shape().text();
    return text;
  };
  EXPECT_EQ(sizes(import_node("Split", 18, {{"num_outputs", std::int64_t{3}}}, {x}, 3)),
            "(2, 2)(2, 2)(1, 2)");
  EXPECT_EQ(sizes(import_node("Split", 11, {{"axis", std::int64_t{-1}}}, {x}, 2)), "(5, 1)(5, 1)");
  EXPECT_EQ(sizes(import_node("Split", 11, {{"split", Ints{1, 4}}}, {x}, 2)), "(1, 2)(4, 2)");
  EXPECT_EQ(sizes(import_node("Split", 13, {}, {x, constant(int64s({2}, {3, 2}))}, 2)),
            "(3, 2)(2, 2)");
  expect_error(ErrorKind::kModel, "equal parts", [&] { import_node("Split", 13, {}, {x}, 2); });
}

TEST(MovementImport, ExpandAndTile) {
  const ImportInput x = data(floats({2, 1}, {1, 2}));
  expect_values(import_node("Expand", 13, {}, {x, constant(int64s({2}, {1, 2}))}).run()[0], {2, 2},
                {1, 1, 2, 2});
  EXPECT_EQ(import_node("Expand", 13, {}, {x, constant(int64s({3}, {1, 1, 1}))}).ops(), "Reshape");
  expect_values(import_node("Tile", 13, {}, {x, constant(int64s({2}, {2, 2}))}).run()[0], {4, 2},
                {1, 1, 2, 2, 1, 1, 2, 2});
}

TEST(MovementImport, ConcatBeforeOpset4) {
  const ImportInput x = data(floats({1, 2}, {1, 2})), y = data(floats({1, 1}, {3}));
  expect_values(import_node("Concat", 1, {}, {x, y}).run()[0], {1, 3}, {1, 2, 3});
}

TEST(MovementImport, ATrainedPadValueIsNamed) {
  Graph graph;
  GraphBuilder builder = make_builder(graph);
  builder.set_origin("test", Part::kForward);
  Value value;
  value.name = "fill";
  value.type = {DType::kFloat32, {}};
  value.role = Role::kParameter;
  const ValueId fill = builder.add_value(std::move(value));
  const Attributes none;
  const ImportMode mode;
  ImportContext pad(builder, "Pad", 19, none,
                    {builder.scalar(1), builder.constant(int64s({0}, {})), fill}, 1, mode);
  expect_error(ErrorKind::kModel,
               "the value of Pad must be known before training: freeze it with `freeze` fill",
               [&] { find_import("Pad")->import(pad); });
}

TEST(MovementImport, Pad) {
  const ImportInput x = data(floats({3}, {1, 2, 3}));
  const auto with = [&](std::string mode, std::vector<std::int64_t> pads) {
    return import_node("Pad", 19, {{"mode", std::move(mode)}},
                       {x, constant(int64s({2}, std::move(pads)))})
        .run()[0];
  };
  expect_values(with("constant", {1, 2}), {6}, {0, 1, 2, 3, 0, 0});
  expect_values(with("constant", {-1, 1}), {3}, {2, 3, 0});
  expect_values(with("constant", {-1, -1}), {1}, {2});
  expect_error(ErrorKind::kModel, "cut more than the 3 elements of axis 0", [&] {
    with("constant", {4, -5});
  });
  for (const char* mode : {"edge", "reflect", "wrap"})
    expect_error(ErrorKind::kModel, "cut more than the 3 elements of axis 0", [&] {
      with(mode, {-5, 0});
    });
  expect_values(with("reflect", {2, 2}), {7}, {3, 2, 1, 2, 3, 2, 1});
  expect_values(with("edge", {1, 2}), {6}, {1, 1, 2, 3, 3, 3});
  expect_values(with("wrap", {1, 2}), {6}, {3, 1, 2, 3, 1, 2});
  // Sums of these leave 64 bits.
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const char* mode : {"constant", "edge"}) {
    EXPECT_THROW(with(mode, {kMost, kMost}), Error) << mode;
    EXPECT_THROW(with(mode, {-kMost - 1, 0}), Error) << mode;
  }
  const Imported old = import_node("Pad", 2, {{"pads", Ints{1, 0}}, {"value", 5.0}}, {x});
  expect_values(old.run()[0], {4}, {5, 1, 2, 3});
  const Imported one_axis =
      import_node("Pad", 18, {},
                  {data(floats({1, 2}, {1, 2})), constant(int64s({2}, {0, 1})),
                   constant(floats({}, {7})), constant(int64s({1}, {-1}))});
  expect_values(one_axis.run()[0], {1, 3}, {1, 2, 7});
}

TEST(MovementImport, DepthToSpace) {
  // Channel k holds pixel k of every block.
  const ImportInput x = data(counting({1, 4, 1, 2}));
  expect_values(import_node("DepthToSpace", 13, {{"blocksize", std::int64_t{2}}}, {x}).run()[0],
                {1, 1, 2, 4}, {0, 2, 1, 3, 4, 6, 5, 7});
  const ImportInput two = data(counting({1, 8, 1, 1}));
  expect_values(import_node("DepthToSpace", 13, {{"blocksize", std::int64_t{2}}}, {two}).run()[0],
                {1, 2, 2, 2}, {0, 2, 4, 6, 1, 3, 5, 7});
  expect_values(import_node("DepthToSpace", 13,
                            {{"blocksize", std::int64_t{2}}, {"mode", std::string("CRD")}}, {two})
                    .run()[0],
                {1, 2, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
  const ImportInput image = data(counting({1, 1, 2, 4}));
  expect_values(import_node("SpaceToDepth", 13, {{"blocksize", std::int64_t{2}}}, {image}).run()[0],
                {1, 4, 1, 2}, {0, 2, 1, 3, 4, 6, 5, 7});
}

TEST(MovementImport, SpaceToDepthIsTheInverse) {
  const ImportInput x = data(counting({2, 3, 4, 6}));
  for (const char* mode : {"DCR", "CRD"}) {
    const Attributes attributes{{"blocksize", std::int64_t{2}}, {"mode", std::string(mode)}};
    const HostTensor deep = import_node("SpaceToDepth", 28, attributes, {x}).run()[0];
    EXPECT_EQ(deep.shape().text(), "(2, 12, 2, 3)");
    expect_same_bits(import_node("DepthToSpace", 13, attributes, {data(deep)}).run()[0], x.value);
  }
}

TEST(MovementImport, FoldsConstants) {
  const Imported joined = import_node("Concat", 13, {{"axis", std::int64_t{0}}},
                                      {constant(int64s({1}, {4})), constant(int64s({2}, {5, 6}))});
  EXPECT_TRUE(joined.is_constant());
  expect_values(joined.run()[0], {3}, {4, 5, 6});
}

}  // namespace
}  // namespace pipetrain::test
