// Cast between all element types through the widest type of the source's kind (int64, uint64 or
// double), which is lossless: one loop reads each type, three write it.
#include <algorithm>

#include "ops/elementwise/elementwise.h"
#include "ops/kernel/type_switch.h"

namespace pipetrain::elementwise {
namespace {

constexpr std::int64_t kBlock = 512;

/// How a type is stored, and how one of its elements is loaded and stored.
template <class T>
struct Plain {
  using Stored = T;
  using Wide =
      std::conditional_t<std::is_floating_point_v<T>, double,
                         std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>;
  static Wide load(Stored x) { return x; }
  template <class From>
  static Stored store(From x) {
    return static_cast<T>(x);
  }
};
struct Bool {
  using Stored = std::uint8_t;
  using Wide = std::int64_t;
  static Wide load(Stored x) { return x != 0; }
  template <class From>
  static Stored store(From x) {
    return x != From(0);
  }
};
struct Half {
  using Stored = std::uint16_t;
  using Wide = double;
  static Wide load(Stored x) { return half_to_float(x); }
  template <class From>
  static Stored store(From x) {
    return float_to_half(static_cast<float>(x));
  }
};
struct BFloat {
  using Stored = std::uint16_t;
  using Wide = double;
  static Wide load(Stored x) { return bfloat16_to_float(x); }
  template <class From>
  static Stored store(From x) {
    return float_to_bfloat16(static_cast<float>(x));
  }
};

template <class Visit>
void visit_stored(DType dtype, Visit visit) {
  if (dtype == DType::kBool) return visit(Bool{});
  if (dtype == DType::kFloat16) return visit(Half{});
  if (dtype == DType::kBFloat16) return visit(BFloat{});
  visit_number(dtype, [&]<class T>(T) { visit(Plain<T>{}); });
}

using Convert = void (*)(const void* in, void* out, std::int64_t count);

template <class From>
void widen(const void* in, void* out, std::int64_t count) {
  const auto* x = static_cast<const typename From::Stored*>(in);
  auto* y = static_cast<typename From::Wide*>(out);
  for (std::int64_t i = 0; i < count; ++i) y[i] = From::load(x[i]);
}

template <class Wide, class To>
void narrow(const void* in, void* out, std::int64_t count) {
  const auto* x = static_cast<const Wide*>(in);
  auto* y = static_cast<typename To::Stored*>(out);
  for (std::int64_t i = 0; i < count; ++i) y[i] = To::store(x[i]);
}

/// 'd', 'i' or 'u': the intermediate type for `From`.
template <class From>
constexpr char kind() {
  if constexpr (std::is_same_v<typename From::Wide, double>) return 'd';
  return std::is_same_v<typename From::Wide, std::int64_t> ? 'i' : 'u';
}

}  // namespace

std::unique_ptr<Kernel> make_reference_cast(const KernelRequest& request) {
  Convert read = nullptr;
  Convert write = nullptr;
  char wide = 0;
  visit_stored(request.inputs[0].dtype, [&]<class From>(From) {
    read = widen<From>;
    wide = kind<From>();
  });
  visit_stored(request.outputs[0].dtype, [&]<class To>(To) {
    write = wide == 'd'   ? narrow<double, To>
            : wide == 'i' ? narrow<std::int64_t, To>
                          : narrow<std::uint64_t, To>;
  });
  if (!read || !write) return nullptr;
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        alignas(64) std::byte block[8 * kBlock];
        const auto from = static_cast<std::int64_t>(size_of(in[0].type.dtype));
        const auto to = static_cast<std::int64_t>(size_of(out[0].type.dtype));
        for (std::int64_t first = 0; first < out[0].count(); first += kBlock) {
          const std::int64_t count = std::min(kBlock, out[0].count() - first);
          read(in[0].as<std::byte>() + first * from, block, count);
          write(block, out[0].as<std::byte>() + first * to, count);
        }
      });
}

}  // namespace pipetrain::elementwise
