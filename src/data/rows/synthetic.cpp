#include "data/rows/synthetic.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/random.h"
#include "data/rows/element.h"

namespace pipetrain {

namespace {

// Streams of one seed; each input takes its own range after kInputs.
enum StreamNumber : std::uint64_t { kNoise = 1, kClass, kProjection, kSuccessor, kInputs = 1000 };
constexpr std::uint64_t kStreamsPerInput = 4;

constexpr std::size_t kNoiseTable = 1 << 16;
constexpr std::size_t kPiece = 4096;  // of it, at most
constexpr std::size_t kMostPatternElements = 1 << 22;
// A pattern is constant over a quarter of a row, so that convolutions and pooling can see it.
constexpr std::size_t kBlocks = 4;
constexpr float kPatternStrength = 0.5f;
constexpr std::size_t kMaximumClasses = 1 << 20;
// How many elements of the input a number to be predicted depends on.
constexpr std::size_t kTerms = 16;

// How the labels hang on the inputs.
enum class Teacher { kNone, kClass, kPerPosition, kNextToken, kSame, kLinear };

PhiloxBlock draw(std::uint64_t seed, std::uint64_t stream, std::uint64_t index,
                 std::uint32_t position) {
  const PhiloxKey low = philox_key(index);
  return philox(philox_key(seed),
                {{position, static_cast<std::uint32_t>(stream), low.word[0], low.word[1]}});
}

class SyntheticDataset : public Dataset {
 public:
  SyntheticDataset(const DataSpec& spec, std::size_t samples, std::uint64_t seed)
      : spec_(spec), samples_(samples), seed_(seed) {
    for (const ModelInput& input : spec_.inputs) {
      columns_.push_back({input.name, input.dtype, input.sample_shape});
    }
    if (spec_.label) {
      columns_.push_back({spec_.label->name, spec_.label->dtype, spec_.label->sample_shape});
    }
    teacher_ = choose_teacher();
    RandomStream stream(seed_, kNoise);
    noise_.resize(kNoiseTable);
    for (float& value : noise_) value = stream.normal();
    noise_.insert(noise_.end(), noise_.begin(), noise_.begin() + kPiece);
    draw_patterns();
  }

  std::size_t size() const override { return samples_; }
  std::span<const Column> columns() const override { return columns_; }

  void gather(std::span<const std::size_t> indices, std::size_t column, Tensor out) const override {
    const Column& what = columns_[column];
    const auto count = static_cast<std::size_t>(what.sample_shape.count());
    auto* to = out.as<std::byte>();
    for (const std::size_t index : indices) {
      if (column == spec_.inputs.size()) {
        write_labels(index, to);
      } else if (const auto filling = known_filling(spec_.inputs[column])) {
        write(fill(*filling, what.sample_shape), what.dtype, to);
      } else if (is_float(what.dtype)) {
        write(floats(index, column), what.dtype, to);
      } else {
        std::vector<std::int64_t> row = ids(index, column);
        row.resize(count);  // without the token after the last
        write(row, what.dtype, to);
      }
      to += count * size_of(what.dtype);
    }
  }

 private:
  template <class T>
  static void write(const std::vector<T>& values, DType dtype, std::byte* to) {
    convert_elements(values.data(), dtype_of<T>(), to, dtype, values.size(), 1);
  }

  // The input that the labels are made from: the first that carries data, or tokens if the labels
  // are the next ones.
  std::size_t main_input() const {
    const bool tokens = spec_.label && spec_.label->shifted_input;
    for (std::size_t i = 0; i < spec_.inputs.size(); ++i) {
      const ModelInput& input = spec_.inputs[i];
      if (!known_filling(input) && !(tokens && is_float(input.dtype))) return i;
    }
    return 0;
  }

  Teacher choose_teacher() const {
    if (!spec_.label || spec_.inputs.empty()) return Teacher::kNone;
    const LabelSpec& label = *spec_.label;
    const ModelInput& input = spec_.inputs[main_input()];
    const bool ids = !is_float(input.dtype);
    if (label.shifted_input) {
      PT_CHECK(ids && label.sample_shape == input.sample_shape, kModel,
               "labels that are the next tokens need an input of tokens, shaped like them");
      return Teacher::kNextToken;
    }
    const auto label_count = label.sample_shape.count(), count = input.sample_shape.count();
    if (label.classes >= 0 || label.probability) {
      return label_count > 1 && label.classes >= 0 && count % label_count == 0
                 ? Teacher::kPerPosition
                 : Teacher::kClass;
    }
    return label.sample_shape == input.sample_shape && !ids ? Teacher::kSame : Teacher::kLinear;
  }

