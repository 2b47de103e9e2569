// Updates against numbers that PyTorch 2.15 gives in double, and against the formulas written out.
#include "optim/update.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"

namespace pipetrain {
namespace {

struct GoldenCase {
  const char* name;
  OptimizerSettings settings;
  double learning_rate;
  std::array<double, 4> after_five_steps;
};

double golden_gradient(int step, int index) {
  return std::sin(1.3 * index + 0.7 * step) * (1 + 0.25 * index);
}

const std::vector<GoldenCase>& golden_cases() {
  using enum OptimizerKind;
  static const std::vector<GoldenCase> cases = {
      {"sgd",
       {.kind = kSgd},
       0.1,
       {0.25229182936586897, -1.1583368106415535, 2.430409765826504, 0.14031778733491157}},
      {"sgd decay",
       {.kind = kSgd, .weight_decay = 0.05},
       0.1,
       {0.24369435166503367, -1.125174214782669, 2.3766675581335894, 0.13455855864174915}},
      {"sgd momentum",
       {.kind = kSgd, .momentum = 0.9},
       0.1,
       {-0.36520891136624306, -1.4937519742958825, 3.141325284811575, 1.0536268431365812}},
      {"sgd dampening",
       {.kind = kSgd, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.05},
       0.1,
       {-0.20371137484688118, -1.4882275896396173, 2.7190381099745515, 0.9372652151299041}},
      {"sgd nesterov",
       {.kind = kSgd, .momentum = 0.9, .nesterov = true, .weight_decay = 0.05},
       0.1,
       {-0.5417115013742205, -1.253510641346098, 3.2674108650450613, 1.0431985313600518}},
      {"adam",
       {.kind = kAdam},
       0.01,
       {0.45455974571666596, -1.2709920639534564, 2.0457882423922467, 0.03471347909099769}},
      {"adam decay",
       {.kind = kAdam, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.05},
       0.01,
       {0.45534690495217733, -1.2652874716047862, 2.0453154422496733, 0.03186334307302025}},
      {"adamw",
       {.kind = kAdamW, .weight_decay = 0.1},
       0.01,
       {0.45216345734374097, -1.2646764493858123, 2.035714652657563, 0.03462092796168922}},
      {"rmsprop",
       {.kind = kRmsProp},
       0.01,
       {0.25733395915273705, -1.2446467269396846, 2.341938822695024, 0.10106112552158693}},
      {"rmsprop momentum",
       {.kind = kRmsProp, .momentum = 0.9, .alpha = 0.9, .epsilon = 1e-4, .weight_decay = 0.05},
       0.01,
       {0.2184840363949586, -1.3318364722169027, 2.342403093460606, 0.18150480736357763}},
  };
  return cases;
}

template <class T>
std::vector<T> run_five_steps(const GoldenCase& test, double gradient_scale) {
  std::vector<T> parameter = {T(0.5), T(-1.25), T(2), T(0)};
  std::vector<T> gradient(4), state0(4), state1(4);
  for (int step = 1; step <= 5; ++step) {
    for (int i = 0; i < 4; ++i) {
      gradient[i] = static_cast<T>(golden_gradient(step, i) / gradient_scale);
    }
    update(test.settings, test.learning_rate, step, gradient_scale, std::span<T>(parameter),
           std::span<const T>(gradient), std::span<T>(state0), std::span<T>(state1));
  }
  return parameter;
}

TEST(Update, GivesPyTorchsNumbers) {
  for (const GoldenCase& test : golden_cases()) {
    const std::vector<double> in_double = run_five_steps<double>(test, 1);
    const std::vector<float> in_float = run_five_steps<float>(test, 1);
    for (int i = 0; i < 4; ++i) {
      EXPECT_NEAR(in_double[i], test.after_five_steps[i], 1e-13) << test.name << " " << i;
      EXPECT_NEAR(in_float[i], test.after_five_steps[i], 2e-6) << test.name << " " << i;
    }
  }
}

TEST(Update, ScalesTheGradientBeforeAnythingElse) {
  for (const GoldenCase& test : golden_cases()) {
    const std::vector<double> parameter = run_five_steps<double>(test, 0.125);
    for (int i = 0; i < 4; ++i) {
      EXPECT_NEAR(parameter[i], test.after_five_steps[i], 1e-13) << test.name;
    }
  }
}

// One AdamW step written out for every element of a vector whose length is no multiple of any
// vector unit.
TEST(Update, TreatsEveryElementAlike) {
  constexpr std::size_t kCount = 1037;
  const OptimizerSettings settings{.kind = OptimizerKind::kAdamW, .weight_decay = 0.01};
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> parameter(kCount), gradient(kCount), mean(kCount), square(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    parameter[i] = normal(random);
    gradient[i] = normal(random);
    mean[i] = normal(random);
    square[i] = std::abs(normal(random));
  }
  const auto before = parameter;
  const auto old_mean = mean, old_square = square;
  update(settings, 0.002, 11, 0.5, std::span<float>(parameter), std::span<const float>(gradient),
         std::span<float>(mean), std::span<float>(square));
  for (std::size_t i = 0; i < kCount; ++i) {
    const double d = 0.5 * gradient[i];
    const double m = 0.9 * old_mean[i] + 0.1 * d;
    const double v = 0.999 * old_square[i] + 0.001 * d * d;
    const double m_hat = m / (1 - std::pow(0.9, 11)), v_hat = v / (1 - std::pow(0.999, 11));
    const double expected =
        before[i] * (1 - 0.002 * 0.01) - 0.002 * m_hat / (std::sqrt(v_hat) + 1e-8);
    ASSERT_NEAR(parameter[i], expected, 1e-6) << i;
    ASSERT_NEAR(mean[i], m, 1e-6) << i;
    ASSERT_NEAR(square[i], v, 1e-6) << i;
  }
}

TEST(Update, GivesTheSameBitsOnAnyNumberOfThreads) {
  constexpr std::size_t kCount = (1 << 18) + 12345;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> start(kCount), gradient(kCount);
  for (float& x : start) x = normal(random);
  for (float& x : gradient) x = normal(random);
  const int before = omp_get_max_threads();
  for (const GoldenCase& test : golden_cases()) {
    std::vector<float> expected;
    double expected_sum = 0;
    for (const int threads : {1, 2, 3, 5}) {
      omp_set_num_threads(threads);
      std::vector<float> parameter = start, state0(kCount), state1(kCount);
      for (int step = 1; step <= 2; ++step) {
        update(test.settings, 0.01, step, 1, std::span<float>(parameter),
               std::span<const float>(gradient), std::span<float>(state0),
               std::span<float>(state1));
      }
      const double sum = sum_of_squares(std::span<const float>(gradient));
      if (threads == 1) {
        expected = parameter;
        expected_sum = sum;
      }
      EXPECT_EQ(parameter, expected) << test.name << " with " << threads << " threads";
      EXPECT_EQ(sum, expected_sum) << threads << " threads";
    }
  }
  omp_set_num_threads(before);
}

TEST(Update, NeedsNoStateForPlainSgd) {
  std::vector<float> parameter = {1, 2};
  const std::vector<float> gradient = {10, 20};
  update({.kind = OptimizerKind::kSgd}, 0.5, 1, 0.1, std::span<float>(parameter),
         std::span<const float>(gradient), {}, {});
  EXPECT_FLOAT_EQ(parameter[0], 0.5f);
  EXPECT_FLOAT_EQ(parameter[1], 1.0f);
}

TEST(Update, RefusesSpansOfDifferentLengths) {
  std::vector<float> parameter(4), gradient(3), state(4);
  const OptimizerSettings adam{.kind = OptimizerKind::kAdam};
  EXPECT_THROW(
      update(adam, 0.1, 1, 1, std::span<float>(parameter), std::span<const float>(gradient),
             std::span<float>(state), std::span<float>(state)),
      Error);
  EXPECT_THROW(update(adam, 0.1, 1, 1, std::span<float>(parameter),
                      std::span<const float>(parameter), std::span<float>(state), {}),
               Error);
}

TEST(SumOfSquares, IsExactWhereDoubleIs) {
  for (const std::size_t count : {0u, 1u, 15u, 16u, 17u, 1000u, 40000u, 300001u}) {
    std::vector<float> values(count);
    double expected = 0;  // integers: exact in any order
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(i % 97) - 40;
      expected += double(values[i]) * values[i];
    }
    EXPECT_EQ(sum_of_squares(std::span<const float>(values)), expected) << count;
  }
  // The squares of these overflow in float.
  const std::vector<float> large(3, 1e30f);
  EXPECT_NEAR(sum_of_squares(std::span<const float>(large)) / 3e60, 1, 1e-6);
}

TEST(SumOfSquares, ShowsNumbersThatAreNotFinite) {
  std::vector<float> values(70000, 1.0f);
  values[66666] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(sum_of_squares(std::span<const float>(values))));
  values[66666] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(sum_of_squares(std::span<const float>(values))));
}

TEST(ClipFactor, IsPyTorchs) {
  EXPECT_DOUBLE_EQ(clip_factor(5, 2), 0.399999920000016);
  EXPECT_EQ(clip_factor(1, 2), 1);
  EXPECT_EQ(clip_factor(100, 0), 1);
}

}  // namespace
}  // namespace pipetrain
