#include "train/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

std::map<TokenId, int> counts(const std::vector<float>& logits, SamplingOptions options) {
  std::map<TokenId, int> out;
  for (std::uint64_t i = 0; i < 20000; ++i) ++out[choose_token(logits, options, i)];
  return out;
}

const std::vector<float> kLogits = {std::log(0.1f), std::log(0.5f), std::log(0.15f),
                                    std::log(0.25f)};

TEST(ChooseToken, TheLikeliestTheFirstOfEqualOnes) {
  EXPECT_EQ(choose_token(kLogits, {}, 0), 1u);
  EXPECT_EQ(choose_token(std::vector<float>{1, 3, 3}, {}, 0), 1u);
}

TEST(ChooseToken, AsOftenAsTheirProbabilities) {
  SamplingOptions options;
  options.temperature = 1;
  const auto all = counts(kLogits, options);
  // 20,000 draws: a deviation of 0.0035 at most.
  for (TokenId id = 0; id < 4; ++id)
    EXPECT_NEAR(all.at(id) / 20000.0, std::exp(static_cast<double>(kLogits[id])), 0.018);
  options.temperature = 0.5;  // squares
  EXPECT_NEAR(counts(kLogits, options).at(1) / 20000.0, 0.25 / 0.345, 0.018);
}

TEST(ChooseToken, AmongTheLikeliest) {
  SamplingOptions options;
  options.temperature = 1;
  options.top_k = 2;
  const auto two = counts(kLogits, options);
  EXPECT_EQ(two.size(), 2u);
  EXPECT_NEAR(two.at(1) / 20000.0, 0.5 / 0.75, 0.018);
  options.top_k = 0;
  options.top_p = 0.8;  // 0.5 + 0.25 are not enough
  EXPECT_EQ(counts(kLogits, options).size(), 3u);
  options.top_p = 0.7;
  EXPECT_EQ(counts(kLogits, options).size(), 2u);
  options.top_p = 1e-9;
  EXPECT_EQ(counts(kLogits, options).size(), 1u);
}

TEST(ChooseToken, ASeedRepeats) {
  SamplingOptions options;
  options.temperature = 1;
  std::vector<TokenId> first, second, other;
  for (std::uint64_t i = 0; i < 100; ++i) {
    first.push_back(choose_token(kLogits, options, i));
    second.push_back(choose_token(kLogits, options, i));
    SamplingOptions changed = options;
    changed.seed = 2;
    other.push_back(choose_token(kLogits, changed, i));
  }
  EXPECT_EQ(first, second);
  EXPECT_NE(first, other);
}

// Logits of token i at position p: i + 100 p, and one more for each following token.
ModelConfig model_of_four_positions(const TemporaryDirectory& directory) {
  OnnxBuilder builder("test");
  for (const char* name : {"input_ids", "position_ids"})
    builder.input(name, DType::kInt64, {{"batch", -1}, {"tokens", -1}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"tokens", -1}, {"", 6}});
  std::vector<float> tokens, positions;
  for (int i = 0; i < 6; ++i) {
    for (int k = 0; k < 6; ++k) tokens.push_back(static_cast<float>(i + k));
  }
  for (int p = 0; p < 4; ++p) positions.insert(positions.end(), 6, static_cast<float>(100 * p));
  builder.initializer("tokens.weight", HostTensor::of<float>({6, 6}, tokens));
  builder.initializer("positions.weight", HostTensor::of<float>({4, 6}, positions));
  builder.node("Gather", {"tokens.weight", "input_ids"}, {"token"});
  builder.node("Gather", {"positions.weight", "position_ids"}, {"position"});
  builder.node("Add", {"token", "position"}, {"logits"});
  ModelConfig out;
  out.path = (directory / "model.onnx").string();
  builder.write(out.path);
  return out;
}

TEST(TextModel, TakesAsManyTokensAsItHasPositions) {
  const TemporaryDirectory directory;
  const ModelConfig config = model_of_four_positions(directory);
  TextModel model(config, Backend::kCpu, read_onnx(config.path));
  const std::vector<TokenId> ids = {0, 1, 2, 3, 4, 5};
  for (std::size_t count = 1; count <= ids.size(); ++count) {
    const std::vector<float> logits = model.next_logits(std::span(ids).first(count));
    ASSERT_EQ(logits.size(), 6u);
    const std::size_t position = std::min<std::size_t>(count, 4) - 1;  // the last four count
    EXPECT_EQ(logits[0], static_cast<float>(count - 1 + 100 * position)) << count;
  }
  EXPECT_EQ(model.length(), 4u);
}

TEST(Predictor, TellsTheLengthsOfADecoder) {
  OnnxModel model;
  for (const auto& [name, length] :
       {std::pair{"input_ids", 8}, {"attention_mask", -1}, {"decoder_input_ids", 5}}) {
    OnnxValue input;
    input.name = name;
    input.dtype = DType::kInt64;
    input.dims = {{"batch", -1}, {"", length}};
    model.inputs.push_back(input);
  }
  TextOptions text;
  take_token_lengths(model, {}, text);
  EXPECT_EQ(text.model_length, 8u);
  EXPECT_EQ(text.other_rows, (std::map<std::string, std::size_t>{{"decoder_input_ids", 5}}));
}

TEST(Predictor, KnowsTheRowsOfTables) {
  const TemporaryDirectory directory;
  const Predictor predictor(model_of_four_positions(directory), Backend::kCpu, 1,
                            {{"input_ids", Shape{3}}, {"position_ids", Shape{3}}});
  const DataSpec spec = predictor.data_spec();
  ASSERT_EQ(spec.inputs.size(), 2u);
  EXPECT_EQ(spec.inputs[0].upper_bound, 6);
  EXPECT_EQ(spec.inputs[1].upper_bound, 4);
}

}  // namespace
}  // namespace pipetrain
