// Element-wise kernels: a thread walks over elements that lie a grid apart.
#include "ops/elementwise_list_cuda.h"
#include "ops/grid_cuda.h"
#include "ops/kernels_cuda_launch.h"

namespace pipetrain {
namespace elementwise {
namespace {

template <class F, class In, class Out>
__global__ void map_one(F f, const In* __restrict__ x, Out* __restrict__ y, std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread())
    y[i] = static_cast<Out>(f(x[i]));
}

template <class F>
__global__ void map_two(F f, const float* a, const float* b, float* y, std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) y[i] = f(a[i], b[i]);
}

/// Where operand `operand` of element i lies.
template <int kOperands>
__device__ __forceinline__ void locate(const Strided& plan, std::int64_t i,
                                       std::int64_t (&at)[kOperands]) {
  for (int k = 0; k < kOperands; ++k) at[k] = 0;
  for (int d = plan.dimensions - 1; d > 0; --d) {
    const std::int64_t index = i % plan.sizes[d];
    i /= plan.sizes[d];
    for (int k = 0; k < kOperands; ++k) at[k] += index * plan.strides[k][d];
  }
  for (int k = 0; k < kOperands; ++k) at[k] += i * plan.strides[k][0];
}

template <class F, class Out>
__global__ void map_broadcast(F f, Strided plan, const float* a, const float* b, Out* y,
                              std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    std::int64_t at[2];
    locate(plan, i, at);
    y[i] = static_cast<Out>(f(a[at[0]], b[at[1]]));
  }
}

template <class T>
__global__ void select(Strided plan, const std::uint8_t* condition, const T* a, const T* b, T* y,
                       std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    std::int64_t at[3];
    locate(plan, i, at);
    y[i] = condition[at[0]] != 0 ? a[at[1]] : b[at[2]];
  }
}

struct IsNotZero {
  template <class T>
  PT_HOST_DEVICE std::uint8_t operator()(T x) const {
    return x != T(0);
  }
};
struct IsZero {
  template <class T>
  PT_HOST_DEVICE std::uint8_t operator()(T x) const {
    return x == T(0);
  }
};
struct Same {
  template <class T>
  PT_HOST_DEVICE T operator()(T x) const {
    return x;
  }
};

template <class In, class Out, class F>
void convert(F f, const void* x, void* y, std::int64_t count, const CudaQueue& queue) {
  PT_LAUNCH((map_one<F, In, Out>), blocks_for(count, queue), kBlock, queue.stream, f,
            static_cast<const In*>(x), static_cast<Out*>(y), count);
}

template <class T>
void choose(const Strided& plan, const std::uint8_t* condition, const void* a, const void* b,
            void* y, std::int64_t count, const CudaQueue& queue) {
  PT_LAUNCH(select<T>, blocks_for(count, queue), kBlock, queue.stream, plan, condition,
            static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(y), count);
}

}  // namespace

void launch_unary(const Coded& function, const float* x, float* y, std::int64_t count,
                  const CudaQueue& queue) {
  visit_coded(function, UnaryFunctions(), [&](auto f) {
    PT_LAUNCH(map_one, blocks_for(count, queue), kBlock, queue.stream, f, x, y, count);
  });
}

void launch_gradient(const Coded& function, const float* dy, const float* x, float* dx,
                     std::int64_t count, const CudaQueue& queue) {
  visit_coded(function, GradientFunctions(), [&](auto f) {
    PT_LAUNCH(map_two, blocks_for(count, queue), kBlock, queue.stream, f, dy, x, dx, count);
  });
}

void launch_arithmetic(const Coded& function, const Strided& plan, const float* a, const float* b,
                       float* y, std::int64_t count, const CudaQueue& queue) {
  const bool flat = plan.dimensions == 1 && plan.strides[0][0] == 1 && plan.strides[1][0] == 1;
  visit_coded(function, ArithmeticFunctions(), [&](auto f) {
    if (flat) {
      PT_LAUNCH(map_two, blocks_for(count, queue), kBlock, queue.stream, f, a, b, y, count);
    } else {
      PT_LAUNCH(map_broadcast, blocks_for(count, queue), kBlock, queue.stream, f, plan, a, b, y,
                count);
    }
  });
}

void launch_comparison(const Coded& function, const Strided& plan, const float* a, const float* b,
                       std::uint8_t* y, std::int64_t count, const CudaQueue& queue) {
  visit_coded(function, ComparisonFunctions(), [&](auto f) {
    PT_LAUNCH(map_broadcast, blocks_for(count, queue), kBlock, queue.stream, f, plan, a, b, y,
              count);
  });
}

void launch_where(const Strided& plan, const std::uint8_t* condition, const void* a, const void* b,
                  void* y, int size, std::int64_t count, const CudaQueue& queue) {
  if (size == 1) choose<std::uint8_t>(plan, condition, a, b, y, count, queue);
  if (size == 4) choose<std::uint32_t>(plan, condition, a, b, y, count, queue);
  if (size == 8) choose<std::uint64_t>(plan, condition, a, b, y, count, queue);
}

void launch_convert(Convert how, const void* x, void* y, std::int64_t count,
                    const CudaQueue& queue) {
  using Bool = std::uint8_t;
  using Long = std::int64_t;
  using Int = std::int32_t;
  switch (how) {
    case Convert::kBoolToFloat:
      return convert<Bool, float>(IsNotZero(), x, y, count, queue);
    case Convert::kFloatToBool:
      return convert<float, Bool>(IsNotZero(), x, y, count, queue);
    case Convert::kInt64ToBool:
      return convert<Long, Bool>(IsNotZero(), x, y, count, queue);
    case Convert::kInt64ToFloat:
      return convert<Long, float>(Same(), x, y, count, queue);
    case Convert::kInt32ToFloat:
      return convert<Int, float>(Same(), x, y, count, queue);
    case Convert::kFloatToInt64:
      return convert<float, Long>(Same(), x, y, count, queue);
    case Convert::kInt32ToInt64:
      return convert<Int, Long>(Same(), x, y, count, queue);
    case Convert::kBoolToInt64:
      return convert<Bool, Long>(IsNotZero(), x, y, count, queue);
    case Convert::kNot:
      return convert<Bool, Bool>(IsZero(), x, y, count, queue);
  }
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
