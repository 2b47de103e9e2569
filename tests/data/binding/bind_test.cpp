#include "data/binding/bind.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/data_files.h"

namespace pipetrain {
namespace {

using Doubles = std::vector<double>;

template <class T>
RawColumn column(const std::string& name, Shape shape, std::vector<T> values,
                 ColumnRole role = ColumnRole::kUnknown) {
  return {
      name, HostTensor::of<T>(std::move(shape), std::span<const T>(values)), "f.npz", role, {}, {},
      {}};
}

RawSplit split(std::vector<RawColumn> columns) { return {std::move(columns), nullptr}; }

LabelSpec classes(std::int64_t count, Shape shape = {}) {
  LabelSpec out;
  out.classes = count;
  out.sample_shape = std::move(shape);
  return out;
}

LabelSpec numbers(Shape shape) {
  LabelSpec out;
  out.dtype = DType::kFloat32;
  out.sample_shape = std::move(shape);
  return out;
}

ModelInput float_input(const std::string& name, Shape shape) {
  return {name, DType::kFloat32, std::move(shape), -1};
}

const RawColumn kX = column<float>("x", {2, 2}, {1, 2, 3, 4});
const RawColumn kY = column<std::int64_t>("y", {2}, {0, 1}, ColumnRole::kLabel);

TEST(Bind, ByName) {
  const BoundData got =
      bind_data(split({column<float>("b", {2}, {5, 6}), kY, column<float>("a", {2}, {7, 8})}),
                {{float_input("a", {}), float_input("b", {})}, classes(2)}, {});
  EXPECT_EQ(got.dataset->columns().size(), 3u);
  EXPECT_EQ(values(*got.dataset, 0), (Doubles{7, 8}));
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{5, 6}));
  EXPECT_EQ(values(*got.dataset, 2), (Doubles{0, 1}));
  EXPECT_EQ(got.dataset->columns()[2].dtype, DType::kInt64);
}

TEST(Bind, ByPositionTheLastIsTheLabel) {
  const BoundData got = bind_data(
      split({column<float>("arr_0", {2}, {5, 6}), column<std::int32_t>("arr_1", {2}, {1, 0})}),
      {{float_input("input", {})}, classes(2)}, {});
  EXPECT_EQ(values(*got.dataset, 0), (Doubles{5, 6}));
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{1, 0}));
}

TEST(Bind, ByTheUsersWord) {
  const RawSplit data = split({column<float>("a", {2}, {1, 2}), column<float>("b", {2}, {3, 4}),
                               column<std::int32_t>("c", {2}, {0, 1})});
  const DataSpec spec{{float_input("input", {})}, classes(2)};
  BindOptions options;
  options.bindings = {{"input", "b"}, {"labels", "c"}};
  const BoundData got = bind_data(data, spec, options);
  EXPECT_EQ(values(*got.dataset, 0), (Doubles{3, 4}));
  expect_contains(got.notes.back(), "\"a\" float32 () is not used");
  options.bindings = {{"input", "d"}};
  expect_contains(data_error([&] { bind_data(data, spec, options); }, ErrorKind::kUsage),
                  "no array \"d\"");
  options.bindings = {{"image", "a"}};
  expect_contains(data_error([&] { bind_data(data, spec, options); }, ErrorKind::kUsage),
                  "no input \"image\"");
}

TEST(Bind, FlatRowsAreReshaped) {
  const BoundData got =
      bind_data(split({kX, kY}), {{float_input("image", {1, 2, 1})}, classes(2)}, {});
  EXPECT_EQ(got.dataset->columns()[0].sample_shape, (Shape{1, 2, 1}));
  EXPECT_EQ(values(*got.dataset, 0), (Doubles{1, 2, 3, 4}));
}

TEST(Bind, AxesInAnotherOrderAreRefused) {
  const auto bound = [](Shape have, Shape want) {
    const std::int64_t count = have.count();
    std::vector<std::int64_t> dims = have.dims();
    dims.insert(dims.begin(), 1);
    std::vector<float> numbers(static_cast<std::size_t>(count), 1);
    return bind_data(split({column<float>("x", Shape(dims), numbers), column<int>("y", {1}, {0})}),
                     {{float_input("image", want)}, classes(2)}, {});
  };
  for (const auto& [have, want] : {std::pair<Shape, Shape>{{4, 3}, {3, 4}},
                                   {{2, 3, 4, 5}, {5, 2, 3, 4}},
                                   {{4, 3, 1}, {1, 3, 4}}}) {
    EXPECT_NE(data_error([&, one = have, other = want] { bound(one, other); }).find("transpose"),
              std::string::npos);
  }
  EXPECT_NO_THROW(bound({4, 3}, {1, 4, 3}));
  EXPECT_NO_THROW(bound({4, 3}, {2, 2, 3}));
  expect_contains(data_error([&] { bound({4, 3}, {2, 6}); }), "the axes have other lengths");
}

