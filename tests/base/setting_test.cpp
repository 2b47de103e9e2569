#include "base/setting.h"

#include <gtest/gtest.h>

namespace pipetrain {
namespace {

TEST(Setting, TheFrontEndSaysHowUsersWriteIt) {
  EXPECT_EQ(setting("micro-batches"), "`micro-batches`");
  const auto before =
      write_settings_as([](std::string_view name) { return "PIPETRAIN_" + std::string(name); });
  EXPECT_EQ(setting("micro-batches"), "PIPETRAIN_micro-batches");
  write_settings_as(before);
  EXPECT_EQ(setting("micro-batches"), "`micro-batches`");
}

}  // namespace
}  // namespace pipetrain
