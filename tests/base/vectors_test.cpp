#include "base/vectors.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace pipetrain {
namespace {

constexpr InstructionSets kLevel3 =
    kSse42 | kPopcnt | kMovbe | kAvx | kF16c | kFma | kAvx2 | kBmi | kBmi2 | kLzcnt;

// CPUID words of these processor generations, from Intel's manual.
constexpr ProcessorWords kNehalem = {0x0098e3bd, 0, 0, 0x00000001, 0};
constexpr ProcessorWords kIvyBridge = {0x7fbae3ff, 0x00000281, 0, 0x00000001, 0x7};
constexpr ProcessorWords kHaswell = {0x7ffafbff, 0x000027ab, 0, 0x00000021, 0x7};
constexpr ProcessorWords kSkylakeServer = {0x7ffefbff, 0xd39ffffb, 0, 0x00000121, 0xe7};
constexpr ProcessorWords kSapphireRapids = {0x7ffefbff, 0xf3bfffbb, 0xffdd4432, 0x00000121,
                                            0x602e7};

TEST(Vectors, InstructionsAreThoseThatTheProcessorNames) {
  EXPECT_EQ(instruction_sets({}), 0U);
  EXPECT_EQ(instruction_sets(kNehalem), kSse42 | kPopcnt);
  EXPECT_EQ(instruction_sets(kIvyBridge), kSse42 | kPopcnt | kAvx | kF16c);
  EXPECT_EQ(instruction_sets(kHaswell), kLevel3);
  EXPECT_EQ(instruction_sets(kSkylakeServer), kLevel3 | kAvx512f | kAvx512bw | kAvx512vl);
  EXPECT_EQ(instruction_sets(kSapphireRapids),
            kLevel3 | kAvx512f | kAvx512bw | kAvx512vl | kAmxTile | kAmxBfloat16);
}

TEST(Vectors, RegistersThatTheSystemDoesNotSaveCannotBeUsed) {
  ProcessorWords words = kSapphireRapids;
  words.saved_registers = 0xe7;
  EXPECT_EQ(instruction_sets(words), instruction_sets(kSkylakeServer));
  words = kSkylakeServer;
  words.saved_registers = 0x7;
  EXPECT_EQ(instruction_sets(words), kLevel3);
  words.saved_registers = 0x3;
  EXPECT_EQ(instruction_sets(words), kSse42 | kPopcnt | kMovbe | kBmi | kBmi2 | kLzcnt);
}

TEST(Vectors, WhatIsMissingIsNamed) {
  EXPECT_EQ(missing_instructions(kLevel3, kLevel3), "");
  EXPECT_EQ(missing_instructions(0, 0), "");
  EXPECT_EQ(missing_instructions(kLevel3, instruction_sets(kIvyBridge)),
            "MOVBE, FMA, AVX2, BMI1, BMI2, LZCNT");
  EXPECT_EQ(missing_instructions(kLevel3 | kAvx512f, kLevel3), "AVX-512F");
}

}  // namespace
}  // namespace pipetrain