TEST(Bind, ImagesWithChannelsLastAreTransposed) {
  // One image of height 1, width 2, three channels: pixels (r, g, b).
  const BoundData got = bind_data(
      split({column<float>("x", {1, 1, 2, 3}, {1, 2, 3, 4, 5, 6}), column<int>("y", {1}, {0})}),
      {{float_input("image", {3, 1, 2})}, classes(2)}, {});
  EXPECT_EQ(values(*got.dataset, 0), (Doubles{1, 4, 2, 5, 3, 6}));
  const BoundData back = bind_data(
      split({column<float>("x", {1, 3, 1, 2}, {1, 4, 2, 5, 3, 6}), column<int>("y", {1}, {0})}),
      {{float_input("image", {1, 2, 3})}, classes(2)}, {});
  EXPECT_EQ(values(*back.dataset, 0), (Doubles{1, 2, 3, 4, 5, 6}));
}

TEST(Bind, WrongSizesAreErrors) {
  const auto error = [](std::vector<RawColumn> columns, Shape shape) {
    return data_error([&] {
      bind_data(split(std::move(columns)), {{float_input("image", std::move(shape))}, classes(2)},
                {});
    });
  };
  expect_contains(error({kX, kY}, {3}), "has 2 values per sample; input \"image\" expects (3) = 3");
  RawColumn table = kX;
  table.field_names = {"width", "height"};
  expect_contains(error({table, kY}, {3}), "a model of this table takes 2 numbers");
  expect_contains(error({kX, column<int>("y", {3}, {0, 0, 1}, ColumnRole::kLabel)}, {2}),
                  "\"x\" of f.npz has 2, \"y\" of f.npz has 3");
  expect_contains(error({column<float>("x", {0, 2}, {}), column<int>("y", {0}, {})}, {2}),
                  "no samples");
  expect_contains(error({kY}, {2}), "no array for the input \"image\"");
  expect_contains(error({kX}, {2}), "no labels");
}

TEST(Bind, ScalesUint8AndNothingElse) {
  const RawSplit data = split({column<std::uint8_t>("x", {2, 1}, {51, 255}), kY});
  const DataSpec spec{{float_input("x", {1})}, classes(2)};
  const auto scaled = [&](Normalization how) {
    BindOptions options;
    options.normalization = how;
    return values(*bind_data(data, spec, options).dataset, 0);
  };
  EXPECT_EQ(scaled({}), (Doubles{51.0f / 255.0f, 1}));
  EXPECT_EQ(scaled(Normalization::parse("none")), (Doubles{51, 255}));
  EXPECT_EQ(scaled(Normalization::parse("10")), (Doubles{5.1f, 25.5}));
  EXPECT_EQ(scaled(Normalization::parse("max")), (Doubles{51.0f / 255.0f, 1}));
  EXPECT_EQ(
      values(*bind_data(split({kX, kY}), {{float_input("x", {2})}, classes(2)}, {}).dataset, 0),
      (Doubles{1, 2, 3, 4}));
  EXPECT_EQ(data_error([] { Normalization::parse("0"); }, ErrorKind::kUsage),
            "`normalize` takes auto, none, max, imagenet, means/deviations or a number to divide "
            "by, not \"0\"");
  for (const char* wrong : {"1e-46", "1e39", "nan", "1/1e-46", "1e39/1", "0/inf"})
    expect_contains(data_error([&] { Normalization::parse(wrong); }, ErrorKind::kUsage), wrong);
}

TEST(Bind, NormalizesForTorchvisionsNetworks) {
  const Normalization imagenet = Normalization::parse("imagenet");
  EXPECT_EQ(imagenet.mean, (Doubles{0.485, 0.456, 0.406}));
  EXPECT_EQ(imagenet.deviation, (Doubles{0.229, 0.224, 0.225}));
}

