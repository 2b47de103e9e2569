// Scales of inputs that are those of the training, whatever type other data have.
#include <gtest/gtest.h>

#include "data/binding/bind.h"
#include "data/rows/sparse_rows.h"
#include "support/data_files.h"

namespace pipetrain {
namespace {

using Doubles = std::vector<double>;

template <class T>
RawSplit two_pixels(std::vector<T> pixels) {
  RawColumn x, y;
  x.name = "x";
  y.name = "y";
  x.file = y.file = "f.npz";
  x.values = HostTensor::of<T>(Shape{1, 2}, std::span<const T>(pixels));
  y.values = HostTensor::of<std::int64_t>(Shape{1}, std::vector<std::int64_t>{0});
  y.role = ColumnRole::kLabel;
  return {{x, y}, nullptr};
}

const RawSplit kBytes = two_pixels<std::uint8_t>({51, 255});
const RawSplit kNumbers = two_pixels<float>({51, 255});
const RawSplit kFractions = two_pixels<float>({0.2f, 1});

DataSpec spec_of(Shape sample) {
  DataSpec spec;
  spec.inputs.push_back({"x", DType::kFloat32, std::move(sample), -1});
  spec.label = LabelSpec{};
  spec.label->classes = 2;
  return spec;
}

BoundData bind_pixels(const RawSplit& data, const std::string& normalization = "auto",
                      const BoundData* like = nullptr) {
  BindOptions options;
  options.normalization = Normalization::parse(normalization);
  return bind_data(data, spec_of({1, 1, 2}), options, like);
}

TEST(Scale, OfValidationDataIsThatOfTheTraining) {
  const BoundData of_bytes = bind_pixels(kBytes), of_numbers = bind_pixels(kNumbers);
  EXPECT_EQ(values(*of_bytes.dataset, 0), (Doubles{0.2f, 1}));
  EXPECT_EQ(values(*bind_pixels(kNumbers, "auto", &of_bytes).dataset, 0), (Doubles{0.2f, 1}));
  EXPECT_EQ(values(*bind_pixels(kBytes, "auto", &of_numbers).dataset, 0), (Doubles{51, 255}));
  const BoundData of_fractions = bind_pixels(kFractions);
  EXPECT_EQ(values(*bind_pixels(kBytes, "auto", &of_fractions).dataset, 0), (Doubles{0.2f, 1}));
}

TEST(Scale, NumbersThatAreNoFractionsAreNoticed) {
  EXPECT_FALSE(bind_pixels(kBytes).has_large_values);
  EXPECT_FALSE(bind_pixels(kFractions).has_large_values);
  EXPECT_TRUE(bind_pixels(kNumbers).has_large_values);
  EXPECT_TRUE(bind_pixels(two_pixels<float>({-0.5f, 1})).has_large_values);
  EXPECT_FALSE(bind_pixels(kNumbers, "255").has_large_values);
  RawSplit sparse = kBytes;
  for (const float largest : {1.0f, 255.0f}) {
    SparseRows rows;
    rows.values = {largest};
    rows.positions = {1};
    rows.ends = {1};
    rows.lines = {1};
    rows.width = 2;
    sparse.columns[0].values = HostTensor();
    sparse.columns[0].source = make_sparse_rows(std::move(rows));
    EXPECT_EQ(bind_data(sparse, spec_of({2}), {}).has_large_values, largest > 1);
  }
}

TEST(Scale, FractionsThatAreDividedAreNoticed) {
  const BoundData got = bind_pixels(kFractions, "255");
  ASSERT_EQ(got.warnings.size(), 1u);
  expect_contains(got.warnings[0], "lie in 0 … 1 and are divided by 255; if they have been");
  EXPECT_TRUE(bind_pixels(kNumbers, "255").warnings.empty());
  EXPECT_TRUE(bind_pixels(kFractions, "2").warnings.empty());
  EXPECT_TRUE(bind_pixels(two_pixels<std::uint8_t>({0, 1}), "255").warnings.empty());
}

// (0.2 - 0.5) / 0.25 = -1.2 and (1 - 0.5) / 0.25 = 2.
TEST(Scale, MeansComeAfterTheDivisorOfTheTraining) {
  const Normalization given = Normalization::parse("0.5/0.25:255");
  EXPECT_EQ(given.text(), "0.5/0.25:255");
  EXPECT_EQ(Normalization::parse("0.5/0.25").text(), "0.5/0.25");
  EXPECT_EQ(Normalization::parse("0.5/0.25:none").text(), "0.5/0.25:none");
  EXPECT_EQ(Normalization::parse("0.5/0.25:max:{\"a/b:c\":2}").of_training.at("a/b:c"), 2);
  for (const RawSplit& data : {kBytes, kNumbers}) {
    const Doubles got = values(*bind_pixels(data, "0.5/0.25:255").dataset, 0);
    EXPECT_NEAR(got[0], -1.2, 1e-6);
    EXPECT_NEAR(got[1], 2, 1e-6);
  }
  std::string nested = "1/2";
  for (int i = 0; i < 100000; ++i) nested += ":1/2";
  for (const std::string& wrong : {std::string("0.5/0.25:imagenet"), std::string("0.5/0.25:"),
                                   std::string("0.5/0.25:max:7"), nested})
    data_error([&] { Normalization::parse(wrong); }, ErrorKind::kUsage);
}

}  // namespace
}  // namespace pipetrain
