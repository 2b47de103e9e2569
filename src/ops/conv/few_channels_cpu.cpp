#include "ops/conv/few_channels_cpu.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "ops/kernel/vector8_cpu.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kLanes = 8;

std::int64_t whole_vectors(std::int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

/// A sample's planes with zeros around them, so that no window and no vector leaves them.
struct Padded {
  explicit Padded(const FewChannels& shape)
      : y_row(whole_vectors(shape.out_width)),
        x_row(whole_vectors(y_row + shape.kernel - 1)),
        x_plane((shape.out_height + shape.kernel_rows - 1) * x_row),
        y_plane(shape.out_height * y_row) {}
  std::int64_t y_row, x_row, x_plane, y_plane;
};

/// A thread's part of the workspace.
struct Scratch {
  float *x, *y, *sums;  // sums: vectors (outputs, inputs, kernel_rows, kernel), then (outputs)
};

std::int64_t sums_of(const FewChannels& shape) {
  return shape.outputs * (shape.inputs * shape.kernel_rows * shape.kernel + 1);
}

std::int64_t scratch_floats(const FewChannels& shape) {
  const Padded padded(shape);
  return shape.inputs * padded.x_plane + shape.outputs * padded.y_plane + sums_of(shape) * kLanes;
}

Scratch scratch_of(const FewChannels& shape, std::byte* workspace, int thread) {
  const Padded padded(shape);
  float* x = reinterpret_cast<float*>(workspace) + thread * scratch_floats(shape);
  float* y = x + shape.inputs * padded.x_plane;
  return {x, y, y + shape.outputs * padded.y_plane};
}

void pad_sample(const FewChannels& shape, const Padded& padded, const float* x, float* to) {
  for (std::int64_t c = 0; c < shape.inputs; ++c) {
    for (std::int64_t row = 0; row < shape.height; ++row) {
      std::memcpy(to + c * padded.x_plane + (row + shape.pad_top) * padded.x_row + shape.pad_left,
                  x + (c * shape.height + row) * shape.width,
                  static_cast<std::size_t>(shape.width) * sizeof(float));
    }
  }
}

/// Calls body(thread, first sample, one past the last) for each thread of a team.
template <class Body>
void share_samples(const FewChannels& shape, int threads, Body body) {
#pragma omp parallel num_threads(threads)
  {
    const std::int64_t team = omp_get_num_threads(), thread = omp_get_thread_num();
    body(static_cast<int>(thread), shape.batch * thread / team, shape.batch * (thread + 1) / team);
  }
}

/// Rows of kOutputs output channels of a sample, kVectors vectors of neighbouring columns at a
/// time.
template <int kOutputs, int kVectors>
void forward_columns(const FewChannels& shape, const Padded& padded, const float* x, const float* w,
                     const float* bias, std::int64_t row, std::int64_t column, float* y) {
  const std::int64_t filter = shape.inputs * shape.kernel_rows * shape.kernel;
  Vector8 sum[kOutputs][kVectors];
  for (int m = 0; m < kOutputs; ++m) {
    for (Vector8& one : sum[m]) one = fill8(bias ? bias[m] : 0.0F);
  }
  for (std::int64_t c = 0; c < shape.inputs; ++c) {
    for (std::int64_t a = 0; a < shape.kernel_rows; ++a) {
      const float* from = x + c * padded.x_plane + (row + a) * padded.x_row + column;
      const float* weights = w + (c * shape.kernel_rows + a) * shape.kernel;
      for (std::int64_t b = 0; b < shape.kernel; ++b) {
        Vector8 factor[kOutputs];
        for (int m = 0; m < kOutputs; ++m) factor[m] = fill8(weights[m * filter + b]);
        for (int v = 0; v < kVectors; ++v) {
          const Vector8 input = load8(from + b + v * kLanes);
          for (int m = 0; m < kOutputs; ++m) sum[m][v] += factor[m] * input;
        }
      }
    }
  }
  for (int m = 0; m < kOutputs; ++m) {
    float* to = y + (m * shape.out_height + row) * shape.out_width + column;
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t left = shape.out_width - column - v * kLanes;
      if (left >= kLanes) {
        store8(to + v * kLanes, sum[m][v]);
      } else {
        for (std::int64_t i = 0; i < left; ++i) to[v * kLanes + i] = sum[m][v][i];
      }
    }
  }
}