TEST(Bind, ValidationIsScaledLikeTraining) {
  BindOptions options;
  options.normalization = Normalization::parse("max");
  const DataSpec spec{{float_input("x", {2})}, classes(2)};
  const BoundData train = bind_data(split({kX, kY}), spec, options);
  const BoundData other =
      bind_data(split({column<float>("x", {1, 2}, {-1, 2}), column<int>("y", {1}, {0})}), spec,
                options, &train);
  EXPECT_EQ(values(*train.dataset, 0), (Doubles{0.25, 0.5, 0.75, 1}));
  EXPECT_EQ(values(*other.dataset, 0), (Doubles{-0.25, 0.5}));
}

TEST(Bind, LabelsOutOfRangeAreNamed) {
  const DataSpec spec{{float_input("x", {2})}, classes(10)};
  const auto error = [&](const RawColumn& labels) {
    return data_error([&] { bind_data(split({kX, labels}), spec, {}); });
  };
  expect_contains(error(column<std::int64_t>("y", {2}, {9, 10})),
                  "label 10 out of range 0..9, f.npz item 1");
  expect_contains(error(column<std::int64_t>("y", {2}, {-1, 3})), "label -1 out of range 0..9");
  expect_contains(error(column<double>("y", {2}, {1, 2.5})), "label 2.5 not a whole number");
  expect_contains(error(column<float>("y", {2}, {1, std::numeric_limits<float>::quiet_NaN()})),
                  "label nan not finite");
  expect_contains(error(column<std::uint64_t>("y", {2}, {1, ~std::uint64_t{0}})),
                  "label 18446744073709551615 out of range");
  RawColumn lines = column<double>("y", {2}, {1, 11});
  lines.lines = {2, 5};
  expect_contains(error(lines), "f.npz line 5");
  // -100 marks samples that the loss ignores.
  const BoundData ignored =
      bind_data(split({kX, column<std::int64_t>("y", {2}, {-100, 3})}), spec, {});
  EXPECT_EQ(values(*ignored.dataset, 1), (Doubles{-100, 3}));
}

TEST(Bind, LabelsCountedFromOneAreToldSo) {
  const std::string error = data_error([&] {
    bind_data(split({column<float>("x", {6}, {1, 2, 3, 4, 5, 6}),
                     column<std::int64_t>("y", {6}, {1, 2, 3, 3, 2, 1})}),
              {{float_input("x", {})}, classes(3)}, {});
  });
  expect_contains(error, "run from 1 to 3, but classes are counted from 0: subtract 1");
}

TEST(Bind, AnArrayNamedAsTheOutputIsTheLabels) {
  LabelSpec label = classes(2);
  label.output = "kind";
  const BoundData got = bind_data(
      split({kX, column<std::int64_t>("kind", {2}, {1, 0}), column<float>("price", {2}, {5, 6})}),
      {{float_input("x", {2})}, label}, {});
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{1, 0}));
}

TEST(Bind, PixelsThatMoveNeedLabelsThatMove) {
  const DataSpec spec{{float_input("x", {1, 2, 2})}, classes(3, {2, 2})};
  const RawSplit data = split({column<float>("x", {1, 1, 2, 2}, {1, 2, 3, 4}),
                               column<std::int64_t>("y", {1, 2, 2}, {0, 1, 2, 0})});
  BindOptions options;
  for (const char* moves : {"flip", "vflip", "crop:1", "resized-crop", "noise:0.1,flip"}) {
    options.image.augmentation = Augmentation::parse(moves);
    expect_contains(data_error([&] { bind_data(data, spec, options); }, ErrorKind::kUsage),
                    "would move the pixels");
  }
  options.image.augmentation = Augmentation::parse("noise:0.1,cutout:1");
  EXPECT_EQ(bind_data(data, spec, options).dataset->size(), 1u);
}

TEST(Bind, BadInputsAreNamed) {
  const float infinity = std::numeric_limits<float>::infinity();
  expect_contains(data_error([&] {
                    bind_data(split({column<float>("x", {2, 2}, {1, 2, 3, infinity}), kY}),
                              {{float_input("x", {2})}, classes(2)}, {});
                  }),
                  "value inf of input \"x\" is not finite, f.npz item 1");
  const DataSpec spec{{{"ids", DType::kInt32, {1}, 100}}, classes(2)};
  expect_contains(
      data_error([&] {
        bind_data(split({column<std::int64_t>("ids", {2, 1}, {99, 100}), kY}), spec, {});
      }),
      "value 100 of input \"ids\" out of range 0..99, f.npz item 1");
  const DataSpec narrow{{{"ids", DType::kInt32, {1}, -1}}, classes(2)};
  expect_contains(
      data_error([&] {
        bind_data(split({column<std::int64_t>("ids", {2, 1}, {99, 1ll << 31}), kY}), narrow, {});
      }),
      "2147483648");
}

