#include "ops/resample/resize_map.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/error.h"

namespace pipetrain {
namespace {

/// The attributes of Resample.
struct Sampling {
  std::string mode, coordinates, nearest;
  double scale;
  double cubic;
  std::int64_t inputs, outputs;
  bool antialias, exclude_outside;
  double start, end;  // of tf_crop_and_resize, as fractions of the axis

  bool crops() const { return coordinates == "tf_crop_and_resize"; }
  /// Whether position x is left out, which only crops do.
  bool leaves_out(double x) const {
    return crops() && (x < 0 || x > static_cast<double>(inputs - 1));
  }
  /// Antialiasing widens the kernel when the axis shrinks.
  double stretch() const { return antialias ? std::min(1.0, scale) : 1.0; }
  /// How many elements away an output may read.
  double reach() const {
    if (mode == "nearest") return 1;
    return (mode == "cubic" ? 2 : 1) / stretch();
  }
  /// Whether the scale is the quotient of the sizes: given as them, or equal to it.
  bool from_sizes() const {
    return scale == static_cast<double>(outputs) / static_cast<double>(inputs);
  }
};

/// x in input elements. The scale of sizes is a rounded quotient: what should be an integer would
/// come out a little less. A scale that was given is a float, and ONNX Runtime chooses the nearest
/// element in float; with half_pixel_symmetric, that would keep roundings from canceling out.
double scaled_back(const Sampling& s, double x) {
  if (s.from_sizes()) return x * static_cast<double>(s.inputs) / static_cast<double>(s.outputs);
  if (s.mode == "nearest" && s.coordinates != "half_pixel_symmetric") {
    return static_cast<float>(x) / static_cast<float>(s.scale);
  }
  return x / s.scale;
}

/// The input coordinate of output i.
double position(const Sampling& s, std::int64_t i) {
  const auto x = static_cast<double>(i);
  const auto inputs = static_cast<double>(s.inputs);
  // The exact length, before the number of outputs was rounded down.
  const double outputs = s.from_sizes() ? static_cast<double>(s.outputs) : s.scale * inputs;
  const double half_pixel = scaled_back(s, x + 0.5) - 0.5;
  if (s.coordinates == "half_pixel") return half_pixel;
  if (s.coordinates == "pytorch_half_pixel") return s.outputs > 1 ? half_pixel : 0;
  if (s.coordinates == "asymmetric") return scaled_back(s, x);
  if (s.coordinates == "align_corners") return s.outputs > 1 ? x * (inputs - 1) / (outputs - 1) : 0;
  if (s.coordinates == "half_pixel_symmetric") {
    const double adjustment = static_cast<double>(s.outputs) / outputs;
    return inputs / 2 * (1 - adjustment) + half_pixel;
  }
  if (s.coordinates == "tf_half_pixel_for_nn") return scaled_back(s, x + 0.5);
  // tf_crop_and_resize
  if (s.outputs == 1) return (s.start + s.end) / 2 * (inputs - 1);
  return (s.start + x * (s.end - s.start) / static_cast<double>(s.outputs - 1)) * (inputs - 1);
}

std::int64_t nearest_input(const Sampling& s, double x) {
  if (s.nearest == "round_prefer_floor") return static_cast<std::int64_t>(std::ceil(x - 0.5));
  if (s.nearest == "round_prefer_ceil") return static_cast<std::int64_t>(std::floor(x + 0.5));
  if (s.nearest == "floor") return static_cast<std::int64_t>(std::floor(x));
  return static_cast<std::int64_t>(std::ceil(x));
}

/// The kernel of Keys (1981) with parameter a.
double cubic_weight(double distance, double a) {
  const double d = std::fabs(distance);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  if (d < 2) return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  return 0;
}

void add_row(const Sampling& s, double x, ResizeMap& map) {
  const auto inside = [&](std::int64_t at) {
    return std::clamp<std::int64_t>(at, 0, s.inputs - 1);
  };
  if (s.leaves_out(x)) return;
  if (s.mode == "nearest") {
    map.index.push_back(inside(nearest_input(s, x)));
    map.weight.push_back(1);
    return;
  }
  const bool cubic = s.mode == "cubic";
  const double stretch = s.stretch();
  const std::size_t begin = map.weight.size();
  double total = 0;
  const auto floor = static_cast<std::int64_t>(std::floor(x));
  const auto low = static_cast<std::int64_t>(std::floor(-s.reach())) + 1;
  for (std::int64_t at = floor + low; at <= floor + 1 - low; ++at) {
    const double distance = (static_cast<double>(at) - x) * stretch;
    double weight =
        cubic ? cubic_weight(distance, s.cubic) : std::max(0.0, 1 - std::fabs(distance));
    if (s.exclude_outside && (at < 0 || at >= s.inputs)) weight = 0;
    if (weight == 0) continue;
    total += weight;
    // Positions outside are clamped to the edge; an existing term may be extended.
    if (map.weight.size() > begin && map.index.back() == inside(at)) {
      map.weight.back() += weight;
      continue;
    }
    map.index.push_back(inside(at));
    map.weight.push_back(weight);
  }
  if (!s.exclude_outside && !s.antialias) return;
  for (std::size_t k = begin; k < map.weight.size(); ++k) map.weight[k] /= total;
}

bool is_among(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Checked: everything else can be computed.
Sampling sampling_of(const Attributes& attributes, std::int64_t inputs) {
  const Sampling sampling{attributes.text("mode", "nearest"),
                          attributes.text("coordinates", "half_pixel"),
                          attributes.text("nearest", "round_prefer_floor"),
                          attributes.real("scale"),
                          attributes.real("cubic", -0.75),
                          inputs,
                          attributes.integer("size"),
                          attributes.flag("antialias"),
                          attributes.flag("exclude_outside"),
                          attributes.real("start", 0),
                          attributes.real("end", 1)};
  PT_CHECK(is_among(sampling.mode, {"nearest", "linear", "cubic"}), kModel,
           "Resize has no mode \"{}\"", printable(sampling.mode));
  PT_CHECK(is_among(sampling.coordinates,
                    {"half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners",
                     "half_pixel_symmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"}),
           kModel, "Resize with coordinates \"{}\" is not supported",
           printable(sampling.coordinates));
  PT_CHECK(
      sampling.mode != "nearest" ||
          is_among(sampling.nearest, {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}),
      kModel, "Resize has no nearest_mode \"{}\"", printable(sampling.nearest));
  PT_CHECK(sampling.scale > 0 && inputs > 0, kModel,
           "Resize needs a positive scale and at least one element");
  constexpr double kMostReads = 1e9;
  PT_CHECK(static_cast<double>(sampling.outputs) * sampling.reach() < kMostReads, kModel,
           "Resize to {} elements by a scale of {} reads too many", sampling.outputs,
           sampling.scale);
  return sampling;
}

}  // namespace

void check_resampling(const Attributes& attributes, std::int64_t inputs) {
  sampling_of(attributes, inputs);
}

std::vector<float> outputs_inside(const Attributes& attributes, std::int64_t inputs) {
  const Sampling sampling = sampling_of(attributes, inputs);
  std::vector<float> inside;
  for (std::int64_t i = 0; i < sampling.outputs; ++i) {
    inside.push_back(sampling.leaves_out(position(sampling, i)) ? 0.0F : 1.0F);
  }
  return inside;
}

ResizeMap make_resize_map(const Attributes& attributes, std::int64_t inputs) {
  const Sampling sampling = sampling_of(attributes, inputs);
  ResizeMap map;
  map.first.push_back(0);
  for (std::int64_t i = 0; i < sampling.outputs; ++i) {
    add_row(sampling, position(sampling, i), map);
    map.first.push_back(static_cast<std::int64_t>(map.index.size()));
  }
  return map;
}

ResizeMap transpose(const ResizeMap& map, std::int64_t inputs) {
  ResizeMap out;
  out.first.assign(static_cast<std::size_t>(inputs) + 1, 0);
  for (const std::int64_t input : map.index) ++out.first[static_cast<std::size_t>(input) + 1];
  for (std::size_t i = 1; i < out.first.size(); ++i) out.first[i] += out.first[i - 1];
  out.index.resize(map.index.size());
  out.weight.resize(map.weight.size());
  std::vector<std::int64_t> next(out.first.begin(), out.first.end() - 1);
  for (std::size_t output = 0; output + 1 < map.first.size(); ++output) {
    for (std::int64_t term = map.first[output]; term < map.first[output + 1]; ++term) {
      const auto from = static_cast<std::size_t>(term);
      const auto to = static_cast<std::size_t>(next[static_cast<std::size_t>(map.index[from])]++);
      out.index[to] = static_cast<std::int64_t>(output);
      out.weight[to] = map.weight[from];
    }
  }
  return out;
}

}  // namespace pipetrain
