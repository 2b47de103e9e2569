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

}  // namespace
}  // namespace pipetrain
