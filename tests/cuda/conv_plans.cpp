// Measures the errors of cuDNN's plans for convolutions, the first kMostPlans of each graph:
//
//     conv_plans [--any] [RANDOM [PART PARTS]]
//
// Runs them for a fixed list of convolutions and RANDOM others (default 16), with PART and PARTS
// only for the PART-th, PART+PARTS-th … of these, in float32, bfloat16 and float16, without bias,
// and compares with sums in float64. Plans are those that the backend may choose; with --any also
// those that it excludes as inaccurate. Prints inaccurate plans and, for each kind of plan, how
// many ran, how often it was the first, and its largest error relative to the sum of the absolute
// terms, beyond the rounding of the result. Exit code: 0, 1 where a plan is inaccurate or fails or
// a convolution has none, 2 for a usage error, 77 without a GPU.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/conv/conv.h"
#include "ops/conv/conv_graph_cuda.h"

namespace {

using pipetrain::ConvGraph;
using pipetrain::ConvPass;
using pipetrain::ConvPlanChoice;
using pipetrain::ConvPrecision;
using pipetrain::ConvShapes;
using Dims = std::vector<std::int64_t>;

constexpr double kMostError = 1e-6;  // of the sum of absolute terms
constexpr int kMostPlans = 12;       // of each convolution: building one takes up to a second
constexpr std::int64_t kWorkspace = pipetrain::kMostConvWorkspace;

std::int64_t count(const Dims& dims) {
  std::int64_t out = 1;
  for (const std::int64_t size : dims) out *= size;
  return out;
}

ConvShapes shapes_of(Dims x, Dims w, const Dims& pad, const Dims& stride, const Dims& dilation) {
  pipetrain::Ints pads = pad;
  pads.insert(pads.end(), pad.begin(), pad.end());
  const pipetrain::Attributes attributes = {
      {"strides", stride}, {"dilations", dilation}, {"pads", pads}, {"group", x[1] / w[1]}};
  const auto geometry =
      pipetrain::conv_geometry(attributes, pipetrain::Shape(x), pipetrain::Shape(w));
  Dims y = pipetrain::window_outputs(x[0], w[0], geometry.window).dims();
  return {std::move(x), std::move(w), std::move(y), pad, pad, stride, dilation, false};
}

std::vector<ConvShapes> cases(int random) {
  std::vector<ConvShapes> out = {
      shapes_of({7, 48, 17, 14}, {80, 48, 3, 3}, {1, 1}, {1, 1}, {1, 1}),
      shapes_of({2, 20, 7, 7}, {50, 20, 5, 5}, {0, 0}, {1, 1}, {1, 1}),
      shapes_of({4, 64, 8, 8}, {64, 64, 3, 3}, {1, 1}, {1, 1}, {1, 1}),
      shapes_of({4, 96, 16, 16}, {96, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1}),
      shapes_of({4, 96, 16, 16}, {96, 1, 5, 5}, {2, 2}, {2, 2}, {1, 1}),
      shapes_of({4, 96, 16, 16}, {96, 1, 7, 7}, {3, 3}, {1, 1}, {1, 1}),
      shapes_of({4, 32, 32, 32}, {64, 32, 3, 3}, {1, 1}, {2, 2}, {1, 1}),
      shapes_of({8, 128, 14, 14}, {128, 128, 1, 1}, {0, 0}, {1, 1}, {1, 1}),
      shapes_of({4, 3, 64, 64}, {64, 3, 7, 7}, {3, 3}, {2, 2}, {1, 1}),
      shapes_of({4, 3, 64, 64}, {96, 3, 4, 4}, {0, 0}, {4, 4}, {1, 1}),
      shapes_of({4, 64, 16, 16}, {64, 16, 3, 3}, {1, 1}, {1, 1}, {1, 1}),
      shapes_of({2, 32, 24, 24}, {32, 32, 3, 3}, {2, 2}, {1, 1}, {2, 2})};
  std::mt19937 generator(7);
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(generator()) % bound;
  };
  const Dims channels = {3, 8, 16, 20, 24, 32, 40, 48, 64, 72, 96};
  for (int i = 0; i < random; ++i) {
    const std::int64_t c = channels[below(11)];
    const std::int64_t group = below(4) > 0 ? 1 : below(2) ? c : c % 4 == 0 ? 4 : 1;
    const std::int64_t m = group > 1 ? group * (1 + below(3)) : channels[below(11)];
    const std::int64_t stride = below(3) == 0 ? 2 : 1, dilation = below(5) == 0 ? 2 : 1;
    Dims x = {1 + below(8), c}, w = {m, c / group}, pad;
    for (int axis = 0; axis < 2; ++axis) {
      w.push_back(axis == 1 && below(4) > 0 ? w[2]
                  : below(3) > 0            ? 1 + 2 * below(4)
                                            : 1 + below(6));
      x.push_back((w.back() - 1) * dilation + 1 + below(24));
      pad.push_back((w.back() - 1) / 2 * dilation);
    }
    out.push_back(shapes_of(x, w, pad, {stride, stride}, {dilation, dilation}));
  }
  return out;
}

