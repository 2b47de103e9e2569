// What is written from the option table: help, the manual page, the reference in docs/cli.md and
// the completions of shells.
#pragma once

#include <string>

namespace pipetrain {

/// One screen for the whole program.
std::string short_help();
/// Everything about one command. Error (kUsage) with the nearest one when there is none.
std::string full_help(const std::string& command);
/// The manual page pipetrain(1), in man's macros of roff.
std::string manual_page();
/// All commands and options: docs/cli.md.
std::string reference_markdown();
/// What bash, zsh or fish reads. Error (kUsage) for another shell.
std::string completion_script(const std::string& shell);

}  // namespace pipetrain
