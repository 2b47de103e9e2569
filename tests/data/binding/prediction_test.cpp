// Data for eval and predict: labels are no inputs, and inputs have the scale of the training.
#include <gtest/gtest.h>

#include "data/binding/bind.h"
#include "support/data_files.h"

namespace pipetrain {
namespace {

using Doubles = std::vector<double>;

RawColumn pairs_of(const std::string& name, std::vector<float> values,
                   ColumnRole role = ColumnRole::kUnknown) {
  return {
      name, HostTensor::of<float>({2, 2}, std::span<const float>(values)), "f.npz", role, {}, {},
      {}};
}

ModelInput pairs_for(const std::string& name) { return {name, DType::kFloat32, Shape{2}, -1}; }

DataSpec prediction_of(std::vector<ModelInput> inputs) {
  DataSpec out{std::move(inputs), std::nullopt};
  out.is_prediction = true;
  return out;
}

TEST(Prediction, LabelsAreNoMask) {
  const RawSplit data{
      {pairs_of("input_ids", {5, 6, 7, 8}), pairs_of("labels", {0, 1, 1, 0}, ColumnRole::kLabel)}};
  const BoundData got =
      bind_data(data, prediction_of({pairs_for("input_ids"), pairs_for("attention_mask")}), {});
  EXPECT_EQ(values(*got.dataset, 0), (Doubles{5, 6, 7, 8}));
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{1, 1, 1, 1}));
}

TEST(Prediction, LabelsInFrontOfTheInputStayLabels) {
  const RawSplit data{
      {pairs_of("label", {0, 1, 1, 0}, ColumnRole::kLabel), pairs_of("values", {5, 6, 7, 8})}};
  const BoundData got = bind_data(data, prediction_of({pairs_for("x")}), {});
  EXPECT_EQ(values(*got.dataset, 0), (Doubles{5, 6, 7, 8}));
}

TEST(Prediction, PositionsBehindTheLastOneAreRefused) {
  const RawSplit data{{pairs_of("input_ids", {5, 6, 7, 8})}};
  DataSpec spec =
      prediction_of({pairs_for("input_ids"), {"position_ids", DType::kInt64, Shape{2}, 2}});
  EXPECT_EQ(values(*bind_data(data, spec, {}).dataset, 1), (Doubles{0, 1, 0, 1}));
  spec.inputs[1].upper_bound = 1;
  expect_contains(data_error([&] { bind_data(data, spec, {}); }, ErrorKind::kModel),
                  "\"position_ids\" has 1 positions");
}

// Its inputs may have any names.
TEST(Prediction, AGraphWithItsLossInsideTakesLabelsLast) {
  const RawSplit data{
      {pairs_of("label", {0, 1, 1, 0}, ColumnRole::kLabel), pairs_of("values", {5, 6, 7, 8})}};
  for (const char* target : {"wanted", "mask"}) {
    const DataSpec training{{pairs_for("image"), pairs_for(target)}, std::nullopt};
    const BoundData got = bind_data(data, training, {});
    EXPECT_EQ(values(*got.dataset, 0), (Doubles{5, 6, 7, 8})) << target;
    EXPECT_EQ(values(*got.dataset, 1), (Doubles{0, 1, 1, 0})) << target;
  }
  const BoundData got =
      bind_data(data, prediction_of({pairs_for("image"), pairs_for("wanted")}), {});
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{0, 1, 1, 0}));
}

TEST(Prediction, EveryInputHasItsDivisorOfTheTraining) {
  BindOptions options;
  options.normalization = Normalization::parse(R"(max:{"a":10,"b":1000})");
  const RawSplit data{
      {pairs_of("a", {5, 1, 0, 2}), pairs_of("b", {500, 1, 0, 250}), pairs_of("c", {5, 6, 7, 8})}};
  const BoundData got =
      bind_data(data, prediction_of({pairs_for("a"), pairs_for("b"), pairs_for("c")}), options);
  EXPECT_EQ(values(*got.dataset, 0), (Doubles{0.5, 0.1F, 0, 0.2F}));
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{0.5, 0.001F, 0, 0.25}));
  EXPECT_EQ(values(*got.dataset, 2), (Doubles{5, 6, 7, 8}));  // which it does not name
  for (const char* wrong :
       {"max:", "max:{}", "max:[10]", R"(max:{"a":0})", R"(max:{"a":"b"})", R"(max:{"a":1e400})"})
    expect_contains(data_error([&] { Normalization::parse(wrong); }, ErrorKind::kUsage), wrong);
}

}  // namespace
}  // namespace pipetrain
