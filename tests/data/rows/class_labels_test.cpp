#include "data/rows/class_labels.h"

#include <gtest/gtest.h>

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
  RawColumn numbered =
      labels_of({2, 1, 0}, /*in_table=*/true);  // of classes without numbers as names
  follow_class_names(numbered, {"cat", "dog", "owl"});
  EXPECT_EQ(numbered.values.to_int64s(), (std::vector<std::int64_t>{2, 1, 0}));
}

// Folders "0", "1", "10", "2" in the order of their names: 2 is the class of the folder "10".
TEST(ClassLabels, NumbersOfClassesStayAsTheyAre) {
  RawColumn raw = labels_of({2, 1, 3}, /*in_table=*/false);
  follow_class_names(raw, {"0", "1", "10", "2", "3"});
  EXPECT_EQ(raw.values.to_int64s(), (std::vector<std::int64_t>{2, 1, 3}));
}

}  // namespace
}  // namespace pipetrain
