// The exception type of the project: a kind (the exit code of the command line), a sentence, and
// "while …" frames that callers add.
#pragma once

#include <fmt/core.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace pipetrain {

/// Says whose fault an error is. The values are the exit codes of the command line.
enum class ErrorKind {
  kInternal = 1,   // a bug in pipetrain
  kUsage = 2,      // flags, configuration
  kModel = 3,      // the ONNX file cannot be read or trained
  kData = 4,       // data set missing, unreadable, out of range
  kResource = 5,   // devices, memory, disk
  kDiverged = 6,   // the loss or a gradient is not finite
  kDevice = 7,     // a device or a transfer failed during the run
  kAssertion = 8,  // `eval --assert` not met
};

class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message);

  ErrorKind kind() const { return kind_; }
  /// The sentence without its frames.
  const std::string& message() const { return message_; }
  const std::vector<std::string>& frames() const { return frames_; }
  /// The sentence, then one "  while …" line per frame, innermost first.
  const char* what() const noexcept override { return text_.c_str(); }
  void add_frame(const std::string& frame);

 private:
  ErrorKind kind_;
  std::string message_;
  std::vector<std::string> frames_;
  std::string text_;
};

/// Runs `body`; an Error leaving it gets the frame "while " + frame(). The frame is built on
/// failure only.
template <class Frame, class Body>
decltype(auto) with_context(Frame&& frame, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (Error& error) {
    error.add_frame(frame());
    throw;
  }
}

/// Returns `text` with control characters escaped, truncated: for names from files.
std::string printable(std::string_view text);

}  // namespace pipetrain

#define PT_FAIL(kind, ...) \
  throw ::pipetrain::Error(::pipetrain::ErrorKind::kind, fmt::format(__VA_ARGS__))
#define PT_CHECK(condition, kind, ...)            \
  do {                                            \
    if (!(condition)) PT_FAIL(kind, __VA_ARGS__); \
  } while (false)
