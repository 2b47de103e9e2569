// The part of the standard library that kernels use, for NVRTC, which has none: this file is passed
// to NVRTC under the names of the standard headers. Functions map to those that nvcc uses.
#ifndef PIPETRAIN_NVRTC_STANDARD
#define PIPETRAIN_NVRTC_STANDARD

using size_t = decltype(sizeof(0));

namespace std {

using ::size_t;
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;

using ::memcpy;

inline float ceil(float x) { return ::ceilf(x); }
inline float cos(float x) { return ::cosf(x); }
inline float erf(float x) { return ::erff(x); }
inline float erfc(float x) { return ::erfcf(x); }
inline float exp(float x) { return ::expf(x); }
inline float fabs(float x) { return ::fabsf(x); }
inline float floor(float x) { return ::floorf(x); }
inline float fma(float x, float y, float z) { return ::fmaf(x, y, z); }
inline float fmod(float x, float y) { return ::fmodf(x, y); }
inline float log(float x) { return ::logf(x); }
inline float log1p(float x) { return ::log1pf(x); }
inline float pow(float x, float y) { return ::powf(x, y); }
inline float rint(float x) { return ::rintf(x); }
inline float sin(float x) { return ::sinf(x); }
inline float sqrt(float x) { return ::sqrtf(x); }
inline float tanh(float x) { return ::tanhf(x); }

template <class T>
inline constexpr bool is_integral_v = false;
template <>
inline constexpr bool is_integral_v<int> = true;
template <class T>
inline constexpr bool is_signed_v = T(-1) < T(0);
template <class T>
inline constexpr bool is_floating_point_v = false;
template <>
inline constexpr bool is_floating_point_v<float> = true;
template <class T>
using make_unsigned_t = unsigned;

}  // namespace std

#endif
