// Every row of the optimizer table, on the CPU and under the emulator or on a GPU: one step of each
// of its rules against the formula of PyTorch or the paper, which is repeated here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "optim/optimizer_table.h"
#include "optim/update.h"
#include "support/device_kernel.h"
#include "support/emulated_kernels.h"

namespace pipetrain {
namespace {

constexpr double kRounding = 0x1p-24;  // of float

/// A value in double, and the error bound of the same computation in float.
struct Bounded {
  double value = 0, error = 0;

  Bounded() = default;
  /// A value that is rounded to float before use.
  Bounded(double rounded) : value(rounded), error(kRounding * std::abs(rounded)) {}  // NOLINT
  Bounded(double result, double inherited)
      : value(result), error(inherited + kRounding * std::abs(result) + 0x1p-149) {}
  static Bounded exact(double number) {
    Bounded out;
    out.value = number;
    return out;
  }
};
Bounded operator+(Bounded a, Bounded b) { return {a.value + b.value, a.error + b.error}; }
Bounded operator-(Bounded a, Bounded b) { return {a.value - b.value, a.error + b.error}; }
Bounded operator*(Bounded a, Bounded b) {
  return {a.value * b.value,
          std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error};
}
Bounded operator/(Bounded a, Bounded b) {
  const double result = a.value / b.value;
  return {result, (a.error + std::abs(result) * b.error) / (std::abs(b.value) - b.error)};
}
Bounded root(Bounded a) {
  const double result = std::sqrt(std::max(a.value, 0.0));
  return {result, std::max(std::sqrt(std::max(a.value + a.error, 0.0)) - result,
                           result - std::sqrt(std::max(a.value - a.error, 0.0)))};
}
Bounded sign(Bounded a) {
  Bounded out = Bounded::exact(a.value > 0 ? 1 : a.value < 0 ? -1 : 0);
  if (std::abs(a.value) <= 4 * a.error) out.error = 2;
  return out;
}

using Numbers = std::vector<Bounded>;
Bounded norm(const Numbers& numbers) {
  double squares = 0, errors = 0;
  for (const Bounded& x : numbers) {
    squares += x.value * x.value;
    errors += x.error * x.error;
  }
  return {std::sqrt(squares), std::sqrt(errors)};
}

struct Step {
  OptimizerSettings settings;
  double rate, scale;
  int number;  // from 1

