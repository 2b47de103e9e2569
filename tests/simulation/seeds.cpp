#include "simulation/seeds.h"

#include <gtest/gtest.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/clock.h"

namespace pipetrain::simulation {
namespace {

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

void under_seeds(int count, const std::function<Outcome(std::uint64_t seed)>& scenario) {
  const bool one = std::getenv("PIPETRAIN_SEED") && !std::getenv("PIPETRAIN_SEEDS");
  const std::uint64_t first = number_of("PIPETRAIN_SEED", 1);
  const std::uint64_t seeds =
      one ? 1 : number_of("PIPETRAIN_SEEDS", static_cast<std::uint64_t>(count));
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const double start = thread_cpu_seconds();
  std::uint64_t switches = 0;
  double seconds = 0;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    const Outcome outcome = scenario(seed);
    switches += outcome.switches;
    seconds += outcome.seconds;
    if (!testing::Test::HasFailure()) continue;
    std::fprintf(stderr,
                 "repeat it with PIPETRAIN_SEED=%llu simulation_tests --gtest_filter=%s.%s\n",
                 static_cast<unsigned long long>(seed), test.test_suite_name(), test.name());
    return;
  }
  const double taken = thread_cpu_seconds() - start;
  std::printf("%llu seeds, %llu switches, %.0f simulated seconds, in %.2f s: %.0f seeds/core-hour\n",
              static_cast<unsigned long long>(seeds), static_cast<unsigned long long>(switches),
              seconds, taken, 3600 * static_cast<double>(seeds) / taken);
}

}  // namespace pipetrain::simulation
