// Any of NVIDIA's libraries, as far as its version goes.
#include <stddef.h>

int cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return 0;
}
size_t cublasLtGetVersion(void) { return 130002; }
size_t cudnnGetVersion(void) { return 91200; }
int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
int ncclGetVersion(int* version) {
  *version = 22707;
  return 0;
}
