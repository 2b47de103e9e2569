#include "data/rows/class_labels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/data_files.h"

namespace pipetrain {
namespace {

RawColumn labels_of(const std::vector<std::int64_t>& numbers, bool in_table) {
  RawColumn raw;
  raw.may_be_words = in_table;
  raw.name = "y";
  raw.role = ColumnRole::kLabel;
  raw.values = HostTensor::of<std::int64_t>({std::ssize(numbers)}, numbers);
  return raw;
}

// Words of the training such as "1", "2" and "3+", and other data without the last.
TEST(ClassLabels, NumbersThatAreWordsOfTheTrainingAreItsClasses) {
  RawColumn raw = labels_of({2, 1, 2}, /*in_table=*/true);
  follow_class_names(raw, {"1", "2", "3+"});
  EXPECT_EQ(raw.values.to_int64s(), (std::vector<std::int64_t>{1, 0, 1}));
  EXPECT_EQ(raw.class_names.size(), 3U);
  RawColumn with_gap = labels_of({}, /*in_table=*/true);
  const double gap = std::numeric_limits<double>::quiet_NaN();
  with_gap.values = HostTensor::of<double>({3}, std::vector<double>{2, gap, 1});
  follow_class_names(with_gap, {"1", "2", "3+"});
  const std::vector<double> followed = with_gap.values.to_doubles();
  EXPECT_EQ(followed[0], 1);
  EXPECT_TRUE(std::isnan(followed[1]));
  EXPECT_EQ(followed[2], 0);
  RawColumn amounts = labels_of({}, /*in_table=*/true);
  amounts.values = HostTensor::of<double>({2}, std::vector<double>{1, 1.6});
  follow_class_names(amounts, {"1", "2", "3+"});
  EXPECT_EQ(amounts.values.to_doubles(), (std::vector<double>{1, 1.6}));
  RawColumn numbered =
      labels_of({2, 1, 0}, /*in_table=*/true);  // of classes without numbers as names
  follow_class_names(numbered, {"cat", "dog", "owl"});
  EXPECT_EQ(numbered.values.to_int64s(), (std::vector<std::int64_t>{2, 1, 0}));
}

// One label that is no name does not make class numbers of the others.
TEST(ClassLabels, NumbersThatAreNoWordsBesideOthersThatAreAreRefused) {
  RawColumn raw = labels_of({2, 1, 0}, /*in_table=*/true);
  expect_contains(data_error([&] {
                    follow_class_names(raw, {"1", "2", "3+"});
                  }),
                  "label \"0\" does not occur in the training data");
  RawColumn real = labels_of({}, /*in_table=*/true);
  const double gap = std::numeric_limits<double>::quiet_NaN();
  real.values = HostTensor::of<double>({3}, std::vector<double>{2, gap, 7});
  expect_contains(data_error([&] { follow_class_names(real, {"1", "2", "3+"}); }), "label \"7\"");
}

// Folders "0", "1", "10", "2" in the order of their names: 2 is the class of the folder "10".
TEST(ClassLabels, NumbersOfClassesStayAsTheyAre) {
  RawColumn raw = labels_of({2, 1, 3}, /*in_table=*/false);
  follow_class_names(raw, {"0", "1", "10", "2", "3"});
  EXPECT_EQ(raw.values.to_int64s(), (std::vector<std::int64_t>{2, 1, 3}));
}

TEST(ClassLabels, NamesAreLinesOfText) {
  EXPECT_EQ(number_classes({"b", "a", "b"}).numbers, (std::vector<std::int64_t>{1, 0, 1}));
  expect_contains(data_error([] { number_classes({"a", "b\n"}); }), "has a line break");
  expect_contains(data_error([] { number_classes({"B\xe4r"}); }), "is not UTF-8");
}

}  // namespace
}  // namespace pipetrain