  Bounded l2(Bounded p, Bounded g) const { return g * scale + p * settings.weight_decay; }
  double correction(double beta) const { return 1 - std::pow(beta, number); }
};

struct Tensor {
  Numbers p, g, state0, state1;
};

void sgd(const Step& step, Tensor& t) {
  const OptimizerSettings& s = step.settings;
  for (std::size_t i = 0; i < t.p.size(); ++i) {
    Bounded d = step.l2(t.p[i], t.g[i]);
    if (s.momentum != 0) {
      Bounded& b = t.state0[i];
      b = step.number == 1 ? d : b * s.momentum + d * (1 - s.dampening);
      d = s.nesterov ? d + b * s.momentum : b;
    }
    t.p[i] = t.p[i] - d * step.rate;
  }
}

/// Adam's direction from the bias-corrected means.
Bounded adam_direction(const Step& step, Bounded d, Bounded& m, Bounded& v) {
  const OptimizerSettings& s = step.settings;
  m = m * s.beta1 + d * (1 - s.beta1);
  v = v * s.beta2 + d * d * (1 - s.beta2);
  return m / step.correction(s.beta1) / (root(v / step.correction(s.beta2)) + s.epsilon);
}

void adam(const Step& step, Tensor& t) {
  for (std::size_t i = 0; i < t.p.size(); ++i) {
    const Bounded d = step.l2(t.p[i], t.g[i]);
    t.p[i] = t.p[i] - adam_direction(step, d, t.state0[i], t.state1[i]) * step.rate;
  }
}

void adamw(const Step& step, Tensor& t) {
  for (std::size_t i = 0; i < t.p.size(); ++i) {
    const Bounded direction = adam_direction(step, t.g[i] * step.scale, t.state0[i], t.state1[i]);
    t.p[i] = t.p[i] - t.p[i] * (step.rate * step.settings.weight_decay) - direction * step.rate;
  }
}

void rms_prop(const Step& step, Tensor& t) {
  const OptimizerSettings& s = step.settings;
  for (std::size_t i = 0; i < t.p.size(); ++i) {
    const Bounded d = step.l2(t.p[i], t.g[i]);
    Bounded& v = t.state0[i];
    v = v * s.alpha + d * d * (1 - s.alpha);
    Bounded about = v;
    if (s.centered) {
      Bounded& m = t.state1[i];
      m = m * s.alpha + d * (1 - s.alpha);
      about = v - m * m;
    }
    Bounded direction = d / (root(about) + s.epsilon);
    if (s.momentum != 0 && !s.centered)
      direction = t.state1[i] = t.state1[i] * s.momentum + direction;
    t.p[i] = t.p[i] - direction * step.rate;
  }
}

void adagrad(const Step& step, Tensor& t) {
  for (std::size_t i = 0; i < t.p.size(); ++i) {
    const Bounded d = step.l2(t.p[i], t.g[i]);
    t.state0[i] = t.state0[i] + d * d;
    t.p[i] = t.p[i] - d / (root(t.state0[i]) + step.settings.epsilon) * step.rate;
  }
}

void lamb(const Step& step, Tensor& t) {
  Numbers direction(t.p.size());
  for (std::size_t i = 0; i < t.p.size(); ++i) {
    direction[i] = adam_direction(step, t.g[i] * step.scale, t.state0[i], t.state1[i]) +
                   t.p[i] * step.settings.weight_decay;
  }
  const Bounded rate = norm(t.p) / norm(direction) * step.rate;
  for (std::size_t i = 0; i < t.p.size(); ++i) t.p[i] = t.p[i] - direction[i] * rate;
}

void lars(const Step& step, Tensor& t) {
  const OptimizerSettings& s = step.settings;
  Numbers gradient(t.g.size());
  for (std::size_t i = 0; i < t.g.size(); ++i) gradient[i] = t.g[i] * step.scale;
  const Bounded rate =
      norm(t.p) / (norm(gradient) + norm(t.p) * s.weight_decay) * (1e-3 * step.rate);
  for (std::size_t i = 0; i < t.p.size(); ++i) {
    Bounded change = step.l2(t.p[i], t.g[i]) * rate;
    if (s.momentum != 0) change = t.state0[i] = t.state0[i] * s.momentum + change;
    t.p[i] = t.p[i] - change;
  }
}

void lion(const Step& step, Tensor& t) {
  const OptimizerSettings& s = step.settings;
  for (std::size_t i = 0; i < t.p.size(); ++i) {
    const Bounded d = t.g[i] * step.scale;
    Bounded& m = t.state0[i];
    const Bounded direction = sign(m * s.beta1 + d * (1 - s.beta1));
    m = m * s.beta2 + d * (1 - s.beta2);
    t.p[i] = t.p[i] - (direction + t.p[i] * s.weight_decay) * step.rate;
  }
}

/// The formula of every optimizer, by its name.
const std::map<std::string_view, std::function<void(const Step&, Tensor&)>> kFormulas = {
    {"adamw", adamw},     {"adam", adam}, {"sgd", sgd},   {"rmsprop", rms_prop},
    {"adagrad", adagrad}, {"lamb", lamb}, {"lars", lars}, {"lion", lion},
};

/// All valid combinations of the settings that a row reads.
std::vector<OptimizerSettings> settings_of_row(const OptimizerRow& row) {
  std::vector<OptimizerSettings> out;
  const auto choices = [](bool reads) { return reads ? std::vector{0, 1} : std::vector{0}; };
  for (const int momentum : choices(row.momentum.has_value())) {
    for (const int nesterov : choices(row.reads_nesterov)) {
      for (const int dampening : choices(row.reads_dampening)) {
        for (const int centered : choices(row.reads_centered)) {
          for (const double decay : {0.0, 0.05}) {
            OptimizerSettings settings = default_settings(row.kind);
            settings.momentum = momentum * 0.9;
            settings.nesterov = nesterov != 0;
            settings.dampening = dampening * 0.3;
            settings.centered = centered != 0;
            settings.weight_decay = decay;
            if ((settings.nesterov && (momentum == 0 || dampening != 0)) ||
                (settings.centered && momentum != 0))
              continue;
            out.push_back(settings);
          }
        }
      }
    }
  }
  return out;
}

std::string text_of(const OptimizerSettings& s) {
  std::string out(name_of(s.kind));
  if (s.momentum != 0) out += " momentum";
  if (s.nesterov) out += " nesterov";
  if (s.dampening != 0) out += " dampening";
  if (s.centered) out += " centered";
  return out + (s.weight_decay != 0 ? " decay" : "");
}

constexpr std::size_t kCount = 1037;  // not a multiple of the vector length
constexpr double kRate = 0.02, kScale = 0.37;
constexpr int kSteps = 4;

/// A tensor in training. Every step is compared separately, from its initial values.
template <class T>
struct Arrays {
  std::vector<T> p, g, state0, state1;
  std::mt19937 random{5};
  std::normal_distribution<float> normal;

  explicit Arrays(const OptimizerSettings& settings) : p(kCount), g(kCount) {
    for (T& x : p) x = normal(random);
    const int slots = state_slots(settings);
    if (slots > 0) state0.resize(kCount);
    if (slots > 1) state1.resize(kCount);
  }