/// Random operands, and per pass the exact results and the sums of their absolute terms.
struct Exact {
  std::vector<double> operands[3], results[3], sizes[3];  // x, w and y; by pass
};

Exact exact(const ConvShapes& s, bool narrow) {
  Exact out;
  std::mt19937 generator(11);
  std::normal_distribution<float> normal;
  const Dims* dims[] = {&s.x, &s.w, &s.y};
  for (int i = 0; i < 3; ++i) {
    out.operands[i].resize(count(*dims[i]));
    // bfloat16 numbers of this size are float16 ones as well.
    for (double& value : out.operands[i]) {
      const float drawn = normal(generator);
      value = narrow ? __bfloat162float(__float2bfloat16(drawn)) : drawn;
    }
  }
  const int result_of[] = {2, 0, 1};
  for (int pass = 0; pass < 3; ++pass) {
    out.results[pass].resize(out.operands[result_of[pass]].size());
    out.sizes[pass].resize(out.results[pass].size());
  }
  const auto add = [&](int pass, std::int64_t at, double term) {
    out.results[pass][at] += term;
    out.sizes[pass][at] += std::fabs(term);
  };
  const std::int64_t per_group = s.w[0] / (s.x[1] / s.w[1]);
  std::int64_t yi = 0;
  for (std::int64_t n = 0; n < s.y[0]; ++n)
    for (std::int64_t m = 0; m < s.y[1]; ++m)
      for (std::int64_t oy = 0; oy < s.y[2]; ++oy)
        for (std::int64_t ox = 0; ox < s.y[3]; ++ox, ++yi)
          for (std::int64_t c = 0; c < s.w[1]; ++c)
            for (std::int64_t ky = 0; ky < s.w[2]; ++ky) {
              const std::int64_t iy = oy * s.stride[0] - s.pad_begin[0] + ky * s.dilation[0];
              if (iy < 0 || iy >= s.x[2]) continue;
              const std::int64_t channel = m / per_group * s.w[1] + c;
              const std::int64_t x_row = ((n * s.x[1] + channel) * s.x[2] + iy) * s.x[3];
              const std::int64_t w_row = ((m * s.w[1] + c) * s.w[2] + ky) * s.w[3];
              for (std::int64_t kx = 0; kx < s.w[3]; ++kx) {
                const std::int64_t ix = ox * s.stride[1] - s.pad_begin[1] + kx * s.dilation[1];
                if (ix < 0 || ix >= s.x[3]) continue;
                const double x = out.operands[0][x_row + ix], w = out.operands[1][w_row + kx],
                             dy = out.operands[2][yi];
                add(0, yi, x * w);
                add(1, x_row + ix, dy * w);
                add(2, w_row + kx, x * dy);
              }
            }
  return out;
}

/// One number as the GPU has it.
struct Type {
  const char* name;
  ConvPrecision numbers;
  std::size_t bytes;
  double rounding, smallest;  // half of the distance between numbers: relative, and at least

  void put(double value, char* to) const {
    if (numbers == ConvPrecision::kFloat16) return set(to, __float2half(static_cast<float>(value)));
    if (numbers == ConvPrecision::kBFloat16)
      return set(to, __float2bfloat16(static_cast<float>(value)));
    set(to, static_cast<float>(value));
  }
  double get(const char* from) const {
    if (numbers == ConvPrecision::kFloat16) return __half2float(taken<__half>(from));
    if (numbers == ConvPrecision::kBFloat16) return __bfloat162float(taken<__nv_bfloat16>(from));
    return taken<float>(from);
  }