template <int kOutputs>
void forward_rows(const FewChannels& shape, const Padded& padded, const float* x, const float* w,
                  const float* bias, float* y) {
  constexpr int kVectors = 4;
  for (std::int64_t row = 0; row < shape.out_height; ++row) {
    std::int64_t column = 0;
    for (; column + (kVectors - 1) * kLanes < shape.out_width; column += kVectors * kLanes)
      forward_columns<kOutputs, kVectors>(shape, padded, x, w, bias, row, column, y);
    for (; column < shape.out_width; column += kLanes)
      forward_columns<kOutputs, 1>(shape, padded, x, w, bias, row, column, y);
  }
}

/// Adds a sample's part to the sums of kOutputs output channels for one row of taps.
template <int kOutputs, int kTaps>
void gradient_taps(const FewChannels& shape, const Padded& padded, const float* x, const float* dy,
                   std::int64_t filter, float* sums) {
  Vector8 sum[kOutputs][kTaps];
  for (int m = 0; m < kOutputs; ++m) {
    for (int b = 0; b < kTaps; ++b) sum[m][b] = load8(sums + (m * filter + b) * kLanes);
  }
  for (std::int64_t row = 0; row < shape.out_height; ++row) {
    for (std::int64_t column = 0; column < padded.y_row; column += kLanes) {
      Vector8 gradient[kOutputs];
      for (int m = 0; m < kOutputs; ++m)
        gradient[m] = load8(dy + m * padded.y_plane + row * padded.y_row + column);
      for (int b = 0; b < kTaps; ++b) {
        const Vector8 input = load8(x + row * padded.x_row + column + b);
        for (int m = 0; m < kOutputs; ++m) sum[m][b] += gradient[m] * input;
      }
    }
  }
  for (int m = 0; m < kOutputs; ++m) {
    for (int b = 0; b < kTaps; ++b) store8(sums + (m * filter + b) * kLanes, sum[m][b]);
  }
}

template <int kOutputs>
void gradient_rows(const FewChannels& shape, const Padded& padded, const float* x, const float* dy,
                   float* sums) {
  const std::int64_t filter = shape.inputs * shape.kernel_rows * shape.kernel;
  for (std::int64_t c = 0; c < shape.inputs; ++c) {
    for (std::int64_t a = 0; a < shape.kernel_rows; ++a) {
      const float* from = x + c * padded.x_plane + a * padded.x_row;
      float* to = sums + (c * shape.kernel_rows + a) * shape.kernel * kLanes;
      if (shape.kernel == 3) {
        gradient_taps<kOutputs, 3>(shape, padded, from, dy, filter, to);
      } else {
        gradient_taps<kOutputs, 5>(shape, padded, from, dy, filter, to);
      }
    }
  }
}

/// Copies the gradients of a sample and adds them up for the bias.
void pad_gradient(const FewChannels& shape, const Padded& padded, const float* dy, float* to,
                  float* bias_sums) {
  for (std::int64_t m = 0; m < shape.outputs; ++m) {
    Vector8 sum = load8(bias_sums + m * kLanes);
    for (std::int64_t row = 0; row < shape.out_height; ++row) {
      float* line = to + m * padded.y_plane + row * padded.y_row;
      std::memcpy(line, dy + (m * shape.out_height + row) * shape.out_width,
                  static_cast<std::size_t>(shape.out_width) * sizeof(float));
      for (std::int64_t column = 0; column < padded.y_row; column += kLanes)
        sum += load8(line + column);
    }
    store8(bias_sums + m * kLanes, sum);
  }
}

float total(const float* lanes) {
  float sum = 0;
  for (std::int64_t i = 0; i < kLanes; ++i) sum += lanes[i];
  return sum;
}

}  // namespace