  void next_gradient() {
    for (T& x : g) x = normal(random);
  }

  Tensor exact() const {
    const auto copy = [](const std::vector<T>& values) {
      Numbers out;
      for (const T x : values) out.push_back(Bounded::exact(x));
      return out;
    };
    return {copy(p), copy(g), copy(state0), copy(state1)};
  }

  void expect_near(const Tensor& expected) const {
    // Two orders of the same operations differ by at most twice the error of one.
    const double share = 4 * (sizeof(T) == 4 ? 1 : 0x1p-29);
    const auto compare = [&](const std::vector<T>& values, const Numbers& wanted,
                             const char* what) {
      ASSERT_EQ(values.size(), wanted.size());
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(values[i], wanted[i].value, share * wanted[i].error) << what << " " << i;
    };
    compare(p, expected.p, "parameter");
    compare(state0, expected.state0, "first state");
    compare(state1, expected.state1, "second state");
  }
};

Tensor after(const OptimizerSettings& settings, int number, Tensor tensor) {
  kFormulas.at(name_of(settings.kind))({settings, kRate, kScale, number}, tensor);
  return tensor;
}

template <class T>
void check_on_cpu(const OptimizerSettings& settings) {
  Arrays<T> arrays(settings);
  for (int number = 1; number <= kSteps; ++number) {
    SCOPED_TRACE(text_of(settings) + ", step " + std::to_string(number));
    arrays.next_gradient();
    const Tensor expected = after(settings, number, arrays.exact());
    update(settings, kRate, number, kScale, std::span<T>(arrays.p), std::span<const T>(arrays.g),
           std::span<T>(arrays.state0), std::span<T>(arrays.state1));
    arrays.expect_near(expected);
  }
}

TEST(EveryOptimizer, HasAFormulaHere) {
  for (const OptimizerRow& row : kOptimizerRows)
    EXPECT_TRUE(kFormulas.contains(row.name)) << row.name;
}

TEST(EveryOptimizer, HasACompleteRow) {
  std::set<int> rules;
  for (const OptimizerRow& row : kOptimizerRows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(optimizer_named(row.name), row.kind);
    EXPECT_NO_THROW(validate(default_settings(row.kind)));
    std::set<int> reached;
    for (const OptimizerSettings& settings : settings_of_row(row)) {
      EXPECT_NO_THROW(validate(settings)) << text_of(settings);
      const OptimizerVariant& variant = variant_of(settings);
      reached.insert(variant.rule);
      std::set<std::string_view> names;
      for (int slot = 0; slot < state_slots(settings); ++slot)
        names.insert(state_name(settings, slot));
      EXPECT_EQ(static_cast<int>(names.size()), state_slots(settings)) << text_of(settings);
    }
    for (const OptimizerVariant& variant : row.variants) {
      EXPECT_TRUE(variant.rule < 0 || reached.contains(variant.rule)) << variant.rule;
    }
    rules.merge(reached);
  }
  // Every rule belongs to an optimizer.
  int count = 0;
  for (bool there = true; there; count += there ? 1 : 0) {
    there = false;
    visit_rule<float>(ElementRules{}, count, [&](auto) { there = true; });
  }
  EXPECT_EQ(rules.size(), static_cast<std::size_t>(count));
}

TEST(EveryOptimizer, FollowsItsFormulaOnTheCpu) {
  for (const OptimizerRow& row : kOptimizerRows) {
    for (const OptimizerSettings& settings : settings_of_row(row)) {
      check_on_cpu<float>(settings);
      check_on_cpu<double>(settings);
    }
  }
}

TEST(EveryOptimizer, FollowsItsFormulaOnTheGpu) {
  std::vector<OptimizerSettings> all;
  for (const OptimizerRow& row : kOptimizerRows) {
    for (const OptimizerSettings& settings : settings_of_row(row)) {
      if (test::is_emulated_update(settings)) all.push_back(settings);
    }
  }
  std::vector<Arrays<float>> tensors(all.begin(), all.end());
  for (int number = 1; number <= kSteps; ++number) {
    std::vector<Tensor> expected;
    std::vector<DeviceUpdate> updates;
    for (std::size_t k = 0; k < all.size(); ++k) {
      Arrays<float>& tensor = tensors[k];
      tensor.next_gradient();
      expected.push_back(after(all[k], number, tensor.exact()));
      updates.push_back({&all[k], kRate, tensor.p, tensor.g, tensor.state0, tensor.state1, {}});
    }
    test::update_on_gpu(number, kScale, 0, updates);
    for (std::size_t k = 0; k < all.size(); ++k) {
      SCOPED_TRACE(text_of(all[k]) + ", step " + std::to_string(number));
      tensors[k].expect_near(expected[k]);
    }
  }
}

}  // namespace
}  // namespace pipetrain
