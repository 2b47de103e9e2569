// The end of a program that gets no memory or no thread: one sentence with what was asked for and
// what there is, and exit code 5.
#pragma once

namespace pipetrain {

/// Prints the sentence on stderr without allocating anything, and returns the exit code.
int report_out_of_memory();

/// From here on, std::terminate() ends as main() would: an exception that a thread let go counts as
/// its kind, and running out of memory as such.
void report_terminations();

}  // namespace pipetrain
