#include "data/rows/good_rows.h"

#include <fmt/format.h>

namespace pipetrain {

std::string text_of_skipped(const std::map<std::size_t, std::string>& bad_rows) {
  constexpr std::size_t kShown = 3;
  std::string text =
      fmt::format("{} bad sample{} skipped", bad_rows.size(), bad_rows.size() == 1 ? "" : "s");
  std::size_t shown = 0;
  for (const auto& [row, message] : bad_rows) {
    if (shown++ == kShown) break;
    text += fmt::format("{} {}", shown == 1 ? ":" : ";", message);
  }
  return text;
}

}  // namespace pipetrain
