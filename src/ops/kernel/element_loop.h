// Element-wise kernels that call their function through a pointer to a loop: only the loop is
// compiled for every function and type, the kernel around it once.
//
// The loops themselves stay in unnamed namespaces of the files that use them: the reference's and
// the CPU's are compiled for different processors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

namespace pipetrain {

/// A function object of up to 16 bytes whose type the loop knows.
class ErasedFunction {
 public:
  ErasedFunction() = default;
  template <class F>
  explicit ErasedFunction(F function) {
    static_assert(std::is_trivially_copyable_v<F> && sizeof(F) <= sizeof(bytes_) &&
                  alignof(F) <= 8);
    new (bytes_) F(function);
  }
  template <class F>
  F as() const {
    return *std::launder(reinterpret_cast<const F*>(bytes_));
  }

 private:
  alignas(8) std::byte bytes_[16] = {};
};

/// y[i] = f(x[i]) for `count` contiguous elements.
using UnaryLoop = void (*)(const ErasedFunction&, const void* x, void* y, std::int64_t count);
/// y[i] = f(a[i], b[i]); a loop may also read only the first element of one operand.
using BinaryLoop = void (*)(const ErasedFunction&, const void* a, const void* b, void* y,
                            std::int64_t count);

}  // namespace pipetrain
