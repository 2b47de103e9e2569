#include <gtest/gtest.h>

#include <clocale>
#include <cmath>
#include <locale>

#include "data/rows/readers.h"
#include "support/data_files.h"

namespace pipetrain {
namespace {

using Doubles = std::vector<double>;

RawSplit parse(const std::string& text, const CsvOptions& options = {}) {
  std::vector<std::string> notes;
  return parse_csv(text, "t.csv", options, notes);
}

CsvOptions label(const std::string& column) {
  CsvOptions options;
  options.label_column = column;
  return options;
}

TEST(Csv, LabelsAreTheLastColumn) {
  const RawSplit got = parse("1,2.5,0\n-3,4e2,1\n");
  ASSERT_EQ(got.columns.size(), 2u);
  EXPECT_EQ(got.columns[0].values.type().text(), "float32 (2, 2)");
  EXPECT_EQ(got.columns[0].values.to_doubles(), (Doubles{1, 2.5, -3, 400}));
  EXPECT_EQ(got.columns[1].values.to_doubles(), (Doubles{0, 1}));
  EXPECT_EQ(got.columns[1].role, ColumnRole::kLabel);
}

TEST(Csv, HeaderNamesTheLabelsAndTheFields) {
  const RawSplit got = parse("label,height,width\n7,1,2\n8,3,4\n");
  EXPECT_EQ(got.columns[0].field_names, (std::vector<std::string>{"height", "width"}));
  EXPECT_EQ(got.columns[0].values.to_doubles(), (Doubles{1, 2, 3, 4}));
  EXPECT_EQ(got.columns[1].values.to_doubles(), (Doubles{7, 8}));
}

// As long as there is a header, its names say where the labels are.
TEST(Csv, WithoutAHeaderLabelsAreWhereTheTrainingDataHaveThem) {
  CsvOptions options;
  options.encoding = parse("label,p,q\n2,3,4\n1,5,6\n").encoding;
  const RawSplit got = parse("0,5,6\n1,7,8\n", options);
  EXPECT_EQ(got.columns[0].values.to_doubles(), (Doubles{5, 6, 7, 8}));
  EXPECT_EQ(got.columns[1].values.to_doubles(), (Doubles{0, 1}));
  EXPECT_EQ(parse("5,6\n7,8\n", options).columns.size(), 1U);  // the features alone
  options.label_column = "last";
  EXPECT_EQ(parse("0,5,6\n1,7,8\n", options).columns[1].values.to_doubles(), (Doubles{6, 8}));
}

TEST(Csv, HeaderOfNumbersAndAWord) {
  EXPECT_EQ(parse("0,1,target\n5,6,1\n").columns[0].values.to_doubles(), (Doubles{5, 6}));
}

TEST(Csv, DecimalCommasBesideOtherDelimiters) {
  std::vector<std::string> notes;
  const RawSplit got = parse_csv("a;b;y\n1,5;-2,25e1;0\n3;\"4,125\";1\n", "t.csv", {}, notes);
  EXPECT_EQ(got.columns[0].values.to_doubles(), (Doubles{1.5, -22.5, 3, 4.125}));
  EXPECT_EQ(got.columns[0].field_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(notes.front(), "numbers have decimal commas");
  // Without a header the first line has commas before any semicolon.
  EXPECT_EQ(parse("1,5;2,5;0\n3,5;4,5;1\n").columns[0].values.to_doubles(),
            (Doubles{1.5, 2.5, 3.5, 4.5}));
  EXPECT_EQ(parse("1,5\t2\t0,5\n").columns[1].values.to_doubles(), Doubles{0.5});
  EXPECT_TRUE(looks_like_table("1,5;2,5;0\n3,5;4,5;1\n", true));
  // Beside decimal points they separate thousands. The names of columns may be numbers.
  expect_contains(data_error([] { parse("1,200\t2.5\n950\t0.5\n"); }),
                  "\"1,200\" is not a number; write numbers without separators of thousands");
  EXPECT_EQ(parse("400.5;401.5;y\n0,5;1,5;1\n").columns[0].values.to_doubles(),
            (Doubles{0.5, 1.5}));
  // Commas that separate stay separators.
  EXPECT_EQ(parse("1,5,0\n2,6,1\n").columns[0].values.to_doubles(), (Doubles{1, 5, 2, 6}));
  EXPECT_EQ(parse("a,b;c,y\n1,2,3\n").columns[0].field_names,
            (std::vector<std::string>{"a", "b;c"}));
}

TEST(Csv, DatesAndAmountsHaveAdviceOfTheirOwn) {
  const auto refused = [](const std::string& cell) {
    return data_error([&] { parse("a,y\n\"" + cell + "\",1\n2,3\n"); });
  };
  for (const char* date :
       {"2020-01-31", "2020-01-31 07:00:00", "31.1.20", "1/31/2020", "2020-01-31T07:00"})
    expect_contains(refused(date), "write dates as numbers");
  for (const char* amount : {"35,006.33", "$1,234", "€12", "50 %", "1'234'567"})
    expect_contains(refused(amount), "without separators of thousands");
  for (const char* word : {"A1", "30 km", "1-2", "x", "2020-1.31"})
    expect_contains(refused(word), "encode words with");
}

TEST(Csv, AmountsAreNoClasses) {
  expect_contains(data_error([&] { parse("a,price\n1,\"$1,200\"\n2,\"$900\"\n"); }),
                  "the label \"$1,200\" is not a number");
  expect_contains(data_error([&] { parse("a,price\n1,€12\n2,€9\n"); }),
                  "the label \"€12\" is not a number");
  for (const char* amount : {"12\u00a0000\u00a0€", "£12", "12’000", "¥12", "₹12", "12\u202f000"}) {
    const std::string text = std::string("a,price\n1,") + amount + "\n2,x\n";
    expect_contains(data_error([&] { parse(text); }), "without separators of thousands");
  }
}

TEST(Csv, NamesOfClassesMayEndInNumbers) {
  EXPECT_EQ(parse("1,класс 1\n2,класс 2\n").columns[1].class_names,
            (std::vector<std::string>{"класс 1", "класс 2"}));
  EXPECT_EQ(parse("1,类别2\n2,类别1\n").columns[1].values.to_doubles(), (Doubles{1, 0}));
}

TEST(Csv, AQuotientIsNoLabel) {
  EXPECT_EQ(parse("sales/target,x/y,price\n1,2,3\n").columns[1].values.to_doubles(), Doubles{3});
}

TEST(Csv, LabelColumnByNameNumberOrNone) {
  const std::string text = "a,b,c\n1,2,3\n";
  EXPECT_EQ(parse(text, label("b")).columns[1].values.to_doubles(), Doubles{2});
  EXPECT_EQ(parse(text, label("0")).columns[1].values.to_doubles(), Doubles{1});
  EXPECT_EQ(parse(text, label("-3")).columns[1].values.to_doubles(), Doubles{1});
  EXPECT_EQ(parse(text, label("last")).columns[1].values.to_doubles(), Doubles{3});
  EXPECT_EQ(parse(text, label("none")).columns.size(), 1u);
  expect_contains(data_error([&] { parse(text, label("d")); }), "no column \"d\"");
  expect_contains(data_error([&] { parse(text, label("3")); }), "no column \"3\"");
}

TEST(Csv, ColumnsOfAHeaderHaveNumbersToo) {
  CsvOptions options;
  options.drop = {"0"};
  EXPECT_EQ(parse("a,b,c\n1,2,3\n", options).columns[0].values.to_doubles(), Doubles{2});
  // But a name goes first.
  EXPECT_EQ(parse("a,0,c\n1,2,3\n", options).columns[0].values.to_doubles(), Doubles{1});
  options = {};
  options.features = {"1"};
  EXPECT_EQ(parse("a,b,c\n1,2,3\n", options).columns[0].values.to_doubles(), Doubles{2});
}

TEST(Csv, ANameOfTwoColumnsPicksNone) {
  const std::string text = "a,b,a,y\n1,2,3,4\n";
  expect_contains(data_error([&] { parse(text, label("a")); }),
                  "name the column by its number: 0 or 2");
  CsvOptions options;
  options.features = {"a"};
  expect_contains(data_error([&] { parse(text, options); }), "\"a\" more than once");
  // A trained file names its columns, and a number may be a name.
  options.features = {"2"};
  expect_contains(data_error([&] { parse(text, options); }), "columns 0 and 2 of");
  expect_contains(data_error([&] { parse("a,0,a,y\n1,2,3,4\n", label("a")); }),
                  "rename one of the columns");
  options.features = {"a", "b", "a"};
  EXPECT_EQ(parse(text, options).columns[0].values.to_doubles(), (Doubles{1, 2, 3}));
  options.features = {"0"};
  EXPECT_EQ(parse(text, options).columns[0].values.to_doubles(), Doubles{1});
}

TEST(Csv, NamesWithoutRowsAreAHeader) {
  expect_contains(data_error([] { parse("length,width,species\n"); }), "has a header and no rows");
}

TEST(Csv, QuotesSpacesCommentsBlankLinesAndByteOrderMark) {
  const RawSplit got = parse(
      "\xef\xbb\xbf# made by hand\n\"a, or \"\"A\"\"\", \"b\nc\" ,y\r\n\r\n 1 ,\" 2\",+3\r\n4,5,6");
  EXPECT_EQ(got.columns[0].field_names, (std::vector<std::string>{"a, or \"A\"", "b\nc"}));
  EXPECT_EQ(got.columns[0].values.to_doubles(), (Doubles{1, 2, 4, 5}));
  EXPECT_EQ(got.columns[0].lines, (std::vector<std::uint32_t>{5, 6}));
}

TEST(Csv, LinesBeginningWithAHashAreCommentsAndCounted) {
  CsvOptions words;
  words.categories = CsvOptions::Categories::kCodes;
  std::vector<std::string> notes;
  const RawSplit got = parse_csv(
      "color,size,label\n#red,1,0\n\"#00ff00\",2,1\n#blue,3,0\nred,3,0\n", "t.csv", words, notes);
  EXPECT_EQ(got.columns[1].values.to_doubles(), (Doubles{1, 0}));
  EXPECT_EQ(notes.at(1), "2 lines beginning with # passed over (\"#…\" in quotes is a cell)");
  // Units, or a row that has been taken out, below the header.
  EXPECT_EQ(parse("time,value\n# s,V\n0,1.0\n1,2.5\n").columns[1].values.to_doubles(),
            (Doubles{1, 2.5}));
  EXPECT_EQ(parse("a,b,y\n#1,2,0\n3,4,1\n").columns[1].values.to_doubles(), Doubles{1});
  EXPECT_EQ(parse("1,2,0\n#3,4,1\n5,6,1\n").columns[1].values.to_doubles(), (Doubles{0, 1}));
}

TEST(Csv, TabsBetweenEmptyCellsAreARow) {
  CsvOptions options;
  options.delimiter = '\t';
  options.missing = CsvOptions::Missing::kMean;
  options.label_column = "none";
  EXPECT_EQ(parse("a\tb\n1\t2\n\t\n3\t4\n \r\n", options).columns[0].values.to_doubles(),
            (Doubles{1, 2, 2, 3, 3, 4}));
}

TEST(Csv, WordsAsLabelsAreNumberedInByteOrder) {
  const RawSplit got = parse("5.1,setosa\n6.2,virginica\n4.9,Versicolor\n5.0,setosa\n");
  EXPECT_EQ(got.columns[1].class_names,
            (std::vector<std::string>{"Versicolor", "setosa", "virginica"}));
  EXPECT_EQ(got.columns[1].values.to_doubles(), (Doubles{1, 2, 0, 1}));
}

TEST(Csv, OtherDelimiters) {
  EXPECT_EQ(parse("1\t2\t3\n").columns[0].values.to_doubles(), (Doubles{1, 2}));
  EXPECT_EQ(parse("1;2;3\n").columns[0].values.to_doubles(), (Doubles{1, 2}));
  EXPECT_EQ(parse("1 2 3\n").columns[0].values.to_doubles(), (Doubles{1, 2}));
  CsvOptions tabs;
  tabs.delimiter = '\t';
  EXPECT_EQ(parse("1,5\t2\n1\t2\n", tabs).columns[0].values.to_doubles(), (Doubles{1.5, 1}));
  expect_contains(data_error([&] { parse("1,5,0\t2\n1\t2\n", tabs); }),
                  "\"1,5,0\" is not a number");
}

TEST(Csv, LargeWholeNumbersKeepTheirDigits) {
  const RawSplit got = parse("1,0.5,0\n16777217,0.5,1\n");
  EXPECT_EQ(got.columns[0].values.dtype(), DType::kFloat64);
  EXPECT_EQ(got.columns[0].values.to_doubles(), (Doubles{1, 0.5, 16777217, 0.5}));
}

TEST(Csv, DoesNotDependOnTheLocale) {
  const std::string before = std::setlocale(LC_ALL, nullptr);
  if (!std::setlocale(LC_ALL, "de_DE.UTF-8")) GTEST_SKIP() << "no locale de_DE.UTF-8 here";
  const Doubles got = parse("1.5,2\n").columns[0].values.to_doubles();
  std::setlocale(LC_ALL, before.c_str());
  EXPECT_EQ(got, Doubles{1.5});
}

/// The decimal point of streams while it lives. Unlike a locale of the system it is always there,
/// but the functions of C do not follow it.
class DecimalComma {
 public:
  DecimalComma() : before_(std::locale::global(std::locale(std::locale::classic(), new Comma))) {}
  ~DecimalComma() { std::locale::global(before_); }
  DecimalComma(const DecimalComma&) = delete;
  DecimalComma& operator=(const DecimalComma&) = delete;

 private:
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
  };
  std::locale before_;
};

TEST(Csv, DoesNotDependOnTheDecimalPointOfStreams) {
  const DecimalComma comma;
  EXPECT_EQ(parse("1.5,2\n").columns[0].values.to_doubles(), Doubles{1.5});
}

TEST(Csv, BadCellsNameFileLineAndColumn) {
  const auto error = [](const std::string& text) { return data_error([&] { parse(text); }); };
  EXPECT_EQ(
      error("1,2,3\n4,x,6\n"),
      "t.csv line 2, column 2: \"x\" is not a number; encode words with `categories` one-hot or "
      "codes, make tokens of texts with `tokenizer` FILE, or leave the column out: `drop-columns` "
      "1");
  EXPECT_EQ(error("a,b,y\n1,2,3\n\n4,,6\n"),
            "t.csv line 4, column 2 (b): \"\" is not a number; `missing` mean fills such cells, "
            "marker also marks them");
  EXPECT_EQ(error("1,2,3\n4,5\n"), "t.csv line 2 has 2 columns, line 1 has 3");
  EXPECT_EQ(error("#\n1,2,3\n4,5,6,7\n"), "t.csv line 3 has 4 columns, line 2 has 3");
  expect_contains(error("1,2\n3,0x10\n"), "\"0x10\" is not a number");
  expect_contains(error("1,2\n3,4five\n"), "\"4five\"");
  expect_contains(error("1,2\n\"3,4\n"), "line 2: a quoted field is never closed");
  expect_contains(error("1,2\n\"3\"4,5\n"), "closing quote");
  expect_contains(error(""), "no rows");
  expect_contains(error("# nothing\n\n"), "no rows");
  expect_contains(error("1\n2\n"), "one column");
  CsvOptions header;
  header.header = CsvOptions::Header::kYes;
  expect_contains(data_error([&] { parse("a,b\n", header); }), "header and no rows");
}

TEST(Csv, BadCellsCanBecomeNan) {
  CsvOptions options;
  options.bad_cells_as_nan = true;
  const RawSplit got = parse("1,2,0\n,x,1\n3,4,?\n", options);
  const Doubles x = got.columns[0].values.to_doubles(), y = got.columns[1].values.to_doubles();
  EXPECT_TRUE(std::isnan(x[2]) && std::isnan(x[3]) && std::isnan(y[2]));
  EXPECT_EQ(x[5], 4);
}

TEST(Csv, LabelsMayBeMissing) {
  CsvOptions options;
  options.label_may_be_missing = true;
  EXPECT_EQ(parse("a,y\n1,\n2,\n", options).columns.size(), 1u);
  EXPECT_EQ(parse("a,y\n1,NA\n2,?\n", options).columns.size(), 1u);
  const Doubles numbers = parse("a,y\n1,\n2,3\n", options).columns[1].values.to_doubles();
  EXPECT_TRUE(std::isnan(numbers[0]) && numbers[1] == 3);
  const RawSplit words = parse("a,b,y\n1,2,dog\n3,4,\n5,6,cat\n", options);
  EXPECT_EQ(words.columns[1].class_names, (std::vector<std::string>{"cat", "dog"}));
  const Doubles classes = words.columns[1].values.to_doubles();
  EXPECT_TRUE(classes[0] == 1 && std::isnan(classes[1]) && classes[2] == 0);
  // Gaps in all rows that are looked at first do not make words of numbers.
  std::string gaps = "a,y\n";
  for (int i = 0; i < 200; ++i) gaps += "1,\n";
  EXPECT_TRUE(parse(gaps + "1,7\n", options).columns[1].class_names.empty());
  expect_contains(data_error([&] { parse("a,y\n1,\n2,3\n"); }), "is not a number");
}

TEST(Csv, NumbersThatNoFloatHoldsAreInfinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(parse("1e308,-4e38\n-1e999,3.4e38\n").columns[0].values.to_doubles(),
            (Doubles{infinity, -infinity}));
  EXPECT_EQ(parse("1,1e308\n2,-1e999\n").columns[1].values.to_doubles(),
            (Doubles{infinity, -infinity}));
  EXPECT_EQ(parse("1e-400,0\n-2.5E-999,1\n").columns[0].values.to_doubles(), (Doubles{0, 0}));
}

TEST(Csv, WholeLabelsAreIntegers) {
  EXPECT_EQ(parse("1,0\n2,3\n").columns[1].values.dtype(), DType::kInt64);
  EXPECT_EQ(parse("1,0\n2,3.5\n").columns[1].values.dtype(), DType::kFloat64);
}

// No text, however odd, may do worse than an error.
TEST(Csv, EveryShortTextIsReadOrRefused) {
  const std::string alphabet = "1,\"\n#a \r";
  std::vector<std::string> texts = {""};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].size() == 5) break;
    for (const char c : alphabet) texts.push_back(texts[i] + c);
  }
  for (const std::string& text : texts) {
    try {
      const RawSplit got = parse(text);
      ASSERT_FALSE(got.columns.empty());
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kData) << text;
    }
  }
}

using CsvFiles = DataFiles;

TEST_F(CsvFiles, GzipAndDirectories) {
  // gzip of "1,2\n3,4\n", made by Python's gzip.compress(…, mtime=0)
  const std::string packed = from_hex("1f8b080000000000020333d431e232d631e1020047936caf08000000");
  write("train.csv.gz", packed);
  write("test.csv", "5,6\n");
  const RawData raw = read_csv(directory(), {});
  EXPECT_EQ(raw.train.columns[0].values.to_doubles(), (Doubles{1, 3}));
  EXPECT_EQ(raw.validation.columns[1].values.to_doubles(), Doubles{6});
  write("dev.csv", "7,8\n");
  EXPECT_EQ(read_csv(directory(), {}).validation.columns[1].values.to_doubles(), Doubles{8});
}

}  // namespace
}  // namespace pipetrain
