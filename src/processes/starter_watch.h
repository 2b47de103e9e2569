// Waiting for the end of a launch on another host, of which only its record, a file, can be seen.
#pragma once

#include <cstdint>
#include <optional>

namespace pipetrain {

/// `launch` renews its record every few seconds. One that a process finds when it begins to wait
/// may be of an earlier launch, so only what changes afterwards is trusted. Times of the
/// file are compared with each other alone, since hosts have different clocks.
class StarterWatch {
 public:
  enum class State : std::uint8_t {
    kRuns,    // or may still begin
    kEnded,   // as the record says
    kSilent,  // it has died, or its host is lost
    kAbsent,  // it has not begun
  };

  /// `written`: when the record was last written, in any unit; empty: there is none. `ended`:
  /// whether it says that the launch has ended.
  State look(std::optional<std::int64_t> written, bool ended, double now);

  static constexpr double kMostSilence = 300;
  static constexpr double kPatience = 600;  // for the launch to begin

 private:
  bool has_looked_ = false, has_changed_ = false;
  std::optional<std::int64_t> written_;
  double changed_ = 0;  // when that was seen
};

}  // namespace pipetrain
