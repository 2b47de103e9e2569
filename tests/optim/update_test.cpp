// Updates against values from PyTorch 2.15, or numpy following the papers, in double
// (make_goldens.py), and against explicit formulas.
#include "optim/update.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "optim/optimizer_table.h"

namespace pipetrain {
namespace {

struct GoldenCase {
  const char* name;
  OptimizerSettings settings;
  double learning_rate;
  std::array<double, 4> after_five_steps;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double golden_gradient(int step, int index) {
  return std::sin(1.3 * index + 0.7 * step) * (1 + 0.25 * index);
}

// One function because it is one table.
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
      {"rmsprop centered",
       {.kind = kRmsProp, .centered = true},
       0.01,
       {0.25503140435396876, -1.245322138921966, 2.345154459820505, 0.10220695795089667}},
      {"rmsprop centered decay",
       {.kind = kRmsProp, .centered = true, .alpha = 0.9, .epsilon = 1e-4, .weight_decay = 0.05},
       0.01,
       {0.4132120607660911, -1.242291772577188, 2.119368494782087, 0.034329957398274755}},
      {"adagrad",
       {.kind = kAdagrad, .epsilon = 1e-10},
       0.1,
       {0.25760745064812096, -1.2457150441811458, 2.341376948492966, 0.10168516895436941}},
      {"adagrad decay",
       {.kind = kAdagrad, .epsilon = 1e-3, .weight_decay = 0.05},
       0.1,
       {0.2570658344343272, -1.2298340930047849, 2.3376290258529417, 0.10055881391731672}},
      {"lamb",
       default_settings(kLamb),
       0.01,
       {0.43022988594439765, -1.2729577915340078, 2.0702326259976607, 0.04840161643971332}},
      {"lamb without decay",
       {.kind = kLamb, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3},
       0.02,
       {0.3643724736716497, -1.284109339086312, 2.146780068367936, 0.08615886487033808}},
      {"lars",
       default_settings(kLars),
       1,
       {0.4897464153910413, -1.251850512130857, 2.0141643786638723, 0.0114552220654068}},
      {"lars plain",
       {.kind = kLars, .weight_decay = 0.05},
       100,
       {0.19727134811530506, -1.0378741212314873, 2.4820337680946745, 0.09524995010113518}},
      {"lion",
       default_settings(kLion),
       0.01,
       {0.47, -1.24, 2.049999999999999, 0.009999999999999997}},
      {"lion decay",
       {.kind = kLion, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1},
       0.01,
       {0.4476048950524895, -1.2536825874562587, 2.039920079960009, 0.009920099950010001}},
  };
  return cases;
}

template <class T>
std::vector<T> run_five_steps(const GoldenCase& test, double gradient_scale,
                              std::vector<T> parameter = {T(0.5), T(-1.25), T(2), T(0)}) {
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

// A bias starts at zero, where a trust ratio would keep it forever.
TEST(Update, LetsZerosGo) {
  const std::vector<GoldenCase> cases = {
      {"lamb",
       default_settings(OptimizerKind::kLamb),
       0.01,
       {-0.010472263410608067, -0.010096315006813098, 0.010492668766285398, 0.010298559344499456}},
      {"lars",
       default_settings(OptimizerKind::kLars),
       0.1,
       {-0.26391005922941463, -0.4653447960389827, 0.09711503801138086, 0.7120984185776215}},
  };
  for (const GoldenCase& test : cases) {
    const std::vector<double> parameter = run_five_steps<double>(test, 1, {0, 0, 0, 0});
    for (int i = 0; i < 4; ++i) {
      EXPECT_NEAR(parameter[i], test.after_five_steps[i], 1e-13) << test.name << " " << i;
    }
  }
}

// With a zero gradient only decay and momentum change the parameter, and nothing is divided by
// zero.
TEST(Update, TakesGradientsOfZero) {
  for (const GoldenCase& test : golden_cases()) {
    OptimizerSettings settings = test.settings;
    settings.weight_decay = 0;
    std::vector<float> parameter = {0.5f, -1.25f, 2, 0};
    const std::vector<float> before = parameter, gradient(4);
    std::vector<float> state0(4), state1(4);
    for (int step = 1; step <= 3; ++step) {
      update(settings, 0.1, step, 1, std::span<float>(parameter), std::span<const float>(gradient),
             std::span<float>(state0), std::span<float>(state1));
    }
    EXPECT_EQ(parameter, before) << test.name;
  }
}

TEST(Update, ShowsGradientsThatAreNotNumbers) {
  for (const GoldenCase& test : golden_cases()) {
    std::vector<float> parameter = {1, 2, 3, 4}, state0(4), state1(4);
    const std::vector<float> gradient = {1, std::numeric_limits<float>::quiet_NaN(), 1, 1};
    update(test.settings, 0.1, 1, 1, std::span<float>(parameter), std::span<const float>(gradient),
           std::span<float>(state0), std::span<float>(state1));
    EXPECT_TRUE(std::isnan(parameter[1])) << test.name;
  }
}

// The centered mean square of a constant gradient rounds to either side of zero.
TEST(Update, CenteredRmsPropSurvivesAConstantGradient) {
  const OptimizerSettings settings{
      .kind = OptimizerKind::kRmsProp, .centered = true, .alpha = 0.5, .epsilon = 1};
  std::vector<float> parameter(64), gradient(64), square(64), mean(64);
  for (std::size_t i = 0; i < 64; ++i) gradient[i] = 0.1f + 0.037f * static_cast<float>(i);
  for (int step = 1; step <= 200; ++step) {
    update(settings, 1e-3, step, 1, std::span<float>(parameter), std::span<const float>(gradient),
           std::span<float>(square), std::span<float>(mean));
  }
  for (const float p : parameter) EXPECT_TRUE(std::isfinite(p));
}

// The norms of tensors that are summed in several parts, some by several threads.
TEST(Update, TrustRatiosAreOfTheWholeTensor) {
  constexpr std::size_t kCount = (1 << 18) + 777;
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  std::vector<double> start(kCount), gradient(kCount);
  double parameter_squares = 0, gradient_squares = 0, direction_squares = 0;
  std::vector<double> direction(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    start[i] = normal(random);
    gradient[i] = 3 * normal(random);
    // LAMB's first step: both corrected means are the gradient's own.
    direction[i] = gradient[i] / (std::abs(gradient[i]) + 1e-6) + 0.01 * start[i];
    parameter_squares += start[i] * start[i];
    gradient_squares += gradient[i] * gradient[i];
    direction_squares += direction[i] * direction[i];
  }
  const double norm = std::sqrt(parameter_squares);
  const double lamb_trust = norm / std::sqrt(direction_squares);
  const double lars_trust = 1e-3 * norm / (std::sqrt(gradient_squares) + 5e-4 * norm);
  for (const OptimizerKind kind : {OptimizerKind::kLamb, OptimizerKind::kLars}) {
    std::vector<double> parameter = start, state0(kCount), state1(kCount);
    update(default_settings(kind), 0.5, 1, 1, std::span<double>(parameter),
           std::span<const double>(gradient), std::span<double>(state0), std::span<double>(state1));
    for (std::size_t i = 0; i < kCount; ++i) {
      const double change = kind == OptimizerKind::kLamb
                                ? lamb_trust * direction[i]
                                : lars_trust * (gradient[i] + 5e-4 * start[i]);
      ASSERT_NEAR(parameter[i], start[i] - 0.5 * change, 1e-11) << name_of(kind) << " " << i;
    }
  }
}

// One AdamW step, by formula, for every element of an array whose length is not a multiple of any
// vector length.
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
  EXPECT_EQ(clip_factor(INFINITY, 1), 0);
  EXPECT_TRUE(std::isnan(clip_factor(NAN, 1)));
}

TEST(Update, ManyAtOnceGiveTheBitsOfEach) {
  std::vector<std::vector<float>> arrays;
  const auto array = [&](std::size_t count, unsigned seed) -> std::span<float> {
    std::mt19937 random(seed);
    std::vector<float>& values = arrays.emplace_back(count);
    for (float& x : values) x = static_cast<float>(random() % 2001) / 1000 - 1;
    return values;
  };
  arrays.reserve(1000);
  for (const OptimizerKind kind :
       {OptimizerKind::kSgd, OptimizerKind::kAdamW, OptimizerKind::kLamb}) {
    OptimizerSettings settings = default_settings(kind);
    if (kind == OptimizerKind::kSgd) settings.momentum = 0.9;
    const int slots = state_slots(settings);
    for (const int threads : {1, 2}) {
      omp_set_num_threads(threads);
      std::vector<ParameterUpdate> together, alone;
      for (auto* list : {&together, &alone}) {
        unsigned seed = 1;
        for (const std::size_t count : {300000, 5, 40000, 1, 70001, 0}) {
          ++seed;
          const auto state = [&](int slot) {
            return slots > slot ? array(count, 0) : std::span<float>();
          };
          list->push_back(
              {&settings, 0.01, array(count, seed), array(count, seed + 50), state(0), state(1)});
          for (float& x : list->back().state0) x = 0;
          for (float& x : list->back().state1) x = 0;
        }
      }
      for (std::int64_t step = 1; step <= 2; ++step) {
        update_all(step, 0.5, together);
        for (const ParameterUpdate& one : alone)
          update(settings, 0.01, step, 0.5, one.parameter, one.gradient, one.state0, one.state1);
      }
      for (std::size_t k = 0; k < alone.size(); ++k)
        EXPECT_TRUE(std::ranges::equal(together[k].parameter, alone[k].parameter)) << k;
    }
  }
}

/// Settings of every optimizer, in forms with and without momentum.
std::vector<OptimizerSettings> all_settings() {
  std::vector<OptimizerSettings> all;
  for (const OptimizerRow& row : kOptimizerRows) {
    all.push_back(default_settings(row.kind));
    all.back().weight_decay = 0;
    all.push_back(all.back());
    all.back().momentum = all.back().momentum > 0 ? 0 : 0.9;
    if (!row.reads_centered) continue;
    all.push_back(all[all.size() - 2]);
    all.back().centered = true;
  }
  return all;
}

// If few rows have a gradient or a state, the update has the bits of a whole update, for any row
// length.
TEST(Update, OfRowsIsTheWholeOne) {
  constexpr std::size_t kRows = 40;
  const std::vector<std::int64_t> rows = {7, 0, 39, 12};
  std::mt19937 random(3);
  int by_rows = 0;
  for (const OptimizerSettings& settings : all_settings()) {
    if (!keeps_without_gradient(settings, 0.37, 0.7)) continue;
    ++by_rows;
    for (const std::size_t width : {1, 7, 13, 16, 301}) {
      std::vector<float> whole(kRows * width), gradient(whole.size()), state(whole.size());
      for (float& x : whole) x = static_cast<float>(random() % 2001) / 997 - 1;
      whole[width] = -0.0F;
      for (const std::int64_t row : rows) {
        for (std::size_t i = 0; i < width; ++i) {
          const std::size_t at = static_cast<std::size_t>(row) * width + i;
          gradient[at] = row == 0 ? 0 : static_cast<float>(random() % 2001) / 991 - 1;
          state[at] = 0.5F;
        }
      }
      const std::size_t slots = static_cast<std::size_t>(state_slots(settings));
      std::vector<float> some = whole, state0 = state, state1 = state, other0 = state,
                         other1 = state;
      const auto kept = [&](std::vector<float>& values, std::size_t slot) {
        return slots > slot ? std::span<float>(values) : std::span<float>();
      };
      const ParameterUpdate one{&settings,       0.37, some, gradient, kept(state0, 0),
                                kept(state1, 1), true, rows, width};
      update_all(2, 0.7, {&one, 1});
      update(settings, 0.37, 2, 0.7, std::span(whole), std::span<const float>(gradient),
             kept(other0, 0), kept(other1, 1));
      EXPECT_TRUE(same_bits(some, whole)) << width << " " << name_of(settings.kind);
      EXPECT_TRUE(same_bits(state0, other0) && same_bits(state1, other1));
    }
  }
  EXPECT_EQ(by_rows, 13);  // all but LAMB and LARS
}

TEST(Update, KeepsNothingWithDecayOrWithoutAnEpsilon) {
  for (const OptimizerSettings& settings : all_settings()) {
    OptimizerSettings other = settings;
    other.weight_decay = 1e-12;
    EXPECT_FALSE(keeps_without_gradient(other, 0.1, 1)) << name_of(settings.kind);
    other = settings;
    other.epsilon = 1e-60;  // 0 as a float
    EXPECT_EQ(
        keeps_without_gradient(other, 0.1, 1),
        keeps_without_gradient(settings, 0.1, 1) && !row_of(settings.kind).epsilon.has_value());
    for (const double factor : {1e39, std::numeric_limits<double>::quiet_NaN()}) {
      EXPECT_FALSE(keeps_without_gradient(settings, factor, 1));
      EXPECT_FALSE(keeps_without_gradient(settings, 0.1, factor));
    }
  }
}

TEST(Average, GoesToTheParameterByItsDecay) {
  std::vector<float> average = {4, -2}, parameter = {1, 1};
  for (int step = 0; step < 5; ++step) update_average(0.75, average, parameter);
  // p + (a - p) d^5
  EXPECT_NEAR(average[0], 1 + 3 * 0.2373046875, 1e-6);
  EXPECT_NEAR(average[1], 1 - 3 * 0.2373046875, 1e-6);
}

}  // namespace
}  // namespace pipetrain
