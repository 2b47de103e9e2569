// Float dropout, 32 elements at a time.
#include <algorithm>

#include "ops/kernel/element_types.h"
#include "ops/random/dropout.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace pipetrain {
namespace {

constexpr std::int64_t kParallelElements = 1 << 13;

#ifdef __AVX2__

/// Four Philox counters, each word in the low half of a 64-bit lane. The high halves are undefined:
/// the multiplication does not read them.
struct FourCounters {
  __m256i word[4];
};

FourCounters first_counters(std::uint64_t sample, std::uint64_t group, __m256i lanes) {
  const PhiloxBlock base = dropout_counter(sample, group, 0);
  const auto same = [](std::uint32_t word) { return _mm256_set1_epi64x(std::int64_t{word}); };
  // A group's first counter is a multiple of 8, so adding the lane cannot carry.
  return {{_mm256_or_si256(same(base.word[0]), lanes), same(base.word[1]), same(base.word[2]),
           same(base.word[3])}};
}

void one_round(FourCounters& counters, __m256i key_0, __m256i key_1) {
  const __m256i even = _mm256_mul_epu32(counters.word[0], _mm256_set1_epi64x(0xD2511F53));
  const __m256i odd = _mm256_mul_epu32(counters.word[2], _mm256_set1_epi64x(0xCD9E8D57));
  counters.word[0] =
      _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(odd, 32), counters.word[1]), key_0);
  counters.word[2] =
      _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(even, 32), counters.word[3]), key_1);
  counters.word[1] = odd;
  counters.word[3] = even;
}

/// The 32 random words of a group in element order.
void group_numbers(PhiloxKey key, std::uint64_t sample, std::uint64_t group,
                   std::uint32_t* numbers) {
  // The final shuffle interleaves two words of each half, hence this order of the lanes.
  FourCounters a = first_counters(sample, group, _mm256_set_epi64x(5, 4, 1, 0));
  FourCounters b = first_counters(sample, group, _mm256_set_epi64x(7, 6, 3, 2));
  for (int round = 0; round < 10; ++round) {
    const __m256i key_0 = _mm256_set1_epi64x(std::int64_t{key.word[0]});
    const __m256i key_1 = _mm256_set1_epi64x(std::int64_t{key.word[1]});
    one_round(a, key_0, key_1);
    one_round(b, key_0, key_1);
    key.word[0] += 0x9E3779B9;
    key.word[1] += 0xBB67AE85;
  }
  for (int word = 0; word < 4; ++word) {
    const __m256 low = _mm256_shuffle_ps(_mm256_castsi256_ps(a.word[word]),
                                         _mm256_castsi256_ps(b.word[word]), 0x88);
    _mm256_storeu_ps(reinterpret_cast<float*>(numbers) + 8 * word, low);
  }
}

#else

void group_numbers(PhiloxKey key, std::uint64_t sample, std::uint64_t group,
                   std::uint32_t* numbers) {
  for (std::uint32_t lane = 0; lane < 8; ++lane) {
    const PhiloxBlock block = philox(key, dropout_counter(sample, group, lane));
    for (std::uint32_t word = 0; word < 4; ++word) numbers[8 * word + lane] = block.word[word];
  }
}

#endif

[[gnu::always_inline]] inline void mask_group(const std::uint32_t* numbers, std::uint32_t threshold,
                                              float scale, const float* __restrict x,
                                              float* __restrict y, std::int64_t size) {
#pragma omp simd
  for (std::int64_t i = 0; i < size; ++i) y[i] = numbers[i] >= threshold ? x[i] * scale : 0.0f;
}

std::unique_ptr<Kernel> make_dropout(const KernelRequest& request) {
  if (!is_row_major(request) || request.inputs[0].dtype != DType::kFloat32) return nullptr;
  return make_kernel(
      [parameters = dropout_parameters(request.node.attributes)](
          std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        const std::int64_t count = in[0].count();
        if (count == 0) return;
        const PhiloxKey key = dropout_key(context, parameters.node_key);
        const std::int64_t per_sample = elements_per_sample(count, context);
        const std::int64_t groups = (per_sample + kDropoutGroup - 1) / kDropoutGroup;
        const std::int64_t all_groups = count / per_sample * groups;
        const auto scale = static_cast<float>(parameters.scale);
        const std::uint32_t threshold = parameters.threshold;
#pragma omp parallel for schedule(static) if (count > kParallelElements)
        for (std::int64_t index = 0; index < all_groups; ++index) {
          const std::int64_t sample = index / groups;
          const std::int64_t first = index % groups * kDropoutGroup;
          const std::int64_t size = std::min(kDropoutGroup, per_sample - first);
          const float* x = in[0].as<float>() + sample * per_sample + first;
          float* y = out[0].as<float>() + sample * per_sample + first;
          alignas(32) std::uint32_t numbers[kDropoutGroup];
          group_numbers(key, static_cast<std::uint64_t>(context.first_sample + sample),
                        static_cast<std::uint64_t>(index % groups), numbers);
          // With a constant bound, a whole group compiles to straight vector code.
          size == kDropoutGroup ? mask_group(numbers, threshold, scale, x, y, kDropoutGroup)
                                : mask_group(numbers, threshold, scale, x, y, size);
        }
      });
}

}  // namespace

void drop_out(const DropoutParameters& parameters, PhiloxKey key, std::int64_t first_sample,
              std::int64_t per_sample, std::int64_t first, std::int64_t count, const float* x,
              float* y) {
  const auto scale = static_cast<float>(parameters.scale);
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t sample = (first + done) / per_sample;
    const std::int64_t within = (first + done) % per_sample;
    const std::int64_t skipped = within % kDropoutGroup;
    const std::int64_t size =
        std::min({kDropoutGroup - skipped, per_sample - within, count - done});
    alignas(32) std::uint32_t numbers[kDropoutGroup] = {};
    group_numbers(key, static_cast<std::uint64_t>(first_sample + sample),
                  static_cast<std::uint64_t>(within / kDropoutGroup), numbers);
    if (size == kDropoutGroup) {
      mask_group(numbers, parameters.threshold, scale, x + done, y + done, kDropoutGroup);
    } else {
      for (std::int64_t i = 0; i < size; ++i) {
        const std::uint32_t number = numbers[(skipped + i) % kDropoutGroup];
        y[done + i] = number >= parameters.threshold ? x[done + i] * scale : 0.0f;
      }
    }
    done += size;
  }
}

namespace {

constexpr KernelEntry kKernels[] = {{"Dropout", make_dropout}};

}  // namespace

std::span<const KernelEntry> dropout_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