  // The hidden class of a sample; labels are a function of it, and inputs correlate with it.
  std::uint32_t class_of(std::size_t index) const {
    return uniform_below(draw(seed_, kClass, index, 0).word[0],
                         static_cast<std::uint32_t>(classes()));
  }
  std::size_t classes() const {
    if (!spec_.label) return 2;
    if (spec_.label->probability && spec_.label->sample_shape.count() > 1) return 16;
    if (spec_.label->classes <= 0) return 2;
    return std::min(static_cast<std::size_t>(spec_.label->classes), kMaximumClasses);
  }

  std::uint64_t stream_of(std::size_t column) const { return kInputs + column * kStreamsPerInput; }

  // Noise plus, for classes, their pattern.
  std::vector<float> floats(std::size_t index, std::size_t column) const {
    const auto count = static_cast<std::size_t>(columns_[column].sample_shape.count());
    std::vector<float> out(count);
    for (std::size_t at = 0; at < count;) {
      // A piece of the table from a random place; pieces are much shorter than the table.
      const std::size_t length = std::min(count - at, kPiece);
      const std::size_t place =
          draw(seed_, stream_of(column), index, static_cast<std::uint32_t>(at)).word[0] %
          kNoiseTable;
      std::copy_n(&noise_[place], length, &out[at]);
      at += length;
    }
    if (teacher_ != Teacher::kClass || count == 0) return out;
    const std::size_t hidden = class_of(index);
    if (column < patterns_.size() && (hidden + 1) * count <= patterns_[column].size()) {
      const float* pattern = &patterns_[column][hidden * count];
      for (std::size_t i = 0; i < count; ++i) out[i] += pattern[i];
    } else {
      add_pattern(column, hidden, out);
    }
    return out;
  }

  // Adds a class's coarse pattern: one number for each quarter of a row, and for each quarter of
  // the rows where there are several axes.
  void add_pattern(std::size_t column, std::size_t hidden, std::span<float> out) const {
    const Shape& shape = columns_[column].sample_shape;
    const auto width = static_cast<std::size_t>(shape.rank() ? shape.dims().back() : 1);
    const std::size_t height =
        shape.rank() >= 2 ? static_cast<std::size_t>(shape[shape.rank() - 2]) : 1;
    const std::size_t block = shape.rank() >= 2 ? (width + kBlocks - 1) / kBlocks : 1;
    for (std::size_t at = 0; at < out.size(); at += std::min(block, width - at % width)) {
      const std::size_t row = at / width;
      const std::size_t plane = row / height, band = row % height * kBlocks / height;
      const auto place =
          static_cast<std::uint32_t>((plane * kBlocks + band) * width + at % width / block);
      const float pattern =
          kPatternStrength *
          noise_[draw(seed_, stream_of(column) + 1, hidden, place).word[0] % kNoiseTable];
      const std::size_t end = at + std::min(block, width - at % width);
      for (std::size_t i = at; i < end; ++i) out[i] += pattern;
    }
  }

  // Patterns of all classes, where they are few: drawing them takes longer than all the rest.
  void draw_patterns() {
    if (teacher_ != Teacher::kClass) return;
    patterns_.resize(spec_.inputs.size());
    for (std::size_t column = 0; column < patterns_.size(); ++column) {
      const auto count = static_cast<std::size_t>(columns_[column].sample_shape.count());
      if (!is_float(columns_[column].dtype) || count * classes() > kMostPatternElements) continue;
      patterns_[column].assign(count * classes(), 0.0f);
      for (std::size_t hidden = 0; hidden < classes(); ++hidden)
        add_pattern(column, hidden, std::span(patterns_[column]).subspan(hidden * count, count));
    }
  }

  std::uint32_t successor(std::int64_t id, std::uint32_t limit) const {
    return uniform_below(draw(seed_, kSuccessor, static_cast<std::uint64_t>(id), 0).word[0], limit);
  }

  // Tokens of a sequence, and the one that follows its last.
  std::vector<std::int64_t> ids(std::size_t index, std::size_t column) const {
    const ModelInput& input = spec_.inputs[column];
    const auto count = static_cast<std::size_t>(input.sample_shape.count());
    std::int64_t bound = input.upper_bound > 0 ? input.upper_bound : 2;
    const bool next_token = teacher_ == Teacher::kNextToken && column == main_input();
    if (next_token && spec_.label->classes > 0) bound = std::min(bound, spec_.label->classes);
    const auto limit = static_cast<std::uint32_t>(std::min<std::int64_t>(bound, 0xffffffff));
    const std::uint64_t stream = kInputs + column * kStreamsPerInput + 2;
    const std::uint32_t hidden = teacher_ == Teacher::kClass ? class_of(index) : 0;
    std::vector<std::int64_t> out(count + 1);
    for (std::size_t t = 0; t < out.size(); ++t) {
      const PhiloxBlock block = draw(seed_, stream, index, static_cast<std::uint32_t>(t));
      std::uint32_t id = uniform_below(block.word[0], limit);
      if (next_token && t > 0 && block.word[1] % 4 != 0) {
        id = successor(out[t - 1], limit);
      } else if (teacher_ == Teacher::kClass && block.word[1] % 2 != 0) {
        // Half of the ids come from the few that belong to the hidden class.
        id = draw(seed_, stream + 1, hidden, block.word[2] % 4).word[0] % limit;
      }
      out[t] = id;
    }
    return out;
  }