TEST(Bind, NumbersThatAreTooLargeForFloatsAreNamed) {
  BindOptions options;
  const auto error = [&](const RawColumn& x) {
    return data_error([&] {
      bind_data(split({x, kY}), {{float_input("x", {2})}, classes(2)}, options);
    });
  };
  expect_contains(error(column<double>("x", {2, 2}, {1, 2, -1e39, 4})),
                  "value -1e+39 of input \"x\" is too large, f.npz item 1");
  // They are converted before they are divided.
  options.normalization = Normalization::parse("1e10");
  expect_contains(error(column<double>("x", {2, 2}, {1, 2, 1e40, 4})), "value 1e+40");
  options.normalization = Normalization::parse("1e-10");
  expect_contains(error(column<float>("x", {2, 2}, {1, 2, 3, 1e29F})), "value 1e+29");
  options.normalization = {};
  expect_contains(data_error([&] {
                    bind_data(split({kX, column<double>("y", {2}, {1e300, 1})}),
                              {{float_input("x", {2})}, numbers({})}, {});
                  }),
                  "label 1e+300 too large, f.npz item 0");
}

TEST(Bind, BadSamplesCanBeLeftOut) {
  BindOptions options;
  options.on_bad_sample = BadSample::kSkip;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const DataSpec spec{{float_input("x", {})}, classes(3)};
  const BoundData got = bind_data(split({column<float>("x", {4}, {1, nan, 3, 4}),
                                         column<std::int64_t>("y", {4}, {0, 1, 7, 2})}),
                                  spec, options);
  EXPECT_EQ(values(*got.dataset, 0), (Doubles{1, 4}));
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{0, 2}));
  expect_contains(got.notes.back(), "2 bad samples skipped");
  expect_contains(data_error([&] {
                    bind_data(split({column<float>("x", {1}, {nan}), column<int>("y", {1}, {0})}),
                              spec, options);
                  }),
                  "every sample is bad");
}

TEST(Bind, OneHotRowsBecomeClasses) {
  const BoundData got =
      bind_data(split({kX, column<float>("y", {2, 3}, {0, 0, 1, 1, 0, 0}, ColumnRole::kLabel)}),
                {{float_input("x", {2})}, classes(3)}, {});
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{2, 0}));
  expect_contains(data_error([&] {
                    bind_data(split({kX, column<float>("y", {2, 3}, {0, 1, 1, 1, 0, 0})}),
                              {{float_input("x", {2})}, classes(3)}, {});
                  }),
                  "has 3 values per sample");
}

TEST(Bind, WordsKeepTheTrainingDatasNumbers) {
  const DataSpec spec{{float_input("x", {2})}, classes(3)};
  RawColumn words = column<std::int64_t>("y", {2}, {0, 1});
  words.class_names = {"cat", "dog"};
  const BoundData train = bind_data(split({kX, words}), spec, {});
  EXPECT_EQ(train.class_names, (std::vector<std::string>{"cat", "dog"}));
  words.class_names = {"dog"};
  words.values = HostTensor::of<std::int64_t>({2}, std::vector<std::int64_t>{0, 0});
  EXPECT_EQ(values(*bind_data(split({kX, words}), spec, {}, &train).dataset, 1), (Doubles{1, 1}));
  words.class_names = {"cow"};
  expect_contains(data_error([&] {
                    bind_data(split({kX, words}), spec, {}, &train);
                  }),
                  "\"cow\" does not occur");
}

