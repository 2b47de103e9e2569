// The counterpart of src/cuda/cuda_launch.h for kernels that are compiled when a program runs.
#pragma once

#define PT_FULL_WARP 0xffffffffu
#define PT_LARGE(type) const __grid_constant__ type
