#include "optim/loss_scale.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace pipetrain {
namespace {

struct Scales {
  std::vector<double> values;
  LossScale last;
};

/// Scales after steps with finite ('1') and other ('0') gradients.
Scales scales_after(const LossScaling& scaling, std::string_view steps) {
  Scales out;
  out.last.value = scaling.initial;
  for (const char finite : steps) {
    out.last = after_step(out.last, scaling, finite == '1');
    out.values.push_back(out.last.value);
  }
  return out;
}

// Expected values are from torch.amp.GradScaler: tests/optim/make_goldens.py.
TEST(LossScaling, IsPyTorchs) {
  LossScaling scaling = adapting_loss_scale();
  EXPECT_EQ(scaling.interval, 2000);
  scaling.interval = 3;
  const Scales usual = scales_after(scaling, "00111101110111111101110000111");
  EXPECT_EQ(usual.values, (std::vector<double>{
                              32768, 16384, 16384, 16384, 32768, 32768, 16384, 16384, 16384, 32768,
                              16384, 16384, 16384, 32768, 32768, 32768, 65536, 65536, 32768, 32768,
                              32768, 65536, 32768, 16384, 8192,  4096,  4096,  4096,  8192}));
  EXPECT_EQ(usual.last, (LossScale{8192, 0, 9}));
  EXPECT_EQ(scales_after(scaling, "001111").last, (LossScale{32768, 1, 2}));

  scaling.initial = 1000;
  scaling.growth = 1.5;
  scaling.backoff = 0.25;
  scaling.interval = 2;
  EXPECT_EQ(scales_after(scaling, "1101011").values,
            (std::vector<double>{1000, 1500, 375, 375, 93.75, 93.75, 140.625}));

  // The scale does not overflow float.
  scaling = adapting_loss_scale();
  scaling.initial = 0x1p126;
  scaling.interval = 1;
  EXPECT_EQ(scales_after(scaling, "1111").values,
            (std::vector<double>{0x1p127, 0x1p127, 0x1p127, 0x1p127}));
}

TEST(LossScaling, EndsAtTheLeastScaleAndCountsOn) {
  LossScaling scaling = adapting_loss_scale();
  scaling.initial = 4;
  EXPECT_EQ(scales_after(scaling, "00000").values, (std::vector<double>{2, 1, 1, 1, 1}));
  EXPECT_EQ(scales_after(scaling, "00000").last.skipped, 5);
}

TEST(LossScaling, AFixedScaleStays) {
  LossScaling scaling;
  scaling.initial = 128;
  EXPECT_EQ(scales_after(scaling, "0101").last, (LossScale{128, 0, 0}));
}

}  // namespace
}  // namespace pipetrain
