#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace pipetrain {
namespace {

TEST(Optimizer, NamesGoBothWays) {
  for (const char* name : {"sgd", "adam", "adamw", "rmsprop"}) {
    EXPECT_EQ(name_of(optimizer_named(name)), name);
  }
  try {
    optimizer_named("lion");
    FAIL() << "an unknown name was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("\"lion\""), std::string::npos);
    EXPECT_NE(error.message().find("adamw, adam, sgd, rmsprop"), std::string::npos);
  }
}

TEST(Optimizer, HasTheCommandLinesDefaults) {
  const OptimizerSettings adamw = default_settings(OptimizerKind::kAdamW);
  EXPECT_EQ(adamw.weight_decay, 0.01);
  EXPECT_EQ(adamw.beta1, 0.9);
  EXPECT_EQ(adamw.beta2, 0.999);
  EXPECT_EQ(adamw.epsilon, 1e-8);
  EXPECT_EQ(default_settings(OptimizerKind::kSgd).momentum, 0.9);
  EXPECT_EQ(default_settings(OptimizerKind::kAdam).weight_decay, 0);
  EXPECT_EQ(default_learning_rate(OptimizerKind::kSgd), 1e-2);
  EXPECT_EQ(default_learning_rate(OptimizerKind::kAdamW), 1e-3);
}

TEST(Optimizer, CountsItsStates) {
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kSgd}), 0);
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kSgd, .momentum = 0.9}), 1);
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kAdam}), 2);
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kAdamW, .momentum = 0.9}), 2);
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kRmsProp}), 1);
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kRmsProp, .momentum = 0.5}), 2);
  EXPECT_EQ(state_name({.kind = OptimizerKind::kAdam}, 1), "mean_square");
  EXPECT_THROW(state_name({.kind = OptimizerKind::kSgd}, 0), Error);
}

TEST(Optimizer, RefusesSettingsWithoutMeaning) {
  using enum OptimizerKind;
  EXPECT_NO_THROW(validate(default_settings(kAdamW)));
  EXPECT_THROW(validate({.kind = kAdam, .beta1 = 1}), Error);
  EXPECT_THROW(validate({.kind = kAdam, .beta2 = -0.1}), Error);
  EXPECT_THROW(validate({.kind = kSgd, .momentum = -1}), Error);
  EXPECT_THROW(validate({.kind = kSgd, .nesterov = true}), Error);
  EXPECT_THROW(validate({.kind = kSgd, .weight_decay = -1e-4}), Error);
}

}  // namespace
}  // namespace pipetrain
