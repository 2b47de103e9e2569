#include "tensor/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/error.h"
#include "base/read_budget.h"
#include "base/units.h"

/// Of AddressSanitizer, which watches the heap only; null where it is not linked in.
extern "C" [[gnu::weak]] void __asan_init();

namespace pipetrain {

std::int64_t Shape::count(std::size_t first, std::size_t last) const {
  std::int64_t product = 1;
  for (std::size_t axis = first; axis < last; ++axis) product *= (*this)[axis];
  return product;
}

std::vector<std::int64_t> Shape::strides() const {
  std::vector<std::int64_t> out(rank());
  std::int64_t stride = 1;
  for (std::size_t axis = rank(); axis-- > 0;) {
    out[axis] = stride;
    stride *= (*this)[axis];
  }
  return out;
}

std::string Shape::text() const { return fmt::format("({})", fmt::join(begin(), end(), ", ")); }

namespace {
std::int64_t padded(std::int64_t count, Layout layout) {
  if (layout != Layout::kPaddedRows) return count;
  return (count + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}
}  // namespace

std::int64_t TensorType::row_stride() const { return padded(shape[shape.rank() - 1], layout); }
std::int64_t TensorType::padded_rows() const {
  return padded(shape.count(0, shape.rank() - 1), layout);
}

std::string TensorType::text() const { return fmt::format("{} {}", name_of(dtype), shape.text()); }

Buffer::Buffer(std::size_t bytes) : bytes_(bytes) {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kLarge = std::size_t{4} << 20;
  const bool is_watched = __asan_init != nullptr;
  const std::size_t rounded = std::max((bytes + kLine - 1) / kLine * kLine, kLine);
  ReadBudget::charge(rounded);
  if (bytes >= kLarge && !is_watched) {
    // Matrix products read operands along columns, where small pages cost up to a fifth of the
    // time.
    pages_ = PageBlock(rounded, /*huge_pages=*/true);
    pages_.take();
    return;
  }
  void* const data = std::aligned_alloc(kLine, rounded);
  PT_CHECK(data != nullptr, kResource, "not enough memory: {} more were asked for",
           bytes_text(bytes));
  std::memset(data, 0, rounded);
  small_.reset(static_cast<std::byte*>(data));
}

void Buffer::Free::operator()(std::byte* data) const { std::free(data); }

double TensorType::rounded_bytes() const {
  double bytes = static_cast<double>(size_of(dtype));
  for (const std::int64_t dim : shape) bytes *= static_cast<double>(std::max<std::int64_t>(dim, 1));
  return bytes;
}

HostTensor::HostTensor(TensorType type) {
  PT_CHECK(type.rounded_bytes() < std::ldexp(1, 62), kResource,
           "not enough memory: a tensor of shape {} was asked for", type.shape.text());
  auto buffer = std::make_shared<Buffer>(type.bytes());
  content_ = std::make_shared<const Content>(Content{std::move(type), std::move(buffer)});
}

const TensorType& HostTensor::type_of_none() {
  static const TensorType none;
  return none;
}

HostTensor HostTensor::reshaped(Shape shape) const {
  PT_CHECK(shape.count() == type().count(), kInternal, "cannot view {} as {}", type().shape.text(),
           shape.text());
  HostTensor out;
  if (!content_) return out;
  Content content = *content_;
  content.type.shape = std::move(shape);
  out.content_ = std::make_shared<const Content>(std::move(content));
  return out;
}

namespace {

template <class T>
std::vector<T> convert(const HostTensor& tensor) {
  std::vector<T> out(static_cast<std::size_t>(tensor.type().count()));
  const auto copy = [&]<class S>(S) {
    const S* in = tensor.view().as<S>();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(in[i]);
  };
  switch (tensor.dtype()) {
    case DType::kFloat32:
      copy(float{});
      break;
    case DType::kFloat64:
      copy(double{});
      break;
    case DType::kUint8:
    case DType::kBool:
      copy(std::uint8_t{});
      break;
    case DType::kInt8:
      copy(std::int8_t{});
      break;
    case DType::kUint16:
      copy(std::uint16_t{});
      break;
    case DType::kInt16:
      copy(std::int16_t{});
      break;
    case DType::kInt32:
      copy(std::int32_t{});
      break;
    case DType::kUint32:
      copy(std::uint32_t{});
      break;
    case DType::kInt64:
      copy(std::int64_t{});
      break;
    case DType::kUint64:
      copy(std::uint64_t{});
      break;
    case DType::kFloat16:
    case DType::kBFloat16: {
      const bool half = tensor.dtype() == DType::kFloat16;
      const auto* in = tensor.view().as<std::uint16_t>();
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<T>(half ? half_to_float(in[i]) : bfloat16_to_float(in[i]));
      }
      break;
    }
    case DType::kUndefined:
      PT_FAIL(kInternal, "tensor has no type");
  }
  return out;
}

}  // namespace

std::vector<double> HostTensor::to_doubles() const { return convert<double>(*this); }
std::vector<std::int64_t> HostTensor::to_int64s() const { return convert<std::int64_t>(*this); }

Shape broadcast(const Shape& a, const Shape& b) {
  const std::size_t rank = std::max(a.rank(), b.rank());
  std::vector<std::int64_t> out(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int64_t x = i < rank - a.rank() ? 1 : a[i - (rank - a.rank())];
    const std::int64_t y = i < rank - b.rank() ? 1 : b[i - (rank - b.rank())];
    PT_CHECK(x == y || x == 1 || y == 1, kModel, "shapes {} and {} do not broadcast", a.text(),
             b.text());
    out[i] = x == 1 ? y : x;
  }
  return Shape(std::move(out));
}

float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float half_to_float(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  const float sign = bits & 0x8000 ? -1.0F : 1.0F;
  if (exponent == 0x1f) {
    return mantissa ? std::nanf("") : sign * INFINITY;
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa | 0x400), exponent - 25);
}

std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7e00);
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0F) return static_cast<std::uint16_t>(sign | 0x7c00);
  if (magnitude < 0x1p-14F) {  // subnormal: units of 2^-24
    return static_cast<std::uint16_t>(sign | static_cast<int>(std::nearbyint(magnitude * 0x1p24F)));
  }
  int exponent = 0;
  const float fraction = std::frexp(magnitude, &exponent);                     // [0.5, 1)
  const auto mantissa = static_cast<int>(std::nearbyint(fraction * 2048.0F));  // [1024, 2048]
  return static_cast<std::uint16_t>(sign | (((exponent + 14) << 10) + (mantissa - 1024)));
}

}  // namespace pipetrain
