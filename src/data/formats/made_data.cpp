#include "data/formats/made_data.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/random.h"

namespace pipetrain {

namespace {

constexpr std::size_t kRows = 9, kColumns = 7;  // 7 x 5 and an empty border

constexpr const char* kFont[10] = {
    "01110 10001 10011 10101 11001 10001 01110", "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111", "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010", "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110", "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110", "01110 10001 10001 01111 00001 00010 01100",
};

using Glyph = std::array<std::array<float, kColumns>, kRows>;

Glyph glyph_of(std::size_t digit) {
  Glyph out{};
  for (std::size_t row = 0; row < 7; ++row) {
    for (std::size_t column = 0; column < 5; ++column) {
      out[row + 1][column + 1] = kFont[digit][row * 6 + column] == '1' ? 1.0f : 0.0f;
    }
  }
  return out;
}

// Bilinear; outside there is nothing.
float ink(const Glyph& glyph, float x, float y) {
  const auto column =
      static_cast<std::size_t>(std::clamp(std::floor(x), 0.0f, static_cast<float>(kColumns - 2)));
  const auto row =
      static_cast<std::size_t>(std::clamp(std::floor(y), 0.0f, static_cast<float>(kRows - 2)));
  const float right = std::clamp(x - static_cast<float>(column), 0.0f, 1.0f);
  const float down = std::clamp(y - static_cast<float>(row), 0.0f, 1.0f);
  return (glyph[row][column] * (1 - right) + glyph[row][column + 1] * right) * (1 - down) +
         (glyph[row + 1][column] * (1 - right) + glyph[row + 1][column + 1] * right) * down;
}

void draw_glyph(const Glyph& glyph, RandomStream& random, std::size_t size, std::uint8_t* out) {
  const auto within = [&](float low, float high) { return low + (high - low) * random.uniform(); };
  const float unit = static_cast<float>(size) / 28;
  const float angle = within(-0.35f, 0.35f), shear = within(-0.3f, 0.3f);
  const float scale_x = within(2.2f, 3.4f) * unit, scale_y = within(2.2f, 3.4f) * unit;
  const float move_x = within(-3, 3) * unit, move_y = within(-3, 3) * unit;
  const float phase = within(0, 6.28f), stroke = within(1.4f, 2.2f), brightness = within(0.6f, 1);
  const float centre = static_cast<float>(size - 1) / 2;
  const float cosine = std::cos(angle), sine = std::sin(angle);
  for (std::size_t row = 0; row < size; ++row) {
    for (std::size_t column = 0; column < size; ++column) {
      const float u = static_cast<float>(column) - centre - move_x;
      const float v = static_cast<float>(row) - centre - move_y;
      const float turned_v = cosine * v - sine * u;
      const float turned_u = cosine * u + sine * v + shear * turned_v;
      const float x = turned_u / scale_x + 3 + 0.35f * std::sin(turned_v / (4 * unit) + phase);
      const float y = turned_v / scale_y + 4;
      const float grey = std::clamp((ink(glyph, x, y) - 0.25f) * stroke, 0.0f, 1.0f) * brightness;
      out[row * size + column] = static_cast<std::uint8_t>(
          std::clamp((grey + 0.12f * random.normal()) * 255, 0.0f, 255.0f));
    }
  }
}

RawSplit two_columns(HostTensor x, HostTensor y) {
  RawSplit out;
  out.columns.push_back({"x", std::move(x), "made", ColumnRole::kInput, {}, {}, {}});
  out.columns.push_back({"y", std::move(y), "made", ColumnRole::kLabel, {}, {}, {}});
  return out;
}

}  // namespace

RawSplit make_glyphs(std::size_t samples, std::uint64_t seed, std::size_t size) {
  std::array<Glyph, 10> glyphs;
  for (std::size_t digit = 0; digit < 10; ++digit) glyphs[digit] = glyph_of(digit);
  const auto count = static_cast<std::int64_t>(samples), side = static_cast<std::int64_t>(size);
  HostTensor x({DType::kUint8, Shape{count, side, side}, Layout::kRowMajor});
  HostTensor y({DType::kUint8, Shape{count}, Layout::kRowMajor});
  for (std::size_t i = 0; i < samples; ++i) {
    RandomStream random(seed, i);
    const std::uint32_t digit = random.below(10);
    y.view().as<std::uint8_t>()[i] = static_cast<std::uint8_t>(digit);
    draw_glyph(glyphs[digit], random, size, x.view().as<std::uint8_t>() + i * size * size);
  }
  return two_columns(std::move(x), std::move(y));
}

RawSplit make_spirals(std::size_t samples, std::uint64_t seed) {
  const auto count = static_cast<std::int64_t>(samples);
  HostTensor x({DType::kFloat32, Shape{count, 2}, Layout::kRowMajor});
  HostTensor y({DType::kInt64, Shape{count}, Layout::kRowMajor});
  for (std::size_t i = 0; i < samples; ++i) {
    RandomStream random(seed, i);
    const float radius = 0.1f + 0.9f * random.uniform();
    const float angle = 3 * 3.14159265f * radius + (i % 2 == 1 ? 3.14159265f : 0.0f);
    float* point = x.view().as<float>() + 2 * i;
    point[0] = radius * std::cos(angle) + 0.02f * random.normal();
    point[1] = radius * std::sin(angle) + 0.02f * random.normal();
    y.span<std::int64_t>()[i] = static_cast<std::int64_t>(i % 2);
  }
  return two_columns(std::move(x), std::move(y));
}

}  // namespace pipetrain
