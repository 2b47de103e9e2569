// The learning rate as a pure function of the step.
//
//   peak |    ______                 warm-up: a straight line that reaches the peak at the first
//   step after it
//        |   /      \__   cosine     then     constant, cosine, linear or step, never below the
//        minimum
//    min |__/          \_____
//         warm-up            total
#pragma once

#include <cstdint>
#include <string_view>

namespace pipetrain {

enum class LearningRateKind : std::uint8_t { kConstant, kCosine, kLinear, kStep };

struct LearningRateSettings {
  LearningRateKind kind = LearningRateKind::kCosine;
  double peak = 1e-3;
  double minimum = 0;
  std::int64_t warmup_steps = 0;
  double gamma = 0.1;            // kStep: the factor …
  std::int64_t every_steps = 0;  // … after each so many steps, the warm-up included
};

/// Refuses settings without meaning; an Error (kUsage) naming the flag. `total` is as in
/// learning_rate().
void validate(const LearningRateSettings& settings, std::int64_t total);

/// The rate of update `step`, which counts from 1, in a run of `total` updates.
/// Step w of a warm-up of W gets peak * w / (W + 1); after it, with x = (step - 1 - W) / (total -
/// W) from 0 (peak) to 1 (minimum): cosine (Loshchilov and Hutter 2017) is minimum + (peak -
/// minimum) (1 + cos(pi x)) / 2, linear peak + (minimum - peak) x. Past `total` both stay at the
/// minimum. kStep is peak * gamma^floor((step - 1) / every).
double learning_rate(const LearningRateSettings& settings, std::int64_t step, std::int64_t total);

/// "constant", "cosine", "linear", "step".
std::string_view name_of(LearningRateKind kind);
/// The kind of that name; an Error (kUsage) listing all of them.
LearningRateKind learning_rate_named(std::string_view name);

}  // namespace pipetrain