 private:
  template <class T>
  static void set(char* to, T value) {
    std::memcpy(to, &value, sizeof value);
  }
  template <class T>
  static T taken(const char* from) {
    T out;
    std::memcpy(&out, from, sizeof out);
    return out;
  }
};
const Type kTypes[] = {{"float32", ConvPrecision::kFloat, 4, 0, 0},
                       {"bfloat16", ConvPrecision::kBFloat16, 2, 0x1p-8, 0},
                       {"float16", ConvPrecision::kFloat16, 2, 0x1p-11, 0x1p-25}};

/// Places of a row-major tensor's elements in memory.
std::vector<std::int64_t> places(const Dims& dims, const Dims& strides) {
  std::vector<std::int64_t> out;
  for (std::int64_t a = 0; a < dims[0]; ++a)
    for (std::int64_t b = 0; b < dims[1]; ++b)
      for (std::int64_t y = 0; y < dims[2]; ++y)
        for (std::int64_t x = 0; x < dims[3]; ++x)
          out.push_back(a * strides[0] + b * strides[1] + y * strides[2] + x * strides[3]);
  return out;
}

void check(cudaError_t status) {
  PT_CHECK(status == cudaSuccess, kDevice, "CUDA failed: {}", cudaGetErrorString(status));
}

/// Memory of the GPU.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) { check(cudaMalloc(&data_, std::max<std::size_t>(bytes, 1))); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data_); }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

struct Found {
  int plans = 0, first = 0;
  double error = 0;
};

class PlanErrors {
 public:
  PlanErrors(cudnnHandle_t handle, ConvPlanChoice choice)
      : handle_(handle), choice_(choice), workspace_(static_cast<std::size_t>(kWorkspace)) {}

  void run(const ConvShapes& shapes) {
    for (const Type& type : kTypes) {
      const bool narrow = type.numbers != ConvPrecision::kFloat;
      const Exact numbers = exact(shapes, narrow);
      for (const bool channels_last : {false, true}) {
        if (channels_last && !narrow) continue;  // in float32, only TF32 graphs have channels last
        for (int pass = 0; pass < 3; ++pass) {
          ConvShapes s = shapes;
          s.numbers = type.numbers;
          s.channels_last = channels_last;
          s.float_bias = s.float_result = !narrow;
          run_plans(s, static_cast<ConvPass>(pass), type, numbers);
        }
      }
    }
  }

  /// Whether plans ran for all convolutions, and all of them were accurate.
  bool print() const {
    int plans = 0;
    for (const auto& [name, found] : found_) {
      plans += found.plans;
      std::printf("%-50s %4d plans, first %3d times, %.1e\n", name.c_str(), found.plans,
                  found.first, found.error);
    }
    std::printf("%d plans, %d wrong, %d graphs without a plan\n", plans, wrong_, without_);
    return plans > 0 && wrong_ == 0 && without_ == 0;
  }

 private:
  void run_plans(const ConvShapes& s, ConvPass pass, const Type& type, const Exact& numbers) {
    const int p = static_cast<int>(pass);
    const int first = pass == ConvPass::kForward ? 0 : 2;
    const int second = pass == ConvPass::kWeightGradient ? 0 : 1;
    const Dims* dims[] = {&s.x, &s.w, &s.y};
    const Buffer a(type.bytes * numbers.operands[first].size());
    const Buffer b(type.bytes * numbers.operands[second].size());
    fill(a, *dims[first], s, type, numbers.operands[first]);
    fill(b, *dims[second], s, type, numbers.operands[second]);
    const Dims& result = *dims[(p + 2) % 3];
    const Buffer out(type.bytes * numbers.results[p].size());
    std::string reason;
    const char* passes[] = {"forward", "input gradient", "weight gradient"};
    const std::string kind = std::string(type.name) + " " + passes[p] +
                             (s.channels_last ? ", channels last, " : ", row-major, ");
    ConvGraph graph(pass, s, kWorkspace, choice_);
    const std::int64_t offered = graph.count_plans(handle_, &reason);
    int ran = 0;
    for (std::int64_t i = 0; i < offered && ran < kMostPlans; ++i) {
      std::string name;
      if (!graph.build_plan(i, &name)) continue;
      check(cudaMemset(out.data(), 0xff, type.bytes * numbers.results[p].size()));  // NaN
      try {
        graph.run(handle_, a.data(), b.data(), nullptr, out.data(), workspace_.data());
      } catch (const pipetrain::Error& failure) {
        ++wrong_;
        std::printf("failed: %s%s, x %s: %s\n", kind.c_str(), name.c_str(), text(s.x).c_str(),
                    failure.what());
        continue;
      }
      const double error = error_of(out, result, s, type, numbers.results[p], numbers.sizes[p]);
      Found& found = found_[kind + name.substr(0, name.find('_'))];
      found.error = std::max(found.error, error);
      ++found.plans;
      found.first += ran++ == 0;
      if (error <= kMostError) continue;
      ++wrong_;
      std::printf("inaccurate: %s%s, %.1e: x %s, w %s, stride %ld, dilation %ld\n", kind.c_str(),
                  name.c_str(), error, text(s.x).c_str(), text(s.w).c_str(),
                  static_cast<long>(s.stride[0]), static_cast<long>(s.dilation[0]));
    }
    if (ran > 0) return;
    ++without_;
    std::printf("none: %s%s: %s\n", kind.c_str(), text(s.x).c_str(), reason.c_str());
  }

