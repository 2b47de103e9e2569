// Element-wise kernels: threads process groups of eight elements, two groups at once, where sizes,
// strides and addresses allow, and single elements elsewhere.
//
// Bytes for GPT-2 124M with 8 x 1024 tokens (estimates, H200 at 4.3 TB/s): what a kernel reads and
// writes, 12.6 MB or 3 us for each tensor (8192, 768) of bfloat16, 50 MB or 12 us for each of the
// Gelu's (8192, 3072). Arithmetic, about 20 to 30 instructions an element of a Gelu or its gradient
// (25 M of them: 20 to 27 us on 132 multiprocessors), is as long as its memory accesses. Measured
// on an H200 before (divisions, erfc, one group at once): Gelu 55 us, its gradient 70.5 us,
// and 28.7 us for a product with a scalar, element by element with 64-bit index arithmetic.
#include <type_traits>

#include "ops/cuda/alike_cuda.h"
#include "ops/cuda/divider_cuda.h"
#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/kernels_cuda_launch.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/elementwise/elementwise_list_cuda.h"
#include "ops/elementwise/strided_cuda.h"

namespace pipetrain {
namespace elementwise {
namespace {

template <class F>
__global__ void map_one(F f, ConstFloatView x, FloatView y, std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) y[i] = f(x[i]);
}

template <class F>
__global__ void map_two(F f, ConstFloatView a, ConstFloatView b, FloatView y, std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) y[i] = f(a[i], b[i]);
}

/// Groups that a thread loads before it stores their results.
constexpr int kHeld = 2;
/// Blocks that shall fit a multiprocessor: up to 80 registers for each thread.
constexpr int kResident = 3;

template <class Types, class F>
__global__ void __launch_bounds__(kBlock, kResident)
    map_one_wide(Types, F f, ConstFloatView stored_x, FloatView stored_y, std::int64_t groups) {
  const ConstFloatView x = Types::of(stored_x);
  const FloatView y = Types::of(stored_y);
  const std::int64_t step = step_of_thread();
  for (std::int64_t first = first_of_thread(); first < groups; first += kHeld * step) {
    WideFloats values[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (first + k * step < groups) values[k] = load_wide(x, first + k * step);
    }
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (first + k * step >= groups) continue;
#pragma unroll
      for (int i = 0; i < kWide; ++i) values[k].values[i] = f(values[k].values[i]);
      store_wide(y, first + k * step, values[k]);
    }
  }
}

template <class Types, class F>
__global__ void __launch_bounds__(kBlock, kResident)
    map_two_wide(Types, F f, ConstFloatView stored_a, ConstFloatView stored_b, FloatView stored_y,
                 std::int64_t groups) {
  const ConstFloatView a = Types::of(stored_a), b = Types::of(stored_b);
  const FloatView y = Types::of(stored_y);
  const std::int64_t step = step_of_thread();
  for (std::int64_t first = first_of_thread(); first < groups; first += kHeld * step) {
    WideFloats left[kHeld], right[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (first + k * step >= groups) continue;
      left[k] = load_wide(a, first + k * step);
      right[k] = load_wide(b, first + k * step);
    }
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (first + k * step >= groups) continue;
#pragma unroll
      for (int i = 0; i < kWide; ++i) left[k].values[i] = f(left[k].values[i], right[k].values[i]);
      store_wide(y, first + k * step, left[k]);
    }
  }
}

/// Whether `count` elements form groups that can be loaded and stored at once.
bool is_wide(std::int64_t count, const ConstFloatView& a, const ConstFloatView& b,
             const FloatView& y) {
  return count % kWide == 0 && moves_wide(a.data) && moves_wide(b.data) && moves_wide(y.data);
}

/// Several rounds of the device, so that none waits long for the last blocks.
unsigned blocks_of_groups(std::int64_t groups, const CudaQueue& queue) {
  const std::int64_t wanted = (groups + kBlock * kHeld - 1) / (kBlock * kHeld);
  const std::int64_t most = std::int64_t{64} * queue.multiprocessors;
  return static_cast<unsigned>(wanted < most ? wanted : most);
}

template <class F>
void map_flat(F f, const ConstFloatView& x, const FloatView& y, std::int64_t count,
              const CudaQueue& queue) {
  // Slow paths of eight inlined calls would take too many registers.
  if constexpr (!std::is_base_of_v<OfLibrary, F>) {
    const std::int64_t groups = count / kWide;
    if (is_wide(count, x, x, y)) {
      with_types(x.stored, x.stored, y.stored, [&](auto types) {
        PT_LAUNCH(map_one_wide, blocks_of_groups(groups, queue), kBlock, queue.stream, types, f, x,
                  y, groups);
      });
      return;
    }
  }
  PT_LAUNCH(map_one, blocks_for(count, queue), kBlock, queue.stream, f, x, y, count);
}

