// Documents generated from the option table: help, the manual page, docs/cli.md and shell
// completions.
#pragma once

#include <string>

namespace pipetrain {

/// One screen for the whole program.
std::string short_help();
/// The help of one command. Error (kUsage) with the nearest name for an unknown one.
std::string full_help(const std::string& command);
/// The manual page pipetrain(1), in man's macros of roff.
std::string manual_page();
/// All commands and options: docs/cli.md.
std::string reference_markdown();
/// The completion script of bash, zsh or fish. Error (kUsage) for another shell.
std::string completion_script(const std::string& shell);

}  // namespace pipetrain
