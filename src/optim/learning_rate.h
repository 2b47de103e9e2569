// The learning rate as a pure function of the step.
//
//   peak |    ______                 warm-up: a straight line that reaches the peak at the first
//   step after it
//        |   /      \__   cosine     then     one of the curves below, never below the minimum
//    min |__/          \_____
//         warm-up            total
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipetrain {

enum class LearningRateKind : std::uint8_t {
  kConstant,
  kCosine,
  kLinear,
  kStep,
  kMultistep,
  kExponential,
  kPolynomial,
  kInverseSqrt,
  kWsd,
  kOneCycle,
  kRange  // grows from the minimum to the peak, by the same factor each step: a range test
};

/// A point of the run: a number of steps, or a fraction of all steps.
struct Milestone {
  double value = 0;
  bool is_share = false;
};

struct LearningRateSettings {
  LearningRateKind kind = LearningRateKind::kCosine;
  double peak = 1e-3;
  double minimum = 0;
  std::int64_t warmup_steps = 0;
  double gamma = 0.1;                      // kStep, kMultistep, kExponential: the factor …
  std::int64_t every_steps = 0;            // kStep, kExponential: … every this many steps
  std::vector<Milestone> milestones = {};  // kMultistep: … after each of these
  double power = 1;                        // kPolynomial
  double decay_fraction = 0.1;             // kWsd: fraction of the run in which the rate decays
};

/// Validates the settings; Error (kUsage) naming the flag. `total` is as in learning_rate().
void validate(const LearningRateSettings& settings, std::int64_t total);

/// The rate of update `step`, which counts from 1, in a run of `total` updates.
/// Step w of a warm-up of W gets peak * w / (W + 1). After it, with x = (step - 1 - W) / (total -
/// W) from 0 to 1:
///   cosine        minimum + (peak - minimum) (1 + cos(pi x)) / 2  (Loshchilov and Hutter 2017)
///   linear        minimum + (peak - minimum) (1 - x)
///   polynomial    minimum + (peak - minimum) (1 - x)^power
///   step          peak * gamma^floor((step - 1) / every)
///   multistep     peak * gamma^(milestones not above step - 1)
///   exponential   peak * gamma^((step - 1 - W) / every); PyTorch's where `every` is 1
///   inverse-sqrt  peak * sqrt((W + 1) / step)  (Vaswani et al. 2017)
///   wsd           the peak, and linear to the minimum over the last decay_fraction of the run (Hu
///                 et al. 2024)
///   onecycle      PyTorch's OneCycleLR with cosines: from peak / 25 to the peak at the end of the
///                 warm-up (30 % of the run when there is none), then to the minimum (peak / 250000
///                 when that is 0). Its warm-up is not the straight line. Smith and Topin 2018
/// After `total`, schedules that span the run keep their last rate.
double learning_rate(const LearningRateSettings& settings, std::int64_t step, std::int64_t total);

/// "constant", "cosine", "linear", "step", "multistep", "exponential", "polynomial",
/// "inverse-sqrt", "wsd", "onecycle".
std::string_view name_of(LearningRateKind kind);
/// The names to choose from: without that of range tests, and without short ones.
std::vector<std::string> learning_rate_names();
/// What "exp", "poly" and "inv-sqrt" stand for; any other name as it is.
std::string long_learning_rate_name(const std::string& name);
/// The kind of that name, which may be short; Error (kUsage) listing all of them.
LearningRateKind learning_rate_named(std::string_view name);

}  // namespace pipetrain