TEST(Bind, RegressionTargetsProbabilitiesAndAutoencoders) {
  const RawColumn target = column<double>("target", {2}, {-1.5, 2}, ColumnRole::kLabel);
  EXPECT_EQ(
      values(*bind_data(split({kX, target}), {{float_input("x", {2})}, numbers({1})}, {}).dataset,
             1),
      (Doubles{-1.5, 2}));
  LabelSpec probability = numbers({1});
  probability.probability = true;
  expect_contains(data_error([&] {
                    bind_data(split({kX, target}), {{float_input("x", {2})}, probability}, {});
                  }),
                  "label -1.5 out of range 0..1");
  const BoundData itself = bind_data(split({column<std::uint8_t>("x", {1, 2}, {0, 255})}),
                                     {{float_input("x", {2})}, numbers({2})}, {});
  EXPECT_EQ(values(*itself.dataset, 1), (Doubles{0, 1}));
  // Pixels become probabilities by their division, whether or not they are named as the labels.
  LabelSpec pixels = numbers({2});
  pixels.probability = true;
  const RawSplit images = split({column<std::uint8_t>("x", {1, 2}, {0, 255})});
  BindOptions named;
  named.bindings = {{"input", "x"}, {"labels", "x"}};
  for (const BindOptions& options : {BindOptions{}, named}) {
    const BoundData bound = bind_data(images, {{float_input("input", {2})}, pixels}, options);
    EXPECT_EQ(values(*bound.dataset, 1), (Doubles{0, 1}));
  }
  expect_contains(data_error([&] {
                    bind_data(split({column<float>("x", {1, 2}, {-1, 1})}),
                              {{float_input("x", {2})}, pixels}, {});
                  }),
                  "label -1 out of range 0..1");
}

// 0.3F is 0.300000012 and the divisor 0.3 in double precision: the quotient is one.
TEST(Bind, TheDivisorItselfIsAProbabilityOnceItIsDivided) {
  LabelSpec pixels = numbers({2});
  pixels.probability = true;
  BindOptions options;
  options.normalization = Normalization::parse("0.3");
  const auto bound = [&](float largest) {
    return values(*bind_data(split({column<float>("x", {1, 2}, {0, largest})}),
                             {{float_input("x", {2})}, pixels}, options)
                       .dataset,
                  1);
  };
  EXPECT_EQ(bound(0.3F), (Doubles{0, 1}));
  expect_contains(data_error([&] { bound(std::nextafter(0.3F, 1.0F)); }), "out of range 0..0.3,");
}

TEST(Bind, ATablesColumnsFeedSeveralInputs) {
  RawColumn table = column<float>("x", {2, 3}, {1, 2, 3, 4, 5, 6});
  const auto bound = [&](std::vector<ModelInput> inputs) {
    return bind_data(split({table, kY}), {std::move(inputs), classes(2)}, {}).dataset;
  };
  const auto dealt = bound({float_input("a", {1}), float_input("b", {2})});
  EXPECT_EQ(values(*dealt, 0), (Doubles{1, 4}));
  EXPECT_EQ(values(*dealt, 1), (Doubles{2, 3, 5, 6}));
  table.field_names = {"age", "id", "income"};
  const auto named = bound({float_input("income", {1}), float_input("age", {1})});
  EXPECT_EQ(values(*named, 0), (Doubles{3, 6}));
  EXPECT_EQ(values(*named, 1), (Doubles{1, 4}));
  // The same where only predictions are wanted.
  const auto predicted =
      bind_data(split({table, kY}),
                {{float_input("income", {1}), float_input("age", {1})}, std::nullopt}, {});
  EXPECT_EQ(values(*predicted.dataset, 0), (Doubles{3, 6}));
}

LabelSpec next_tokens(std::int64_t length, std::int64_t rows) {
  LabelSpec out = classes(rows, {length});
  out.shifted_input = true;
  return out;
}

