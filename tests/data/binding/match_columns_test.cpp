// Which arrays feed masks and the like, which can be filled in.
#include "data/binding/match_columns.h"

#include <gtest/gtest.h>

#include "data/binding/bind.h"
#include "support/data_files.h"

namespace pipetrain {
namespace {

using Doubles = std::vector<double>;

/// Rows of three whole numbers.
RawColumn triples_of(const std::string& name, std::vector<std::int64_t> numbers) {
  RawColumn out;
  out.name = name;
  out.file = "f.npz";
  const auto rows = static_cast<std::int64_t>(numbers.size() / 3);
  out.values = HostTensor::of<std::int64_t>(Shape{rows, 3}, numbers);
  return out;
}

ModelInput triples_for(const std::string& name) { return {name, DType::kInt64, Shape{3}, -1}; }

TEST(MatchColumns, AMaskMadeForTheEncoderIsNotTheDecoders) {
  RawColumn mask = triples_of("attention_mask", {1, 1, 0});
  mask.is_optional = true;
  const RawColumn decoder = triples_of("decoder_ids", {7, 8, 0});
  const RawSplit both{{triples_of("ids", {5, 6, 0}), decoder, mask}};
  const DataSpec of_both{{triples_for("ids"), triples_for("encoder_mask"),
                          triples_for("decoder_ids"), triples_for("decoder_attention_mask")},
                         std::nullopt};
  const BoundData got = bind_data(both, of_both, {});
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{1, 1, 0}));
  EXPECT_EQ(values(*got.dataset, 3), (Doubles{1, 1, 1}));
  // Where there is no encoder, the tokens are the decoder's.
  const RawSplit one{{decoder, mask}};
  const DataSpec of_one{{triples_for("decoder_ids"), triples_for("decoder_attention_mask")},
                        std::nullopt};
  EXPECT_EQ(values(*bind_data(one, of_one, {}).dataset, 1), (Doubles{1, 1, 0}));
}

TEST(MatchColumns, WhatIsLeftOverIsNoMask) {
  RawColumn labels = triples_of("y", {0, 0, 0});
  labels.values = HostTensor::of<std::int64_t>(Shape{1}, std::vector<std::int64_t>{1});
  labels.role = ColumnRole::kLabel;
  DataSpec spec{{triples_for("ids"), triples_for("attention_mask")}, LabelSpec{}};
  spec.label->classes = 2;
  const auto bound = [&](const RawColumn& other) {
    const RawSplit data{{triples_of("ids", {5, 6, 7}), other, labels}};
    return bind_data(data, spec, {});
  };
  RawColumn number = labels;
  number.name = "number";
  number.role = ColumnRole::kUnknown;
  for (const RawColumn& other :
       {number, triples_of("token_type_ids", {0, 0, 1}), triples_of("entities", {4, 0, 1}),
        triples_of("special_tokens_mask", {1, 0, 1})}) {
    const BoundData got = bound(other);
    EXPECT_EQ(values(*got.dataset, 1), (Doubles{1, 1, 1})) << other.name;
    ASSERT_EQ(got.warnings.size(), 2u) << other.name;
    expect_contains(got.warnings[1], "\"" + other.name + "\"");
    expect_contains(got.warnings[1], "is not used");
  }
  const BoundData got = bound(triples_of("valid", {1, 1, 0}));
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{1, 1, 0}));
  EXPECT_TRUE(got.warnings.empty());
}

TEST(MatchColumns, WhichTokensAreSpecialIsNeitherInputNorLabel) {
  const RawColumn special = triples_of("special_tokens_mask", {1, 0, 1});
  DataSpec spec{{triples_for("ids")}, LabelSpec{}};
  spec.label->classes = 8;
  spec.label->sample_shape = Shape{3};
  const RawColumn tokens = triples_of("tokens", {5, 6, 7}), tags = triples_of("tags", {1, 2, 3});
  const BoundData got = bind_data(RawSplit{{special, tokens, tags}}, spec, {});
  EXPECT_EQ(values(*got.dataset, 0), (Doubles{5, 6, 7}));
  EXPECT_EQ(values(*got.dataset, 1), (Doubles{1, 2, 3}));
  ASSERT_EQ(got.warnings.size(), 1u);
  expect_contains(got.warnings[0], "\"special_tokens_mask\"");
  expect_contains(data_error([&] {
                    bind_data(RawSplit{{tokens, special}}, spec, {});
                  }),
                  "has no labels");
  BindOptions options;
  options.bindings = {{"labels", "special_tokens_mask"}};
  EXPECT_EQ(values(*bind_data(RawSplit{{tokens, special}}, spec, options).dataset, 1),
            (Doubles{1, 0, 1}));
  // An input of that name has it.
  spec = {{triples_for("ids"), triples_for("special_tokens_mask")}, std::nullopt};
  EXPECT_EQ(values(*bind_data(RawSplit{{tokens, special}}, spec, {}).dataset, 1),
            (Doubles{1, 0, 1}));
}

// An output (N, 2, 3) has three classes at two positions; it was meant the other way round.
TEST(MatchColumns, LabelsOfThePositionsOfASecondAxisHaveAHint) {
  DataSpec spec{{triples_for("ids")}, LabelSpec{}};
  spec.label->classes = 3;
  spec.label->sample_shape = Shape{2};
  const auto refused = [&](const RawColumn& labels) {
    return data_error([&] {
      bind_data(RawSplit{{triples_of("ids", {5, 6, 7}), labels}}, spec, {});
    });
  };
  RawColumn labels = triples_of("y", {0, 1, 1});
  expect_contains(refused(labels), "add a Transpose to (N, L, C)");
  labels.values = HostTensor::of<std::int64_t>(Shape{1, 4}, std::vector<std::int64_t>{0, 1, 1, 0});
  EXPECT_EQ(refused(labels).find("Transpose"), std::string::npos);
}

TEST(MatchColumns, AMaskThatTheGraphComparesWithHasAnyClasses) {
  const RawSplit data{{triples_of("a", {5, 6, 7}), triples_of("b", {4, 0, 2})}};
  const DataSpec spec{{triples_for("pixels"), triples_for("mask")}, std::nullopt};
  EXPECT_EQ(values(*bind_data(data, spec, {}).dataset, 1), (Doubles{4, 0, 2}));
}

}  // namespace
}  // namespace pipetrain
