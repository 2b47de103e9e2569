#include "base/read_budget.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/units.h"

namespace pipetrain {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{768} << 20;
constexpr std::uint64_t kBytesPerByte = 64;  // four bits may become a float in several steps
constexpr double kMostSeconds = 4;
constexpr double kSecondsPerByte = 1.0 / (8 << 20);
// Reading the clock is a system call: it is left out for most small charges.
constexpr std::uint32_t kChargesPerLook = 1024;
constexpr std::uint64_t kLarge = 1 << 20;

thread_local ReadBudget* innermost = nullptr;

}  // namespace

ReadBudget::ReadBudget(std::uint64_t file_bytes, const ReadSubject& subject)
    : outer_(innermost), subject_(subject), file_bytes_(file_bytes), start_(thread_cpu_seconds()) {
  innermost = this;
}

ReadBudget::~ReadBudget() { innermost = outer_; }

void ReadBudget::charge(std::uint64_t bytes) {
  ReadBudget* const budget = innermost;
  if (!budget) return;
  const std::uint64_t most = kMostBytes + kBytesPerByte * budget->file_bytes_;
  if (bytes > most || budget->bytes_ > most - bytes) {
    const ReadSubject& subject = budget->subject_;
    throw Error(subject.kind, fmt::format("{} more than {} of memory, too much for a file of {}{}",
                                          subject.content, bytes_text(most),
                                          bytes_text(budget->file_bytes_), subject.advice));
  }
  budget->bytes_ += bytes;
  if (bytes >= kLarge || ++budget->charges_ % kChargesPerLook == 0) budget->check_time();
}

void ReadBudget::check_time() {
  const double most = kMostSeconds + kSecondsPerByte * static_cast<double>(file_bytes_);
  if (thread_cpu_seconds() - start_ > most)
    throw Error(
        subject_.kind,
        fmt::format("{} more than {} of CPU time, too much for a file of {}{}", subject_.reading,
                    seconds_text(most), bytes_text(file_bytes_), subject_.advice));
}

}  // namespace pipetrain
