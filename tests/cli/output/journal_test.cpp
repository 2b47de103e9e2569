// The journal of a run: what is written, read back and compared.
#include "cli/output/journal.h"

#include <gtest/gtest.h>

#include <bit>
#include <fstream>

#include "base/error.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

const std::string kDigest(64, 'a');

StepReport step_of_journal(std::int64_t step, double loss, const std::string& digest = "") {
  StepReport report;
  report.step = step;
  report.loss = loss;
  report.weights_digest = digest;
  return report;
}

TEST(Journal, IsReadAsItWasWritten) {
  const TemporaryDirectory folder;
  {
    Journal journal(folder.path() / "journal.txt", /*append=*/false);
    journal.step(step_of_journal(1, 0.1));
    journal.step(step_of_journal(2, 2, kDigest));
  }
  std::ifstream file(folder.path() / "journal.txt");
  std::string first, second;
  std::getline(file, first);
  std::getline(file, second);
  EXPECT_EQ(second, "1 3fb999999999999a");  // 0.1 in IEEE 754
  const JournalContent content = read_journal(folder.path());
  ASSERT_EQ(content.steps.size(), 2U);
  EXPECT_EQ(std::bit_cast<double>(content.steps.at(1).loss_bits), 0.1);
  EXPECT_EQ(content.steps.at(1).weights, "");
  EXPECT_EQ(content.steps.at(2).weights, kDigest);
}

TEST(Journal, GoesOnBehindALineThatWasCutOff) {
  const TemporaryDirectory folder;
  std::ofstream(folder.path() / "journal.txt") << "1 3fb999999999999a\n2 3fb9";
  EXPECT_EQ(read_journal(folder.path()).steps.size(), 1U);
  Journal(folder.path() / "journal.txt", /*append=*/true).step(step_of_journal(2, 0.5));
  const JournalContent content = read_journal(folder.path());
  ASSERT_EQ(content.steps.size(), 2U);
  EXPECT_EQ(content.steps.at(2).loss_bits, 0x3fe0000000000000U);
  EXPECT_EQ(content.contradicted, 0);
}

TEST(Journal, StepsThatAreComputedAgainHaveTheSameBits) {
  const TemporaryDirectory folder;
  Journal journal(folder.path() / "journal.txt", /*append=*/false);
  for (const std::int64_t step : {1, 2, 3, 2, 3, 4})
    journal.step(step_of_journal(step, static_cast<double>(step)));
  EXPECT_EQ(read_journal(folder.path()).contradicted, 0);
  journal.step(step_of_journal(3, 3.5));
  EXPECT_EQ(read_journal(folder.path()).contradicted, 3);
}

TEST(Journal, DamageIsNamedByLine) {
  const TemporaryDirectory folder;
  for (const char* line : {"x 3fb999999999999a", "2", "0 3fb999999999999a", "2 3fb9",
                           "2 3fb999999999999a abc", "2 zzzzzzzzzzzzzzzz"}) {
    std::ofstream(folder.path() / "journal.txt") << "1 3fb999999999999a\n"
                                                 << line << "\n3 3fb999999999999a\n";
    try {
      read_journal(folder.path());
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_NE(error.message().find("line 2"), std::string::npos) << error.message();
    }
  }
}

TEST(Journal, NamesTheFirstStepThatDiffers) {
  JournalContent a, b;
  for (std::int64_t step = 1; step <= 9; ++step) {
    a.steps[step] = {7, step % 3 == 0 ? kDigest : ""};
    b.steps[step + 1] = {7, step % 2 == 0 ? "" : kDigest};
  }
  JournalDifference found = first_difference(a, b);
  EXPECT_EQ(found.step, 0);
  EXPECT_EQ(found.compared, 8);
  b.steps[6].weights = std::string(64, 'b');
  found = first_difference(a, b);
  EXPECT_EQ(found.step, 6);
  EXPECT_TRUE(found.in_weights);
  b.steps[5].loss_bits = 8;
  found = first_difference(a, b);
  EXPECT_EQ(found.step, 5);
  EXPECT_FALSE(found.in_weights);
}

}  // namespace
}  // namespace pipetrain
