#include "data/rows/class_labels.h"

#include <gtest/gtest.h>

namespace pipetrain {
namespace {

RawColumn labels_of(const std::vector<std::int64_t>& numbers) {
  RawColumn raw;
  raw.name = "y";
  raw.role = ColumnRole::kLabel;
  raw.values = HostTensor::of<std::int64_t>({std::ssize(numbers)}, numbers);
  return raw;
}

// Words of the training such as "1", "2" and "3+", and other data without the last.
TEST(ClassLabels, NumbersThatAreWordsOfTheTrainingAreItsClasses) {
  RawColumn raw = labels_of({2, 1, 2});
  follow_class_names(raw, {"1", "2", "3+"});
  EXPECT_EQ(raw.values.to_int64s(), (std::vector<std::int64_t>{1, 0, 1}));
  EXPECT_EQ(raw.class_names.size(), 3U);
  RawColumn numbered = labels_of({2, 1, 0});  // of classes without numbers as names
  follow_class_names(numbered, {"cat", "dog", "owl"});
  EXPECT_EQ(numbered.values.to_int64s(), (std::vector<std::int64_t>{2, 1, 0}));
}

}  // namespace
}  // namespace pipetrain