template <class F>
void map_flat(F f, const ConstFloatView& a, const ConstFloatView& b, const FloatView& y,
              std::int64_t count, const CudaQueue& queue) {
  const std::int64_t groups = count / kWide;
  if (is_wide(count, a, b, y)) {
    with_types(a.stored, b.stored, y.stored, [&](auto types) {
      PT_LAUNCH(map_two_wide, blocks_of_groups(groups, queue), kBlock, queue.stream, types, f, a, b,
                y, groups);
    });
  } else {
    PT_LAUNCH(map_two, blocks_for(count, queue), kBlock, queue.stream, f, a, b, y, count);
  }
}

__global__ void add_up(PT_LARGE(Summands) summands, FloatView y, std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    float sum = summands.x[0][i];
    for (int k = 1; k < summands.count; ++k) sum += summands.x[k][i];
    y[i] = sum;
  }
}

/// The same in groups, some of whose summands are loaded together.
__global__ void __launch_bounds__(kBlock, kResident)
    add_up_wide(PT_LARGE(Summands) summands, FloatView y, std::int64_t groups) {
  for (std::int64_t group = first_of_thread(); group < groups; group += step_of_thread()) {
    WideFloats sum = load_wide(summands.x[0], group);
#pragma unroll 4
    for (int k = 1; k < summands.count; ++k) {
      const WideFloats next = load_wide(summands.x[k], group);
#pragma unroll
      for (int i = 0; i < kWide; ++i) sum.values[i] += next.values[i];
    }
    store_wide(y, group, sum);
  }
}

bool is_wide(const Summands& summands, const FloatView& y, std::int64_t count) {
  for (int k = 0; k < summands.count; ++k) {
    if (!is_wide(count, summands.x[k], summands.x[k], y)) return false;
  }
  return true;
}

template <class F, class Y>
__global__ void map_broadcast(F f, Strided plan, ConstFloatView a, ConstFloatView b, Y y,
                              std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    std::int64_t at[2];
    locate(plan, i, at);
    y[i] = f(a[at[0]], b[at[1]]);
  }
}

/// A broadcast in groups of kWide elements of the innermost axis. An operand that runs along this
/// axis has strides in groups, another one (the same value for a group) in elements.
struct WideStrided {
  int dimensions;
  bool along[2];
  Divider sizes[kMostDimensions];
  std::int64_t strides[2][kMostDimensions];
};

/// False where an operand does not consist of such groups.
bool in_groups(const Strided& plan, const ConstFloatView& a, const ConstFloatView& b,
               const FloatView& y, std::int64_t count, WideStrided& out) {
  const int last = plan.dimensions - 1;
  if (plan.sizes[last] % kWide != 0 || !moves_wide(y.data) || !divides_quickly(count / kWide))
    return false;
  out.dimensions = plan.dimensions;
  for (int d = 0; d <= last; ++d)
    out.sizes[d] = Divider(d == last ? plan.sizes[d] / kWide : plan.sizes[d]);
  for (int k = 0; k < 2; ++k) {
    const std::int64_t inner = plan.strides[k][last];
    out.along[k] = inner == 1;
    if (inner != 0 && (inner != 1 || !moves_wide(k == 0 ? a.data : b.data))) return false;
    for (int d = 0; d < last; ++d) {
      if (out.along[k] && plan.strides[k][d] % kWide != 0) return false;
      out.strides[k][d] = out.along[k] ? plan.strides[k][d] / kWide : plan.strides[k][d];
    }
    out.strides[k][last] = inner;
  }
  return true;
}

template <class Types>
__device__ __forceinline__ WideFloats load_operand(const ConstFloatView& from, bool along,
                                                   std::int64_t at) {
  if (along) return load_wide(Types::of(from), at);
  const float value = from[at];
  WideFloats out;
#pragma unroll
  for (int i = 0; i < kWide; ++i) out.values[i] = value;
  return out;
}

template <class Types, class F>
__global__ void __launch_bounds__(kBlock, kResident)
    map_broadcast_wide(Types, F f, PT_LARGE(WideStrided) plan, ConstFloatView a, ConstFloatView b,
                       FloatView stored_y, std::int64_t groups) {
  const FloatView y = Types::of(stored_y);
  const std::int64_t step = step_of_thread();
  for (std::int64_t first = first_of_thread(); first < groups; first += kHeld * step) {
    WideFloats left[kHeld], right[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (first + k * step >= groups) continue;
      auto rest = static_cast<std::uint32_t>(first + k * step);
      std::int64_t at[2] = {0, 0};
      for (int d = plan.dimensions - 1; d > 0; --d) {
        const std::uint32_t outer = plan.sizes[d].quotient(rest);
        const std::int64_t index = plan.sizes[d].rest(rest, outer);
        at[0] += index * plan.strides[0][d];
        at[1] += index * plan.strides[1][d];
        rest = outer;
      }
      at[0] += rest * plan.strides[0][0];
      at[1] += rest * plan.strides[1][0];
      left[k] = load_operand<Types>(a, plan.along[0], at[0]);
      right[k] = load_operand<Types>(b, plan.along[1], at[1]);
    }
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (first + k * step >= groups) continue;
#pragma unroll
      for (int i = 0; i < kWide; ++i) left[k].values[i] = f(left[k].values[i], right[k].values[i]);
      store_wide(y, first + k * step, left[k]);
    }
  }
}

