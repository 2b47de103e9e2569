// Next tokens are those of the input that takes tokens, wherever it is among the inputs.
#include <gtest/gtest.h>

#include "data/binding/bind.h"
#include "support/data_files.h"

namespace pipetrain {
namespace {

using Doubles = std::vector<double>;

RawColumn ids_of(const std::string& name, Shape shape, std::vector<std::int64_t> ids,
                 ColumnRole role = ColumnRole::kUnknown) {
  return {
      name,    HostTensor::of<std::int64_t>(std::move(shape), std::span<const std::int64_t>(ids)),
      "f.npz", role,
      {},      {},
      {}};
}

LabelSpec tokens_behind(std::int64_t length) {
  LabelSpec out;
  out.classes = 10;
  out.sample_shape = Shape{length};
  out.shifted_input = true;
  return out;
}

TEST(NextTokens, AMaskMayComeFirst) {
  const DataSpec spec{
      {{"attention_mask", DType::kInt64, {3}, -1}, {"input_ids", DType::kInt64, {3}, 10}},
      tokens_behind(3)};
  const RawColumn ids = ids_of("input_ids", {1, 3}, {7, 8, 9});
  const RawColumn mask = ids_of("attention_mask", {1, 3}, {1, 1, 0});
  EXPECT_EQ(values(*bind_data({{mask, ids}}, spec, {}).dataset, 2), (Doubles{8, -100, -100}));
  // Filled where the data have none.
  EXPECT_EQ(values(*bind_data({{ids}}, spec, {}).dataset, 2), (Doubles{8, 9, -100}));
  // Labels that are the tokens themselves.
  const RawColumn labels = ids_of("labels", {1, 3}, {-100, 8, 9}, ColumnRole::kLabel);
  EXPECT_EQ(values(*bind_data({{ids, labels}}, spec, {}).dataset, 2), (Doubles{8, 9, -100}));
}

TEST(NextTokens, ADecoderMayComeBehindSounds) {
  const DataSpec spec{{{"input_features", DType::kFloat32, {2, 2}, -1},
                       {"decoder_input_ids", DType::kInt64, {3}, 10}},
                      tokens_behind(3)};
  const std::vector<float> sounds = {1, 2, 3, 4};
  const RawColumn features = {"input_features",
                              HostTensor::of<float>({1, 2, 2}, std::span<const float>(sounds)),
                              "f.npz",
                              ColumnRole::kUnknown,
                              {},
                              {},
                              {}};
  const RawColumn ids = ids_of("decoder_input_ids", {1, 3}, {7, 8, 9});
  EXPECT_EQ(values(*bind_data({{features, ids}}, spec, {}).dataset, 2), (Doubles{8, 9, -100}));
}

}  // namespace
}  // namespace pipetrain