std::optional<FewChannels> few_channels(const ConvGeometry& geometry) {
  constexpr std::int64_t kMostInputs = 4, kMostOutputs = 15;
  if (geometry.group != 1 || geometry.window.size() != 2 || geometry.inputs > kMostInputs ||
      geometry.outputs > kMostOutputs) {
    return {};
  }
  for (const WindowAxis& axis : geometry.window) {
    const bool enters = axis.pad_begin >= 0 && axis.pad_end >= 0;
    if (axis.stride != 1 || axis.dilation != 1 || axis.output < kLanes || !enters) return {};
  }
  const WindowAxis& rows = geometry.window[0];
  const WindowAxis& columns = geometry.window[1];
  if (columns.kernel != 3 && columns.kernel != 5) return {};
  return FewChannels{geometry.batch,    geometry.inputs, geometry.outputs, rows.input,
                     columns.input,     rows.kernel,     columns.kernel,   rows.pad_begin,
                     columns.pad_begin, rows.output,     columns.output};
}

std::size_t few_channels_workspace_bytes(const FewChannels& shape, int threads) {
  return static_cast<std::size_t>(scratch_floats(shape) * threads) * sizeof(float);
}

void few_channels_forward(const FewChannels& shape, const float* x, const float* w,
                          const float* bias, float* y, std::byte* workspace, int threads) {
  constexpr int kOutputs = 3;
  const Padded padded(shape);
  const std::int64_t filter = shape.inputs * shape.kernel_rows * shape.kernel;
  const std::int64_t plane = shape.out_height * shape.out_width;
  share_samples(shape, threads, [&](int thread, std::int64_t first, std::int64_t last) {
    const Scratch own = scratch_of(shape, workspace, thread);
    std::fill(own.x, own.y, 0.0F);
    for (std::int64_t n = first; n < last; ++n) {
      pad_sample(shape, padded, x + n * shape.inputs * shape.height * shape.width, own.x);
      float* to = y + n * shape.outputs * plane;
      std::int64_t m = 0;
      for (; m + kOutputs <= shape.outputs; m += kOutputs) {
        forward_rows<kOutputs>(shape, padded, own.x, w + m * filter, bias ? bias + m : nullptr,
                               to + m * plane);
      }
      for (; m < shape.outputs; ++m) {
        forward_rows<1>(shape, padded, own.x, w + m * filter, bias ? bias + m : nullptr,
                        to + m * plane);
      }
    }
  });
}

void few_channels_weight_gradient(const FewChannels& shape, const float* x, const float* dy,
                                  float* dw, float* dbias, std::byte* workspace, int threads) {
  constexpr int kOutputs = 2;
  const Padded padded(shape);
  const std::int64_t filter = shape.inputs * shape.kernel_rows * shape.kernel;
  int team = 1;
  share_samples(shape, threads, [&](int thread, std::int64_t first, std::int64_t last) {
    if (thread == 0) team = omp_get_num_threads();
    const Scratch own = scratch_of(shape, workspace, thread);
    std::fill(own.x, own.sums + sums_of(shape) * kLanes, 0.0F);
    float* bias_sums = own.sums + shape.outputs * filter * kLanes;
    for (std::int64_t n = first; n < last; ++n) {
      pad_sample(shape, padded, x + n * shape.inputs * shape.height * shape.width, own.x);
      pad_gradient(shape, padded, dy + n * shape.outputs * shape.out_height * shape.out_width,
                   own.y, bias_sums);
      std::int64_t m = 0;
      for (; m + kOutputs <= shape.outputs; m += kOutputs) {
        gradient_rows<kOutputs>(shape, padded, own.x, own.y + m * padded.y_plane,
                                own.sums + m * filter * kLanes);
      }
      for (; m < shape.outputs; ++m) {
        gradient_rows<1>(shape, padded, own.x, own.y + m * padded.y_plane,
                         own.sums + m * filter * kLanes);
      }
    }
  });
  // In the order of the threads, whichever was first.
  const auto sum_of_threads = [&](std::int64_t place) {
    float sum = 0;
    for (int thread = 0; thread < team; ++thread)
      sum += total(scratch_of(shape, workspace, thread).sums + place * kLanes);
    return sum;
  };
  for (std::int64_t i = 0; i < shape.outputs * filter; ++i) dw[i] = sum_of_threads(i);
  for (std::int64_t m = 0; dbias && m < shape.outputs; ++m)
    dbias[m] = sum_of_threads(shape.outputs * filter + m);
}

}  // namespace pipetrain
