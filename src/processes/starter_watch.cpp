#include "processes/starter_watch.h"

#include <utility>

namespace pipetrain {

StarterWatch::State StarterWatch::look(std::optional<std::int64_t> written, bool ended,
                                       double now) {
  const bool is_first = !std::exchange(has_looked_, true);
  if (is_first || written != written_) {
    has_changed_ = !is_first;
    written_ = written;
    changed_ = now;
  }
  if (has_changed_) {
    if (ended) return State::kEnded;
    return now - changed_ > kMostSilence ? State::kSilent : State::kRuns;
  }
  return now - changed_ <= kPatience ? State::kRuns : State::kAbsent;
}

}  // namespace pipetrain
