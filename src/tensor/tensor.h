// Shapes, tensor types and tensors. A Tensor is a view: it owns nothing; a Buffer owns memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/page_block.h"
#include "tensor/dtype.h"

namespace pipetrain {

/// Extents of a tensor, outermost first. Rank 0 is a scalar. Up to four are stored in place, as
/// large models have millions of shapes.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) : Shape(dims.begin(), dims.size()) {}
  explicit Shape(std::span<const std::int64_t> dims) : Shape(dims.data(), dims.size()) {}
  explicit Shape(const std::vector<std::int64_t>& dims) : Shape(dims.data(), dims.size()) {}
  Shape(const Shape& other) : Shape(other.begin(), other.rank()) {}
  Shape(Shape&& other) noexcept : rank_(other.rank_), dims_(other.dims_) { other.rank_ = 0; }
  Shape& operator=(Shape other) noexcept {
    std::swap(rank_, other.rank_);
    std::swap(dims_, other.dims_);
    return *this;
  }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wfree-nonheap-object"  // GCC takes few[0] for the pointer
  ~Shape() {
    if (rank_ > kInPlace) delete[] dims_.many;
  }
#pragma GCC diagnostic pop

  std::size_t rank() const { return rank_; }
  std::int64_t operator[](std::size_t axis) const { return begin()[axis]; }
  std::int64_t& operator[](std::size_t axis) {
    return (rank_ > kInPlace ? dims_.many : dims_.few)[axis];
  }
  std::vector<std::int64_t> dims() const { return {begin(), end()}; }
  const std::int64_t* begin() const { return rank_ > kInPlace ? dims_.many : dims_.few; }
  const std::int64_t* end() const { return begin() + rank_; }
  /// Number of elements; 1 for a scalar.
  std::int64_t count() const { return count(0, rank()); }
  /// Number of elements over axes [first, last).
  std::int64_t count(std::size_t first, std::size_t last) const;
  /// Row-major strides in elements.
  std::vector<std::int64_t> strides() const;
  /// "(64, 3, 32, 32)"; "()" for a scalar.
  std::string text() const;
  friend bool operator==(const Shape& a, const Shape& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  static constexpr std::size_t kInPlace = 4;
  union Dims {
    std::int64_t few[kInPlace];
    std::int64_t* many;
  };

  Shape(const std::int64_t* dims, std::size_t rank) : rank_(rank) {
    if (rank > kInPlace) dims_.many = new std::int64_t[rank];
    std::copy(dims, dims + rank, rank > kInPlace ? dims_.many : dims_.few);
  }

  std::size_t rank_ = 0;
  Dims dims_{};
};

/// The memory layout of a value. Shapes are always logical: (N, C, …).
enum class Layout : std::uint8_t {
  kRowMajor,
  kBlocked8,      // oneDNN's nChw8c, nCw8c and nCdhw8c; only where C is a multiple of 8
  kBlocked16,     // the same with 16; only where C is a multiple of 16
  kChannelsLast,  // stored as (N, H, W, C): one block of all channels
  // Row-major, with rows (the last axis) padded to multiples of kRowMultiple elements, and padded
  // to a multiple of kRowMultiple rows. Padding is zero in operands of matmuls, which may read it.
  kPaddedRows,
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
    return static_cast<std::size_t>(padded ? padded_rows() * row_stride() : count()) *
           size_of(dtype);
  }
  /// The same without padding, and of axes with nothing as of 1; no size is too large for it.
  double rounded_bytes() const;
  /// Distance between rows (the last axis), in elements.
  std::int64_t row_stride() const;
  /// Rows with their padding.
  std::int64_t padded_rows() const;
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

/// Host memory, aligned to 64 bytes, zeroed. A large Buffer is mapped, and several threads populate
/// its pages.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes);
  std::byte* data() const { return small_ ? small_.get() : pages_.data(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> small_;
  PageBlock pages_;  // of a large one
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

  explicit operator bool() const { return content_ != nullptr; }
  const TensorType& type() const { return content_ ? content_->type : type_of_none(); }
  const Shape& shape() const { return type().shape; }
  DType dtype() const { return type().dtype; }
  Tensor view() const { return {type(), content_ ? content_->buffer->data() : nullptr}; }
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
  struct Content {
    TensorType type;
    std::shared_ptr<Buffer> buffer;
  };
  static const TensorType& type_of_none();

  std::shared_ptr<const Content> content_;  // small, as most values of a graph have none
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
