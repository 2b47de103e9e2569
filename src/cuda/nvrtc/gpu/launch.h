// gpu/launch.h for NVRTC, that is for kernels that are compiled at run time.
#pragma once

#define PT_FULL_WARP 0xffffffffu
#define PT_LARGE(type) const __grid_constant__ type
