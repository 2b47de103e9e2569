// Converts labels that are not class numbers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/rows/data_spec.h"
#include "data/rows/raw_data.h"

namespace pipetrain {

/// Class numbers for one-hot rows like (0, 0, 1, 0); an empty tensor if the rows are not one-hot,
/// or if the label needs several classes per sample.
HostTensor classes_from_one_hot(const RawColumn& raw, const LabelSpec& label);

/// A column as labels: the padding of one that is not called so becomes what the loss ignores.
RawColumn with_padding_ignored(RawColumn column, const LabelSpec& label);

/// What the name of a class was before: advice on a name that cannot be one depends on it.
enum class ClassNameIs : std::uint8_t { kLabel, kFolder };
/// Error (kData) for a name with a line break, or that is not UTF-8: models store the names of
/// their classes in lines of text.
void check_class_name(const std::string& name, ClassNameIs what = ClassNameIs::kLabel);

/// Labels that are words as class numbers, which follow the byte order of the words.
struct ClassNumbers {
  std::vector<std::int64_t> numbers;
  std::vector<std::string> names;
};
ClassNumbers number_classes(const std::vector<std::string>& words);
/// Labels with rows that have none among them: nan, which is skipped with other bad samples.
/// `gaps`: the numbers of these rows, ascending.
HostTensor with_unlabelled(const HostTensor& labels, std::span<const std::size_t> gaps);

/// Renumbers labels that were words by the training data's words, of which a validation file may
/// know fewer. Error kData for a word that the training data lack.
void follow_class_names(RawColumn& raw, const std::vector<std::string>& known);

}  // namespace pipetrain
