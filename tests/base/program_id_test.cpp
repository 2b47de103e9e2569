#include "base/program_id.h"

#include <gtest/gtest.h>

namespace pipetrain {
namespace {

TEST(ProgramId, IsTheLinkersSha1) {
  const std::string id = program_id();
  EXPECT_EQ(id.size(), 40U);
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
}

}  // namespace
}  // namespace pipetrain
