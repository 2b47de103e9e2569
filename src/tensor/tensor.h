// Shapes, tensor types and tensors. A Tensor is a view: it owns nothing; a Buffer owns memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace pipetrain {

/// Extents of a tensor, outermost first. Rank 0 is a scalar.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) : dims_(dims) {}
  explicit Shape(std::vector<std::int64_t> dims) : dims_(std::move(dims)) {}

  std::size_t rank() const { return dims_.size(); }
  std::int64_t operator[](std::size_t axis) const { return dims_[axis]; }
  std::int64_t& operator[](std::size_t axis) { return dims_[axis]; }
  const std::vector<std::int64_t>& dims() const { return dims_; }
  auto begin() const { return dims_.begin(); }
  auto end() const { return dims_.end(); }
  /// Number of elements; 1 for a scalar.
  std::int64_t count() const { return count(0, rank()); }
  /// Number of elements over axes [first, last).
  std::int64_t count(std::size_t first, std::size_t last) const;
  /// Row-major strides in elements.
  std::vector<std::int64_t> strides() const;
  /// "(64, 3, 32, 32)"; "()" for a scalar.
  std::string text() const;
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::vector<std::int64_t> dims_;
};

/// The memory layout of a value. Shapes are always logical (N, C, H, W).
enum class Layout : std::uint8_t {
  kRowMajor,
  kBlocked8,      // oneDNN's nChw8c; only where C is a multiple of 8
  kBlocked16,     // oneDNN's nChw16c; only where C is a multiple of 16
  kChannelsLast,  // stored as (N, H, W, C): one block of all channels
  kPaddedRows,  // row-major, with rows (the last axis) padded to multiples of kRowMultiple elements
};
/// Fills a 16-byte GPU load or store with elements of 2 bytes or more.
constexpr std::int64_t kRowMultiple = 8;

/// Element type, shape and layout of a value.
struct TensorType {
  DType dtype = DType::kUndefined;
  Shape shape;
  Layout layout = Layout::kRowMajor;

  std::int64_t count() const { return shape.count(); }
  std::size_t bytes() const {
    const bool padded = layout == Layout::kPaddedRows;
    const std::int64_t elements =
        padded ? shape.count(0, shape.rank() - 1) * row_stride() : count();
    return static_cast<std::size_t>(elements) * size_of(dtype);
  }
  /// Distance between rows (the last axis), in elements.
  std::int64_t row_stride() const;
  /// "float32 (64, 10)"
  std::string text() const;
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

/// A typed, non-owning view of memory. An empty Tensor (no data) means "absent".
struct Tensor {
  TensorType type;
  void* data = nullptr;

  explicit operator bool() const { return data != nullptr; }
  std::int64_t count() const { return type.count(); }
  std::size_t bytes() const { return type.bytes(); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  template <class T>
  std::span<T> span() const {
    return {static_cast<T*>(data), static_cast<std::size_t>(count())};
  }
};

/// Host memory, aligned to 64 bytes, zeroed.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes);
  std::byte* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_ = 0;
};

/// A tensor that owns its memory, shared by its copies: constants, initial weights, samples.
class HostTensor {
 public:
  HostTensor() = default;
  explicit HostTensor(TensorType type);
  template <class T>
  static HostTensor of(Shape shape, std::span<const T> values);
  template <class T>
  static HostTensor scalar(T value) {
    return of<T>(Shape{}, std::span<const T>(&value, 1));
  }

  explicit operator bool() const { return buffer_ != nullptr; }
  const TensorType& type() const { return type_; }
  const Shape& shape() const { return type_.shape; }
  DType dtype() const { return type_.dtype; }
  Tensor view() const { return {type_, buffer_ ? buffer_->data() : nullptr}; }
  template <class T>
  std::span<T> span() const {
    return view().span<T>();
  }
  /// The same memory with another shape of the same size.
  HostTensor reshaped(Shape shape) const;
  /// Elements as double, whatever the type (float16 and bfloat16 too).
  std::vector<double> to_doubles() const;
  /// Elements as int64; float values are truncated.
  std::vector<std::int64_t> to_int64s() const;

 private:
  TensorType type_;
  std::shared_ptr<Buffer> buffer_;
};

template <class T>
HostTensor HostTensor::of(Shape shape, std::span<const T> values) {
  HostTensor out(TensorType{dtype_of<T>(), std::move(shape)});
  for (std::size_t i = 0; i < values.size(); ++i) out.view().template as<T>()[i] = values[i];
  return out;
}

/// The shape after numpy broadcasting; Error (kModel) naming both shapes.
Shape broadcast(const Shape& a, const Shape& b);

/// IEEE half precision and bfloat16, round to nearest even.
float half_to_float(std::uint16_t bits);
std::uint16_t float_to_half(float value);
float bfloat16_to_float(std::uint16_t bits);
std::uint16_t float_to_bfloat16(float value);

}  // namespace pipetrain