template <class F>
void map_strided(F f, const Strided& plan, const ConstFloatView& a, const ConstFloatView& b,
                 const FloatView& y, std::int64_t count, const CudaQueue& queue) {
  WideStrided wide{};
  if (!in_groups(plan, a, b, y, count, wide)) {
    PT_LAUNCH(map_broadcast, blocks_for(count, queue), kBlock, queue.stream, f, plan, a, b, y,
              count);
    return;
  }
  const std::int64_t groups = count / kWide;
  with_types(wide.along[0] ? a.stored : y.stored, wide.along[1] ? b.stored : y.stored, y.stored,
             [&](auto types) {
               PT_LAUNCH(map_broadcast_wide, blocks_of_groups(groups, queue), kBlock, queue.stream,
                         types, f, wide, a, b, y, groups);
             });
}

template <class From, class To>
__global__ void select(Strided plan, const std::uint8_t* condition, From a, From b, To y,
                       std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    std::int64_t at[3];
    locate(plan, i, at);
    y[i] = condition[at[0]] != 0 ? a[at[1]] : b[at[2]];
  }
}

struct Same {
  template <class T>
  PT_HOST_DEVICE T operator()(T x) const {
    return x;
  }
};

template <class T>
void choose(const Strided& plan, const std::uint8_t* condition, const void* a, const void* b,
            void* y, std::int64_t count, const CudaQueue& queue) {
  PT_LAUNCH((select<const T*, T*>), blocks_for(count, queue), kBlock, queue.stream, plan, condition,
            static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(y), count);
}

}  // namespace

void launch_unary(const Coded& function, const ConstFloatView& x, const FloatView& y,
                  std::int64_t count, const CudaQueue& queue) {
  visit_coded(function, UnaryFunctions(), [&](auto f) { map_flat(f, x, y, count, queue); });
}

void launch_gradient(const Coded& function, const ConstFloatView& dy, const ConstFloatView& x,
                     const FloatView& dx, std::int64_t count, const CudaQueue& queue) {
  visit_coded(function, GradientFunctions(), [&](auto f) { map_flat(f, dy, x, dx, count, queue); });
}

void launch_arithmetic(const Coded& function, const Strided& plan, const ConstFloatView& a,
                       const ConstFloatView& b, const FloatView& y, std::int64_t count,
                       const CudaQueue& queue) {
  const bool flat = plan.dimensions == 1 && plan.strides[0][0] == 1 && plan.strides[1][0] == 1;
  visit_coded(function, ArithmeticFunctions(), [&](auto f) {
    if (flat) {
      map_flat(f, a, b, y, count, queue);
    } else {
      map_strided(f, plan, a, b, y, count, queue);
    }
  });
}

void launch_comparison(const Coded& function, const Strided& plan, const ConstFloatView& a,
                       const ConstFloatView& b, std::uint8_t* y, std::int64_t count,
                       const CudaQueue& queue) {
  visit_coded(function, ComparisonFunctions(), [&](auto f) {
    PT_LAUNCH(map_broadcast, blocks_for(count, queue), kBlock, queue.stream, f, plan, a, b, y,
              count);
  });
}

void launch_sum(const Summands& summands, const FloatView& y, std::int64_t count,
                const CudaQueue& queue) {
  const std::int64_t groups = count / kWide;
  if (summands.count == 2) {
    map_flat(Add<float>(), summands.x[0], summands.x[1], y, count, queue);
  } else if (!is_wide(summands, y, count)) {
    PT_LAUNCH(add_up, blocks_for(count, queue), kBlock, queue.stream, summands, y, count);
  } else {
    PT_LAUNCH(add_up_wide, blocks_for(groups, queue), kBlock, queue.stream, summands, y, groups);
  }
}

void launch_restore(const ConstFloatView& x, const FloatView& y, std::int64_t count,
                    const CudaQueue& queue) {
  map_flat(Same(), x, y, count, queue);
}

void launch_where(const Strided& plan, const std::uint8_t* condition, const void* a, const void* b,
                  void* y, int size, std::int64_t count, const CudaQueue& queue) {
  if (size == 1) choose<std::uint8_t>(plan, condition, a, b, y, count, queue);
  if (size == 2) choose<std::uint16_t>(plan, condition, a, b, y, count, queue);
  if (size == 4) choose<std::uint32_t>(plan, condition, a, b, y, count, queue);
  if (size == 8) choose<std::uint64_t>(plan, condition, a, b, y, count, queue);
}

void launch_where(const Strided& plan, const std::uint8_t* condition, const ConstFloatView& a,
                  const ConstFloatView& b, const FloatView& y, std::int64_t count,
                  const CudaQueue& queue) {
  PT_LAUNCH((select<ConstFloatView, FloatView>), blocks_for(count, queue), kBlock, queue.stream,
            plan, condition, a, b, y, count);
}

}  // namespace elementwise

namespace {

__global__ void fill(float* to, float value, std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) to[i] = value;
}

}  // namespace

void launch_fill(float* to, float value, std::int64_t count, const CudaQueue& queue) {
  PT_LAUNCH(fill, blocks_for(count, queue), kBlock, queue.stream, to, value, count);
}

}  // namespace pipetrain
