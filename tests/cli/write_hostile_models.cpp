// Writes the hostile models into a folder, for a test that gives each to the program, and prints a line for each:
// its path, "bytes" or "graph" (what is wrong with it) and part of the sentence that is expected.
#include <cstdio>

#include "support/hostile_models.h"

int main(int count, char** arguments) {
  if (count != 2) {
    std::fputs("usage: write_hostile_models DIRECTORY\n", stderr);
    return 2;
  }
  for (const pipetrain::HostileModel& model : pipetrain::hostile_files(arguments[1])) {
    std::printf("%s\t%s\t%s\n", model.path.c_str(), model.fails_to_read ? "bytes" : "graph", model.message.c_str());
  }
  return 0;
}