  static std::vector<std::int64_t> fill(Filling filling, const Shape& shape) {
    std::vector<std::int64_t> out(static_cast<std::size_t>(shape.count()),
                                  filling == Filling::kOnes ? 1 : 0);
    const std::int64_t last = shape.rank() ? shape.dims().back() : 1;
    for (std::size_t i = 0; filling == Filling::kPositions && i < out.size(); ++i) {
      out[i] = static_cast<std::int64_t>(i) % last;
    }
    return out;
  }

  void write_labels(std::size_t index, std::byte* to) const {
    const LabelSpec& label = *spec_.label;
    const auto count = static_cast<std::size_t>(label.sample_shape.count());
    switch (teacher_) {
      case Teacher::kNone:
        write(std::vector<std::int64_t>(count), label.dtype, to);
        break;
      case Teacher::kClass: {
        const std::uint32_t hidden = class_of(index);
        std::vector<std::int64_t> out(count, hidden);
        for (std::size_t j = 0; label.probability && count > 1 && j < count; ++j) {
          out[j] = draw(seed_, kProjection, hidden, static_cast<std::uint32_t>(j)).word[0] & 1;
        }
        write(out, label.dtype, to);
        break;
      }
      case Teacher::kPerPosition:
        write(per_position(index, count), label.dtype, to);
        break;
      case Teacher::kNextToken: {
        std::vector<std::int64_t> out = ids(index, main_input());
        out.erase(out.begin());
        write(out, label.dtype, to);
        break;
      }
      case Teacher::kSame:
        write(floats(index, main_input()), label.dtype, to);
        break;
      case Teacher::kLinear:
        write(linear(index, count), label.dtype, to);
        break;
    }
  }

  // Position j's class is decided by the first channel there: a float by its quantile of the
  // normal distribution, an id by its fixed successor.
  std::vector<std::int64_t> per_position(std::size_t index, std::size_t count) const {
    const std::size_t column = main_input();
    const std::int64_t classes = spec_.label->classes;
    std::vector<std::int64_t> out(count);
    if (is_float(columns_[column].dtype)) {
      const std::vector<float> values = floats(index, column);
      for (std::size_t j = 0; j < count; ++j) {
        const double quantile = 0.5 * std::erfc(-values[j] / std::sqrt(2.0));
        out[j] = std::clamp<std::int64_t>(
            static_cast<std::int64_t>(quantile * static_cast<double>(classes)), 0, classes - 1);
      }
      return out;
    }
    const std::vector<std::int64_t> tokens = ids(index, column);
    const auto limit = static_cast<std::uint32_t>(std::clamp<std::int64_t>(classes, 1, 0xffffffff));
    for (std::size_t j = 0; j < count; ++j) out[j] = successor(tokens[j], limit);
    return out;
  }

  std::vector<float> linear(std::size_t index, std::size_t count) const {
    const std::size_t column = main_input();
    std::vector<float> values;
    if (is_float(columns_[column].dtype)) {
      values = floats(index, column);
    } else {
      for (const std::int64_t id : ids(index, column)) {
        values.push_back(noise_[static_cast<std::size_t>(id) % kNoiseTable]);
      }
    }
    std::vector<float> out(count);
    if (values.empty()) return out;
    for (std::size_t j = 0; j < count; ++j) {
      for (std::size_t k = 0; k < kTerms; ++k) {
        const PhiloxBlock block = draw(seed_, kProjection, j, static_cast<std::uint32_t>(k));
        out[j] += normal_pair(block.word[0], block.word[1]).first *
                  values[block.word[2] % values.size()] / std::sqrt(static_cast<float>(kTerms));
      }
    }
    return out;
  }

  DataSpec spec_;
  std::size_t samples_;
  std::uint64_t seed_;
  Teacher teacher_ = Teacher::kNone;
  std::vector<Column> columns_;
  std::vector<float> noise_;                  // the table, and its first piece again
  std::vector<std::vector<float>> patterns_;  // by input: [class][element], or nothing
};

}  // namespace

std::shared_ptr<const Dataset> make_synthetic(const DataSpec& spec, std::size_t samples,
                                              std::uint64_t seed) {
  PT_CHECK(samples > 0, kUsage, "a synthetic data set needs at least one sample");
  return std::make_shared<SyntheticDataset>(spec, samples, seed);
}

std::optional<Filling> known_filling(const ModelInput& input) { return filling_of(input.name); }

std::string_view name_of(Filling filling) {
  switch (filling) {
    case Filling::kOnes:
      return "ones";
    case Filling::kZeros:
      return "zeros";
    case Filling::kPositions:
      return "positions 0, 1, 2, …";
  }
  return "";
}

}  // namespace pipetrain
