// Log messages on stderr. The tag is the source directory; results never go through here.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace pipetrain {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

/// Shows messages from this level on: kInfo at first, kError with --quiet, kDebug with --verbose.
void set_log_level(LogLevel level);
bool is_logged(LogLevel level);
/// Also writes messages to a file, with time stamps. The first file begins with the messages that
/// there have been before. Error (kResource) when it cannot be opened.
void copy_log_to(const std::filesystem::path& path);
/// Leaves these messages out of the file: another process, a fork of this one, writes them.
void forget_early_log();
/// How messages are laid out on stderr; null: as they are.
void lay_out_log(std::string (*layout)(std::string_view text));
/// Closes the log file. `error`: the last message, which the caller prints itself; empty: none.
void stop_copying_log(std::string_view error = {});

/// Writes one message: "text", "warning: text", "error: text", or "[tag] text" at kDebug. Any
/// thread may call it.
void write_log(LogLevel level, std::string_view tag, std::string_view text);

template <class... Values>
void log_debug(std::string_view tag, fmt::format_string<Values...> text, Values&&... values) {
  if (is_logged(LogLevel::kDebug)) {
    write_log(LogLevel::kDebug, tag, fmt::format(text, std::forward<Values>(values)...));
  }
}
template <class... Values>
void log_info(std::string_view tag, fmt::format_string<Values...> text, Values&&... values) {
  if (is_logged(LogLevel::kInfo)) {
    write_log(LogLevel::kInfo, tag, fmt::format(text, std::forward<Values>(values)...));
  }
}
template <class... Values>
void log_warning(std::string_view tag, fmt::format_string<Values...> text, Values&&... values) {
  if (is_logged(LogLevel::kWarning)) {
    write_log(LogLevel::kWarning, tag, fmt::format(text, std::forward<Values>(values)...));
  }
}
template <class... Values>
void log_error(std::string_view tag, fmt::format_string<Values...> text, Values&&... values) {
  write_log(LogLevel::kError, tag, fmt::format(text, std::forward<Values>(values)...));
}

}  // namespace pipetrain
