// Models that compute their loss themselves: labels are inputs, and keep their values.
#include <gtest/gtest.h>

#include "data/binding/bind.h"
#include "support/data_files.h"

namespace pipetrain {
namespace {

using Doubles = std::vector<double>;

RawColumn pixels_of(const std::string& name, std::vector<std::uint8_t> values,
                    ColumnRole role = ColumnRole::kUnknown) {
  return {name,    HostTensor::of<std::uint8_t>({1, 2, 2}, std::span<const std::uint8_t>(values)),
          "f.npz", role,
          {},      {},
          {}};
}

ModelInput pixels_for(const std::string& name, DType dtype = DType::kFloat32) {
  return {name, dtype, Shape{2, 2}, -1};
}

BindOptions augmented(const char* how) {
  BindOptions out;
  out.image.augmentation = Augmentation::parse(how);
  return out;
}

const RawColumn kImage = pixels_of("x", {0, 255, 255, 0});
const RawSplit kMasked{{kImage, pixels_of("y", {0, 1, 2, 1}, ColumnRole::kLabel)}};
const Doubles kClasses{0, 1, 2, 1};

TEST(LabelInputs, AreNotScaled) {
  const RawSplit by_name{{kImage, pixels_of("target", {0, 1, 2, 1})}};
  for (const auto& [normalization, pixels] : {std::pair<const char*, Doubles>{"auto", {0, 1, 1, 0}},
                                              {"max", {0, 1, 1, 0}},
                                              {"0.5/0.5", {-1, 1, 1, -1}}}) {
    BindOptions options;
    options.normalization = Normalization::parse(normalization);
    for (const auto& [data, name] :
         {std::pair<const RawSplit*, const char*>{&kMasked, "truth"}, {&by_name, "target"}}) {
      const BoundData got =
          bind_data(*data, {{pixels_for("x"), pixels_for(name)}, std::nullopt}, options);
      EXPECT_EQ(values(*got.dataset, 0), pixels) << normalization;
      EXPECT_EQ(values(*got.dataset, 1), kClasses) << normalization;
    }
  }
}

TEST(LabelInputs, AreNotAugmented) {
  for (const DType dtype : {DType::kFloat32, DType::kInt64}) {
    const DataSpec spec{{pixels_for("x"), pixels_for("truth", dtype)}, std::nullopt};
    const BoundData got = bind_data(kMasked, spec, augmented("brightness:0.5,noise:0.1"));
    HostTensor labels(got.dataset->columns()[1].batch_type(1));
    const std::vector<std::size_t> first = {0};
    got.dataset->gather_augmented(/*step=*/3, first, 1, labels.view());
    EXPECT_EQ(labels.to_doubles(), kClasses);
    for (const char* moves : {"flip", "crop:1"}) {
      expect_contains(
          data_error([&] { bind_data(kMasked, spec, augmented(moves)); }, ErrorKind::kUsage),
          "would move the pixels of images, but not their labels (2, 2)");
    }
  }
}

TEST(LabelInputs, OfTheSameArrayAsAnotherInputHaveItsScale) {
  BindOptions options = augmented("flip");
  options.bindings = {{"target", "x"}};
  const BoundData got =
      bind_data({{kImage}}, {{pixels_for("x"), pixels_for("target")}, std::nullopt}, options);
  EXPECT_EQ(values(*got.dataset, 0), (Doubles{0, 1, 1, 0}));
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{0, 1, 1, 0}));
}

// What a prediction needs are no labels, whatever its inputs are called.
TEST(LabelInputs, AreNoneOfPredictions) {
  DataSpec spec{{pixels_for("x"), pixels_for("y")}, std::nullopt};
  spec.is_prediction = true;
  const RawSplit pairs{{kImage, pixels_of("y", {255, 0, 0, 255}, ColumnRole::kLabel)}};
  EXPECT_EQ(values(*bind_data(pairs, spec, {}).dataset, 1), (Doubles{1, 0, 0, 1}));
}

}  // namespace
}  // namespace pipetrain
