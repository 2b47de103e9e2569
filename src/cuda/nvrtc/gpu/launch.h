// gpu/launch.h for NVRTC, which compiles kernels at run time.
#pragma once

#define PT_FULL_WARP 0xffffffffu
#define PT_LARGE(type) const __grid_constant__ type
