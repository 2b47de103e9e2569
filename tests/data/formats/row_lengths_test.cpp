// Rows of an encoder and of a decoder have lengths of their own, in all files of a data set.
#include <gtest/gtest.h>

#include "data/loading/open_data.h"
#include "data/rows/ragged_rows.h"
#include "data/rows/readers.h"
#include "support/data_files.h"

namespace pipetrain {
namespace {

using Doubles = std::vector<double>;
using RowsOfTokens = DataFiles;

std::string pair_of_rows(const std::string& source, const std::string& target,
                         const std::string& labels) {
  return "{\"input_ids\": [" + source + "], \"decoder_input_ids\": [" + target +
         "], \"labels\": [" + labels + "]}\n";
}

Doubles values_of(const RawSplit& split, const std::string& name) {
  for (const RawColumn& column : split.columns) {
    if (column.name == name) return column.values.to_doubles();
  }
  return {};
}

const std::string kPairsForTraining =
    pair_of_rows("5", "1, 2, 3", "2, 3, 9") + pair_of_rows("5, 6, 7, 8", "1", "9");
const std::string kShorterPairs =
    pair_of_rows("5", "1, 2", "2, 9") + pair_of_rows("7, 8", "1", "9");

TEST_F(RowsOfTokens, ValidationDataAreAsLongAsTheTrainings) {
  const std::string train = write("t.jsonl", kPairsForTraining);
  const std::string other = write("v.jsonl", kShorterPairs);
  const RawSplit split =
      read_jsonl(other, lengths_beside(read_jsonl(train).train, RowLengths())).train;
  EXPECT_EQ(values_of(split, "input_ids"), (Doubles{5, 0, 0, 0, 7, 8, 0, 0}));
  EXPECT_EQ(values_of(split, "decoder_input_ids"), (Doubles{1, 2, 0, 1, 0, 0}));
  EXPECT_EQ(values_of(split, "labels"), (Doubles{2, 9, -100, 9, -100, -100}));

  LabelSpec label;
  label.sample_shape = {3};
  label.classes = 10;
  const DataSpec spec{
      {{"input_ids", DType::kInt64, {4}, 10}, {"decoder_input_ids", DType::kInt64, {3}, 10}},
      label};
  DataOptions options;
  options.path = train;
  options.validation_path = other;
  const OpenedData opened = open_data(options, spec);
  EXPECT_EQ(values(*opened.validation, 1), (Doubles{1, 2, 0, 1, 0, 0}));
  EXPECT_EQ(values(*opened.validation, 2), (Doubles{2, 9, -100, 9, -100, -100}));
}

TEST_F(RowsOfTokens, ADecoderMayHaveAFixedLength) {
  RowLengths lengths(2);
  lengths.others = {{"decoder_input_ids", 4}};
  const RawSplit split = read_jsonl(write("t.jsonl", kShorterPairs), lengths).train;
  EXPECT_EQ(values_of(split, "input_ids"), (Doubles{5, 0, 7, 8}));
  EXPECT_EQ(values_of(split, "decoder_input_ids"), (Doubles{1, 2, 0, 0, 1, 0, 0, 0}));
  // Labels are as long as what they follow.
  EXPECT_EQ(values_of(split, "labels"), (Doubles{2, 9, -100, -100, 9, -100, -100, -100}));
}

}  // namespace
}  // namespace pipetrain
