// Fourier transforms as matrix products with a constant, so that they have gradients.
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "ops/composed/composed.h"
#include "ops/kernel/constant_size.h"

namespace pipetrain::composed {
namespace {

constexpr std::int64_t kLongest = 4096;

/// Sizes of the transform of one axis: `taken` values of `parts` (1 real, 2 complex) to `given`
/// values of `result_parts`.
struct Transform {
  std::int64_t length = 0;
  std::int64_t taken = 0, parts = 2;
  std::int64_t given = 0, result_parts = 2;
  bool inverse = false;
};

/// The matrix (taken · parts, given · result_parts). A one-sided inverse counts each frequency with
/// a mirrored counterpart twice.
HostTensor fourier_matrix(const Transform& t) {
  HostTensor out(TensorType{DType::kFloat32, Shape{t.taken * t.parts, t.given * t.result_parts}});
  float* to = out.view().as<float>();
  const bool one_sided = t.inverse && t.result_parts == 1;
  for (std::int64_t n = 0; n < t.taken; ++n) {
    const bool mirrored = one_sided && n != 0 && 2 * n != t.length;
    const double scale =
        (t.inverse ? 1.0 / static_cast<double>(t.length) : 1.0) * (mirrored ? 2 : 1);
    for (std::int64_t part = 0; part < t.parts; ++part) {
      for (std::int64_t k = 0; k < t.given; ++k) {
        const double angle = (t.inverse ? 1 : -1) * 6.283185307179586 *
                             static_cast<double>(n * k % t.length) / static_cast<double>(t.length);
        const double cosine = scale * std::cos(angle);
        const double sine = scale * std::sin(angle);
        // (a + bi) (cos + i sin)
        *to++ = static_cast<float>(part == 0 ? cosine : -sine);
        if (t.result_parts == 2) *to++ = static_cast<float>(part == 0 ? sine : cosine);
      }
    }
  }
  return out;
}

/// Cuts an axis or pads it with zeros at its end.
ValueId fit(GraphBuilder& builder, ValueId x, std::int64_t axis, std::int64_t size) {
  const Shape shape = builder.shape(x);
  const std::int64_t now = shape[static_cast<std::size_t>(axis)];
  if (now > size) {
    return builder.add(
        "Slice", {x},
        {{"starts", Ints{0}}, {"ends", Ints{size}}, {"axes", Ints{axis}}, {"steps", Ints{1}}});
  }
  if (now == size) return x;
  Ints pads(2 * shape.rank(), 0);
  pads[shape.rank() + static_cast<std::size_t>(axis)] = size - now;
  return builder.add("Pad", {x}, {{"pads", pads}, {"value", 0.0}});
}

/// x (…, axis, …, parts) transformed along the axis.
ValueId transform(GraphBuilder& builder, ValueId x, std::int64_t axis, const Transform& t) {
  PT_CHECK(t.length >= 1 && t.length <= kLongest, kModel,
           "a Fourier transform of length {} is not supported (1 to {})", t.length, kLongest);
  x = fit(builder, x, axis, t.taken);
  const auto rank = static_cast<std::int64_t>(builder.shape(x).rank());
  Ints perm(static_cast<std::size_t>(rank));
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[static_cast<std::size_t>(axis)], perm[static_cast<std::size_t>(rank - 2)]);
  const bool moves = axis != rank - 2;  // the swap is its own inverse
  if (moves) x = builder.add("Transpose", {x}, {{"perm", perm}});
  std::vector<std::int64_t> dims = builder.shape(x).dims();
  x = builder.reshape(x, {builder.shape(x).count(0, dims.size() - 2), t.taken * t.parts});
  ValueId matrix = builder.constant(fourier_matrix(t));
  const DType dtype = builder.type(x).dtype;
  if (dtype != DType::kFloat32) {
    matrix = builder.add("Cast", {matrix}, {{"to", static_cast<std::int64_t>(dtype)}});
  }
  // Mixed precision has too few bits for the quiet parts of a signal.
  ValueId y = builder.add("MatMul", {x, matrix},
                          {{"trans_a", std::int64_t{0}},
                           {"trans_b", std::int64_t{0}},
                           {"keep_float", std::int64_t{1}}});
  dims[dims.size() - 2] = t.given;
  dims[dims.size() - 1] = t.result_parts;
  y = builder.reshape(y, Shape(std::move(dims)));
  return moves ? builder.add("Transpose", {y}, {{"perm", perm}}) : y;
}

void check_parts(const ImportContext& context) {
  const Shape& shape = context.type(0).shape;
  PT_CHECK(shape.rank() >= 2 && (shape[shape.rank() - 1] == 1 || shape[shape.rank() - 1] == 2),
           kModel, "{} needs real or complex numbers in the last axis, got {}", context.op_type(),
           shape.text());
}

// The axis was an attribute before opset 20 and is an input since.
void import_dft(ImportContext& context) {
  check_parts(context);
  const Shape shape = context.type(0).shape;
  const auto rank = static_cast<std::int64_t>(shape.rank());
  std::int64_t axis = context.attributes().integer("axis", 1);
  if (context.opset() >= 20) {
    axis = context.has_input(2) ? context.scalar(2, "axis") : -2;
  }
  PT_CHECK(axis >= -rank && axis < rank && axis != rank - 1 && axis != -1, kModel,
           "DFT cannot transform axis {} of {}", axis, shape.text());
  if (axis < 0) axis += rank;
  const bool one_sided = context.attributes().flag("onesided");
  Transform t;
  t.inverse = context.attributes().flag("inverse");
  t.parts = shape[shape.rank() - 1];
  const std::int64_t size = shape[static_cast<std::size_t>(axis)];
  t.length = t.inverse && one_sided ? 2 * (size - 1) : size;
  if (context.has_input(1)) t.length = context.scalar(1, "dft_length");
  const std::int64_t half = t.length / 2 + 1;
  t.taken = t.inverse && one_sided ? half : t.length;
  t.given = !t.inverse && one_sided ? half : t.length;
  t.result_parts = t.inverse && one_sided ? 1 : 2;
  context.set_output(0, transform(context.builder(), context.input(0), axis, t));
}

// Frames of the signal, times the window, transformed.
void import_stft(ImportContext& context) {
  check_parts(context);
  GraphBuilder& builder = context.builder();
  const Shape shape = context.type(0).shape;  // (batch, samples, parts)
  PT_CHECK(shape.rank() == 3, kModel, "STFT needs (batch, samples, 1 or 2), got {}", shape.text());
  const std::int64_t step = context.scalar(1, "frame_step");
  std::int64_t length = context.has_input(2) ? context.type(2).count() : shape[1];
  if (context.has_input(3)) length = context.scalar(3, "frame_length");
  PT_CHECK(step >= 1 && length >= 1 && length <= shape[1], kModel,
           "STFT cannot cut {} samples into frames of {} every {}", shape[1], length, step);
  const std::int64_t frames = 1 + (shape[1] - length) / step;
  expect_reasonable({DType::kInt64, Shape{frames, length}});
  HostTensor index(TensorType{DType::kInt64, Shape{frames, length}});
  for (std::int64_t i = 0; i < frames * length; ++i) {
    index.span<std::int64_t>()[static_cast<std::size_t>(i)] = i / length * step + i % length;
  }
  ValueId x = builder.add("Gather", {context.input(0), builder.constant(index)},
                          {{"axis", std::int64_t{1}}});
  if (context.has_input(2)) {
    x = builder.add("Mul", {x, builder.reshape(context.input(2), {length, 1})});
  }
  Transform t;
  t.length = t.taken = length;
  t.parts = shape[2];
  t.given = context.attributes().integer("onesided", 1) != 0 ? length / 2 + 1 : length;
  context.set_output(0, transform(builder, x, 2, t));
}

constexpr ImportRule kComposedSpectrumImports[] = {{"DFT", import_dft}, {"STFT", import_stft}};

}  // namespace

std::span<const ImportRule> spectrum_imports() { return kComposedSpectrumImports; }

}  // namespace pipetrain::composed