  static std::string text(const Dims& dims) {
    std::string out;
    for (const std::int64_t size : dims) out += (out.empty() ? "" : "x") + std::to_string(size);
    return out;
  }

  static void fill(const Buffer& buffer, const Dims& dims, const ConvShapes& s, const Type& type,
                   const std::vector<double>& values) {
    std::vector<char> bytes(values.size() * type.bytes);
    const std::vector<std::int64_t> to = places(dims, s.strides_of(dims));
    for (std::size_t i = 0; i < values.size(); ++i)
      type.put(values[i], bytes.data() + to[i] * type.bytes);
    check(cudaMemcpy(buffer.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  }

  static double error_of(const Buffer& out, const Dims& dims, const ConvShapes& s, const Type& type,
                         const std::vector<double>& results, const std::vector<double>& sizes) {
    std::vector<char> bytes(results.size() * type.bytes);
    check(cudaMemcpy(bytes.data(), out.data(), bytes.size(), cudaMemcpyDeviceToHost));
    const std::vector<std::int64_t> from = places(dims, s.strides_of(dims));
    double worst = 0;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const double off = std::fabs(type.get(bytes.data() + from[i] * type.bytes) - results[i]);
      if (std::isnan(off)) return std::numeric_limits<double>::infinity();
      const double rounding = std::max(std::fabs(results[i]) * type.rounding, type.smallest);
      worst = std::max(worst, (off - rounding * 1.0001) / std::max(sizes[i], 1e-30));
    }
    return worst;
  }

  cudnnHandle_t handle_;
  ConvPlanChoice choice_;
  Buffer workspace_;
  std::map<std::string, Found> found_;
  int wrong_ = 0, without_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const bool any = std::erase(words, "--any") > 0;
  int numbers[] = {16, 1, 1};  // random ones, part, parts
  bool are_numbers = words.size() <= 3;
  for (std::size_t i = 0; are_numbers && i < words.size(); ++i) {
    const char* const end = words[i].data() + words[i].size();
    are_numbers = std::from_chars(words[i].data(), end, numbers[i]).ptr == end;
  }
  const auto [random, part, parts] = numbers;
  if (!are_numbers || random < 0 || part < 1 || part > parts) {
    std::printf("usage: conv_plans [--any] [RANDOM [PART PARTS]]\n");
    return 2;
  }
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("skipped: there is no GPU\n");
    return 77;
  }
  try {
    cudnnHandle_t handle = nullptr;
    PT_CHECK(cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS, kDevice, "cuDNN does not start");
    PlanErrors errors(handle, any ? ConvPlanChoice::kAny : ConvPlanChoice::kAccurate);
    const std::vector<ConvShapes> list = cases(random);
    for (auto i = static_cast<std::size_t>(part - 1); i < list.size();
         i += static_cast<std::size_t>(parts))
      errors.run(list[i]);
    return errors.print() ? 0 : 1;
  } catch (const pipetrain::Error& failure) {
    std::printf("failed: %s\n", failure.what());
    return 1;
  }
}
