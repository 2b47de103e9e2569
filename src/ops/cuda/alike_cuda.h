// Kernels compiled for operands of one stored type; for .cu files.
#pragma once

#include "ops/cuda/stored_access_cuda.h"

namespace pipetrain {

/// The types of a kernel's operands. Where they are alike the kernel is compiled for that type, and
/// no branch separates its loads.
template <Stored kAll>
struct Alike {
  template <class View>
  static __device__ __forceinline__ View of(View view) {
    view.stored = kAll;
    return view;
  }
};
struct Mixed {
  template <class View>
  static __device__ __forceinline__ View of(View view) {
    return view;
  }
};

/// Calls run(types) for what the operands have in common.
template <class Run>
void with_types(Stored a, Stored b, Stored y, const Run& run) {
  if (a == Stored::kBFloat16 && b == a && y == a) return run(Alike<Stored::kBFloat16>());
  if (a == Stored::kFloat && b == a && y == a) return run(Alike<Stored::kFloat>());
  run(Mixed());
}

}  // namespace pipetrain
