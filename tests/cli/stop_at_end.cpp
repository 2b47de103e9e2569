// Preloaded by a test: a process that stops where it should leave the others.
#include <csignal>

extern "C" __attribute__((visibility("default"))) int MPI_Finalize() {
  std::raise(SIGSTOP);
  return 0;
}
