// Tables with words and gaps. tests/oracle/check_tables.py compares with scikit-learn.
#include "data/formats/table_encoding.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "base/error.h"

namespace pipetrain {
namespace {

using Doubles = std::vector<double>;
using Names = std::vector<std::string>;

const char* const kTable =
    "id,age,city,price\n"
    "1,20,Rome,1.5\n"
    "2,,Paris,2.5\n"
    "3,40,,3.5\n"
    "4,60,Rome,4.5\n";

RawSplit read(const std::string& text, const CsvOptions& options) {
  std::vector<std::string> notes;
  return parse_csv(text, "t.csv", options, notes);
}

CsvOptions chosen() {
  CsvOptions options;
  options.drop = {"id"};
  options.categories = CsvOptions::Categories::kOneHot;
  options.missing = CsvOptions::Missing::kMean;
  return options;
}

std::string refusal(const std::string& text, const CsvOptions& options) {
  try {
    read(text, options);
  } catch (const Error& error) {
    return error.message();
  }
  return "nothing";
}

TEST(TableEncoding, OneHotAndMeans) {
  const RawSplit got = read(kTable, chosen());
  EXPECT_EQ(got.columns[0].field_names, (Names{"age", "city=Paris", "city=Rome"}));
  EXPECT_EQ(got.columns[0].values.to_doubles(), (Doubles{20, 0, 1, 40, 1, 0, 40, 0, 1, 60, 0, 1}));
  EXPECT_EQ(got.columns[1].values.to_doubles(), (Doubles{1.5, 2.5, 3.5, 4.5}));
}

TEST(TableEncoding, CodesAndMarkers) {
  CsvOptions options = chosen();
  options.categories = CsvOptions::Categories::kCodes;
  options.missing = CsvOptions::Missing::kMarker;
  const RawSplit got = read(kTable, options);
  // The empty word is the first category.
  EXPECT_EQ(got.columns[0].field_names, (Names{"age", "age missing", "city"}));
  EXPECT_EQ(got.columns[0].values.to_doubles(), (Doubles{20, 0, 2, 40, 1, 1, 40, 0, 0, 60, 0, 2}));
}

TEST(TableEncoding, IsFittedToTheTrainingRows) {
  CsvOptions options = chosen();
  options.scale = CsvOptions::Scale::kStandard;
  options.training_rows = [](std::size_t rows) {
    EXPECT_EQ(rows, 4u);
    return std::vector<std::size_t>{0, 2};
  };
  const RawSplit got = read(kTable, options);
  // Of 20 and 40: mean 30, deviation 10; Paris is not among the training rows.
  EXPECT_EQ(got.columns[0].field_names, (Names{"age", "city=Rome"}));
  EXPECT_EQ(got.columns[0].values.to_doubles(), (Doubles{-1, 1, 0, 0, 1, 1, 3, 1}));
}

TEST(TableEncoding, GapsThatTrainingRowsDoNotHaveAreNoCategory) {
  CsvOptions options = chosen();
  options.missing = CsvOptions::Missing::kMarker;
  options.training_rows = [](std::size_t) { return std::vector<std::size_t>{0, 1, 3}; };
  const RawSplit got = read(kTable, options);
  EXPECT_EQ(got.columns[0].field_names, (Names{"age", "age missing", "city=Paris", "city=Rome"}));
  EXPECT_EQ(got.columns[0].values.to_doubles(),
            (Doubles{20, 0, 0, 1, 40, 1, 1, 0, 40, 0, 0, 0, 60, 0, 0, 1}));
  CsvOptions later;
  later.encoding = got.encoding;
  EXPECT_EQ(read("age,city\n1,\n2,Rome\n", later).columns[0].values.to_doubles(),
            (Doubles{1, 0, 0, 0, 2, 0, 0, 1}));
  options.categories = CsvOptions::Categories::kCodes;
  const std::string said = refusal(kTable, options);
  EXPECT_NE(said.find("line 4, column \"city\" is missing, as no cell"), std::string::npos) << said;
  EXPECT_EQ(said.find("marker"), std::string::npos) << said;
  options.bad_cells_as_nan = true;
  const Doubles codes = read(kTable, options).columns[0].values.to_doubles();
  ASSERT_EQ(codes.size(), 12u);
  EXPECT_EQ((Doubles{codes[2], codes[5], codes[11]}), (Doubles{1, 0, 1}));
  EXPECT_TRUE(std::isnan(codes[8]));
}

TEST(TableEncoding, GapsCountInTheDeviationOfAFilledColumn) {
  CsvOptions options = chosen();
  options.scale = CsvOptions::Scale::kStandard;
  const TableEncoding got = TableEncoding::parse(read(kTable, options).encoding);
  EXPECT_EQ(got.columns[0].mean, 40);
  EXPECT_DOUBLE_EQ(got.columns[0].deviation, std::sqrt((400.0 + 0 + 0 + 400) / 4));
}

TEST(TableEncoding, AColumnOfOneValueIsNotDividedByRoundingErrors) {
  CsvOptions options;
  options.scale = CsvOptions::Scale::kStandard;
  std::string text = "a,y\n";
  for (int i = 0; i < 10; ++i) text += "0.1,1\n";
  CsvOptions later;
  later.encoding = read(text, options).encoding;
  EXPECT_FLOAT_EQ(static_cast<float>(read("a,y\n0.2,1\n", later).columns[0].values.to_doubles()[0]),
                  0.1F);
}

TEST(TableEncoding, ColumnsOfTheSameNameStayApart) {
  CsvOptions options;
  options.missing = CsvOptions::Missing::kMean;
  for (const std::string one : {"a", ""}) {
    const std::string text = fmt::format("{0},{0},b,y\n1,2,3,0\n4,5,6,1\n", one);
    CsvOptions later;
    later.encoding = read(text, options).encoding;
    EXPECT_EQ(read(text, later).columns[0].values.to_doubles(), (Doubles{1, 2, 3, 4, 5, 6}));
    EXPECT_NE(refusal(one + ",b\n1,2\n", later).find("no further column"), std::string::npos);
  }
  options.drop = {"a"};
  EXPECT_EQ(read("a,a,b,y\n1,2,3,0\n", options).columns[0].values.to_doubles(), Doubles{3});
}

TEST(TableEncoding, NumbersWithNamesAreFoundByName) {
  CsvOptions later;
  const RawSplit got = read("a,b,price\n1,2,3\n4,5,6\n", {});
  EXPECT_FALSE(got.is_encoded);
  later.encoding = got.encoding;
  // Another order, and a column that training did not have.
  for (const char* text : {"price,b,id,a\n3,2,9,1\n6,5,9,4\n", "1,2,3\n4,5,6\n"}) {
    const RawSplit other = read(text, later);
    ASSERT_EQ(other.columns.size(), 2u) << text;
    EXPECT_EQ(other.columns[0].values.to_doubles(), (Doubles{1, 2, 4, 5})) << text;
    EXPECT_EQ(other.columns[1].values.to_doubles(), (Doubles{3, 6})) << text;
    EXPECT_FALSE(other.is_encoded) << text;
  }
  // To be predicted: without labels.
  for (const char* text : {"b,a\n2,1\n5,4\n", "1,2\n4,5\n"}) {
    const RawSplit other = read(text, later);
    ASSERT_EQ(other.columns.size(), 1u) << text;
    EXPECT_EQ(other.columns[0].values.to_doubles(), (Doubles{1, 2, 4, 5})) << text;
  }
  EXPECT_NE(
      refusal("a,c,price\n1,2,3\n", later).find("no column \"b\", which the model was trained"),
      std::string::npos);
  // Labels of another name, which are no features.
  for (const char* text : {"b,a,cost\n2,1,3\n", "cost,b,a\n3,2,1\n", "id,class,b,a\n9,3,2,1\n"}) {
    const RawSplit other = read(text, later);
    EXPECT_EQ(other.columns[0].values.to_doubles(), (Doubles{1, 2})) << text;
    EXPECT_EQ(other.columns[1].values.to_doubles(), Doubles{3}) << text;
  }
  // A label that training was told by its place.
  CsvOptions placed = later;
  for (const char* place : {"2", "-1", "last"}) {
    placed.label_column = place;
    EXPECT_EQ(read("price,b,a\n3,2,1\n", placed).columns[1].values.to_doubles(), Doubles{3});
  }
  EXPECT_NE(refusal("a,b,price\n1,,3\n", later).find("as it is in the training data"),
            std::string::npos);
  // Names that do not tell columns apart.
  EXPECT_EQ(read("a,a,y\n1,2,3\n", {}).encoding, "");
  EXPECT_EQ(read("1,2,3\n4,5,6\n", {}).encoding, "");
}

TEST(TableEncoding, ChosenNumbersWithoutNamesAreFoundByPlace) {
  CsvOptions options, later;
  options.drop = {"0"};
  later.encoding = read("1,10,5\n2,20,6\n", options).encoding;
  for (const char* text : {"9,7,0\n", "9,7\n"})
    EXPECT_EQ(read(text, later).columns[0].values.to_doubles(), Doubles{7}) << text;
}

TEST(TableEncoding, ATableOfWordsMayHaveAHeader) {
  const auto rows = [](const std::string& text, CsvOptions options) {
    options.categories = CsvOptions::Categories::kOneHot;
    return read(text, options).columns[0].rows();
  };
  const std::string words = "round,red,p\nflat,blue,e\nround,blue,p\n";
  EXPECT_EQ(rows("shape,color,label\n" + words, {}), 3u);
  EXPECT_EQ(rows(words, {}), 3u);
  CsvOptions options;
  options.label_column = "kind";
  EXPECT_EQ(rows("shape,color,kind\n" + words, options), 3u);
  // A word like others below it.
  EXPECT_EQ(rows("n,y,e\ny,n,p\nn,n,e\ny,y,p\n", {}), 4u);
}

TEST(TableEncoding, ARowIsNotLostAsAHeader) {
  CsvOptions options;
  options.categories = CsvOptions::Categories::kOneHot;
  options.missing = CsvOptions::Missing::kMarker;
  std::vector<std::string> notes;
  const auto rows = [&](const std::string& text) {
    notes.clear();
    return parse_csv(text, "t.csv", options, notes).columns[0].rows();
  };
  EXPECT_EQ(rows(",male,yes\n22,female,no\n23,male,no\n24,female,yes\n25,male,no\n"), 5u);
  for (const char* gap : {"?", "NA", "null"})
    EXPECT_EQ(rows(std::string(gap) + ",1,0\n5,2,1\n6,3,0\n"), 3u) << gap;
  EXPECT_EQ(rows("round,red,yes\n"), 1u);
  std::string colors = "violet,high\n";
  for (int i = 0; i < 100; ++i) colors += "red,low\nblue,low\n";
  EXPECT_EQ(rows(colors), 201u);
  ASSERT_EQ(notes.empty(), false);
  EXPECT_NE(notes.at(0).find("the first row is read as data"), std::string::npos);
  // Words of which one might name labels.
  EXPECT_EQ(rows("upper,class\nlower,class\nupper,mass\n"), 3u);
  EXPECT_EQ(rows("upper,class\nlower,mass\nupper,mass\n"), 3u);
  options.label_column = "none";
  EXPECT_EQ(rows("red,none\nblue,some\n"), 2u);
  // A damaged number stays one.
  options.label_column = "";
  options.missing = CsvOptions::Missing::kError;
  options.categories = CsvOptions::Categories::kNone;
  EXPECT_NE(refusal("1.5x,yes\n2,no\n3,yes\n", options).find("\"1.5x\" is not a number"),
            std::string::npos);
}

TEST(TableEncoding, ColumnsOfAWideTableAreBoundInLinearTime) {
  std::string text = "0";
  for (int i = 1; i < 20000; ++i) text += ",0";
  CsvOptions options;
  options.scale = CsvOptions::Scale::kStandard;
  CsvOptions later;
  later.encoding = read(text + "\n" + text + "\n", options).encoding;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(read(text + "\n", later).columns[0].values.shape()[1], 19999);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

TEST(TableEncoding, OfATrainedModelReadsOtherTables) {
  CsvOptions later;
  later.encoding = read(kTable, chosen()).encoding;
  // Other order, no labels, a new word.
  const RawSplit got = read("city,age\nOslo,7\nParis,\n", later);
  EXPECT_EQ(got.columns.size(), 1u);
  EXPECT_EQ(got.columns[0].values.to_doubles(), (Doubles{7, 0, 0, 40, 1, 0}));
  EXPECT_NE(refusal("city,height\nOslo,7\n", later).find("no column \"age\""), std::string::npos);
}

TEST(TableEncoding, WithoutAHeaderColumnsHaveNumbers) {
  CsvOptions options;
  options.categories = CsvOptions::Categories::kOneHot;
  options.drop = {"0"};
  const RawSplit got = read("1,a,5\n2,b,6\n", options);
  EXPECT_EQ(got.columns[0].values.to_doubles(), (Doubles{1, 0, 0, 1}));
  CsvOptions later;
  later.encoding = got.encoding;
  EXPECT_EQ(read("9,b,0\n", later).columns[0].values.to_doubles(), (Doubles{0, 1}));
}

TEST(TableEncoding, RefusalsNameTheOption) {
  CsvOptions options;
  options.drop = {"city"};
  EXPECT_NE(refusal(kTable, options).find("`missing` mean"), std::string::npos);
  options.drop = {"age"};
  EXPECT_NE(refusal(kTable, options).find("`categories` one-hot"), std::string::npos);
  options.categories = CsvOptions::Categories::kCodes;
  EXPECT_NE(refusal(kTable, options).find("line 4, column \"city\" is missing"), std::string::npos);
  options.drop = {"height"};
  EXPECT_NE(refusal(kTable, options).find("its header is id, age, city, price"), std::string::npos);
  options.drop = {};
  options.features = {"id", "price"};
  EXPECT_NE(refusal(kTable, options).find("\"price\" of t.csv is the label"), std::string::npos);
}

TEST(TableEncoding, DamagedTextIsRefused) {
  const std::string good = read(kTable, chosen()).encoding;
  EXPECT_EQ(TableEncoding::parse(good).text(), good);
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_THROW(TableEncoding::parse(good.substr(0, size)), Error) << size;
  EXPECT_THROW(
      TableEncoding::parse(R"({"header":true,"label":"","columns":[{"name":"a","kind":"number",)"
                           R"("deviation":0}]})"),
      Error);
}

}  // namespace
}  // namespace pipetrain
