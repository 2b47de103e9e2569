// What reading one file may take beyond its own size: a small file must not cost gigabytes or
// minutes before anybody has asked for a long run.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace pipetrain {

/// What is read, for errors.
struct ReadSubject {
  ErrorKind kind;
  const char* content;  // "its constants need": more than so much memory
  const char* reading;  // "importing the model takes": more than so much time
  const char* advice;
};
inline constexpr ReadSubject kReadingModel = {
    ErrorKind::kModel, "its constants need", "importing the model takes",
    "; export the model without computing them from others"};
inline constexpr ReadSubject kReadingTokenizer = {ErrorKind::kData, "its vocabulary needs",
                                                  "reading it takes", ""};

/// While one exists, the constants that its thread makes are charged to it. Passing a limit is an
/// Error; the caller adds frames that name the node and the file. Budgets of a thread nest: the
/// innermost counts.
class ReadBudget {
 public:
  /// Limits that a file of so many bytes may need: 768 MiB and 64 times its size; 4 seconds of the
  /// thread's CPU time and one more for each 8 MiB.
  explicit ReadBudget(std::uint64_t file_bytes, const ReadSubject& subject = kReadingModel);
  ~ReadBudget();
  ReadBudget(const ReadBudget&) = delete;
  ReadBudget& operator=(const ReadBudget&) = delete;

  /// Charges memory, before it is allocated, and looks at the clock. Nothing without a budget.
  static void charge(std::uint64_t bytes);

 private:
  void check_time();

  ReadBudget* outer_;
  ReadSubject subject_;
  std::uint64_t file_bytes_;
  std::uint64_t bytes_ = 0;
  std::uint32_t charges_ = 0;
  double start_;
};

}  // namespace pipetrain
