// Opens files that are written piece by piece; AtomicFile (atomic_file.h) writes whole ones.
// Nothing else opens files for writing by name, for it may be a pipe that nothing reads from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace pipetrain {

enum class OutputMode : std::uint8_t { kReplace, kAppend, kNew };
enum class OutputTakes : std::uint8_t { kFiles, kPipesToo };

/// A descriptor of a file for writing, which the caller closes; it is created if it is missing.
/// Error (kResource) that begins with `who` and names `path` if that cannot be, or if it is a pipe
/// or a device. With kPipesToo those are written to; a pipe that nothing reads from is an error
/// after two seconds.
int open_output(const std::filesystem::path& path, OutputMode mode,
                OutputTakes takes = OutputTakes::kFiles, const std::string& who = {});

/// Writes all of a text, unless that fails; then errno has the reason.
bool write_all(int descriptor, std::string_view text);
/// The same, but a failure leaves no part of the text at the end of a regular file, where it would
/// spoil what is written next.
bool write_all_or_nothing(int descriptor, std::string_view text);

/// Opens a file as above, writes a text, at once if it is short, and closes it.
void write_text(const std::filesystem::path& path, OutputMode mode, std::string_view text,
                const std::string& who = {});

/// Opens a file that is replaced; -1 where that would be an error. Signal handlers may call it.
int open_output_or_none(const char* path) noexcept;

}  // namespace pipetrain
