// Where GPU kernels are launched: a CUDA stream and properties of its device.
#pragma once

#include "gpu/launch.h"

namespace pipetrain {

class CudaLibraries;
class KernelCompiler;

struct CudaQueue {
  cudaStream_t stream = nullptr;
  int multiprocessors = 1;
  CudaLibraries* libraries = nullptr;  // handles of cuBLASLt and cuDNN that belong to the stream
  KernelCompiler* compiler = nullptr;  // null: nothing is compiled at run time
  bool tensor_floats = false;          // products of float32 may round operands to TF32
};

}  // namespace pipetrain