TEST(Bind, NextTokensOfRows) {
  const DataSpec spec{{{"input_ids", DType::kInt64, {3}, 10}}, next_tokens(3, 10)};
  const RawColumn ids = column<std::int32_t>("input_ids", {2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(values(*bind_data(split({ids}), spec, {}).dataset, 1),
            (Doubles{2, 3, -100, 5, 6, -100}));
  const RawColumn longer = column<std::int32_t>("input_ids", {2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
  const BoundData got = bind_data(split({longer}), spec, {});
  EXPECT_EQ(values(*got.dataset, 0), (Doubles{1, 2, 3, 5, 6, 7}));
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{2, 3, 4, 6, 7, 8}));
}

TEST(Bind, NextTokensThatTheDataGive) {
  const DataSpec spec{{{"input_ids", DType::kInt64, {3}, 10}}, next_tokens(3, 10)};
  const RawColumn ids = column<std::int32_t>("input_ids", {1, 3}, {1, 2, 3});
  const auto labels = [&](std::vector<std::int64_t> given) {
    return values(*bind_data(split({ids, column<std::int64_t>("labels", {1, 3}, std::move(given),
                                                              ColumnRole::kLabel)}),
                             spec, {})
                       .dataset,
                  1);
  };
  EXPECT_EQ(labels({2, 3, 4}), (Doubles{2, 3, 4}));        // already moved
  EXPECT_EQ(labels({-100, 2, 3}), (Doubles{2, 3, -100}));  // the inputs, the first ignored
  EXPECT_EQ(labels({-100, -100, 3}), (Doubles{-100, 3, -100}));
}

TEST(Bind, NextTokensThatTheDataGiveForLongerRows) {
  const DataSpec spec{{{"input_ids", DType::kInt64, {3}, 10}}, next_tokens(3, 10)};
  const RawColumn ids = column<std::int32_t>("input_ids", {1, 4}, {1, 2, 3, 4});
  const auto bound = [&](std::vector<std::int64_t> given) {
    const auto length = static_cast<std::int64_t>(given.size());
    return bind_data(split({ids, column<std::int64_t>("labels", {1, length}, std::move(given),
                                                      ColumnRole::kLabel)}),
                     spec, {});
  };
  EXPECT_EQ(values(*bound({-100, -100, 3, 4}).dataset, 1), (Doubles{-100, 3, 4}));
  EXPECT_EQ(values(*bound({2, 3, 4, 5}).dataset, 1), (Doubles{2, 3, 4}));  // already moved
  const BoundData other = bound({-100, 3, 4, 5, 6});
  EXPECT_EQ(values(*other.dataset, 1), (Doubles{2, 3, 4}));
  ASSERT_EQ(other.warnings.size(), 1u);
  expect_contains(other.warnings[0], "is not used");
}

TEST(Bind, NextTokensAreIgnoredWhereMasked) {
  const DataSpec spec{
      {{"input_ids", DType::kInt64, {3}, 10}, {"attention_mask", DType::kInt64, {3}}},
      next_tokens(3, 10)};
  const BoundData got = bind_data(split({column<int>("input_ids", {1, 3}, {1, 2, 0}),
                                         column<int>("attention_mask", {1, 3}, {1, 1, 0})}),
                                  spec, {});
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{1, 1, 0}));
  EXPECT_EQ(values(*got.dataset, 2), (Doubles{2, -100, -100}));
}

TEST(Bind, NextTokensOfLongerRowsAreIgnoredWhereMasked) {
  const DataSpec spec{
      {{"input_ids", DType::kInt64, {3}, 10}, {"attention_mask", DType::kInt64, {3}}},
      next_tokens(3, 10)};
  const BoundData got = bind_data(split({column<int>("input_ids", {1, 4}, {1, 2, 3, 0}),
                                         column<int>("attention_mask", {1, 4}, {1, 1, 1, 0})}),
                                  spec, {});
  EXPECT_EQ(values(*got.dataset, 0), (Doubles{1, 2, 3}));
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{1, 1, 1}));
  EXPECT_EQ(values(*got.dataset, 2), (Doubles{2, 3, -100}));
}

// A model that takes tokens alone computes padding, too, but does not learn to predict it.
TEST(Bind, PaddingIsNoNextToken) {
  const DataSpec spec{{{"input_ids", DType::kInt64, {3}, 10}}, next_tokens(3, 10)};
  const BoundData got =
      bind_data(split({column<int>("input_ids", {2, 3}, {1, 2, 0, 4, 5, 6}),
                       column<int>("attention_mask", {2, 3}, {1, 1, 0, 1, 1, 1})}),
                spec, {});
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{2, -100, -100, 5, 6, -100}));
  EXPECT_TRUE(got.warnings.empty());
  const BoundData longer = bind_data(split({column<int>("input_ids", {1, 4}, {1, 2, 3, 0}),
                                            column<int>("attention_mask", {1, 4}, {1, 1, 1, 0})}),
                                     spec, {});
  EXPECT_EQ(values(*longer.dataset, 1), (Doubles{2, 3, -100}));
}

TEST(Bind, AnArrayWithOneAxisIsAStreamOfTokens) {
  const DataSpec spec{{{"input_ids", DType::kInt64, {2}, 10}}, next_tokens(2, 10)};
  const BoundData got =
      bind_data(split({column<std::int32_t>("tokens", {5}, {1, 2, 3, 4, 5})}), spec, {});
  EXPECT_EQ(values(*got.dataset, 0), (Doubles{1, 2, 3, 4}));
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{2, 3, 4, 5}));
}

TEST(Bind, AGraphWithItsLossInsideHasAnInputForTheLabels) {
  const BoundData got =
      bind_data(split({kX, kY}),
                {{float_input("x", {2}), {"labels", DType::kInt64, {}, -1}}, std::nullopt}, {});
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{0, 1}));
}

}  // namespace
}  // namespace pipetrain
