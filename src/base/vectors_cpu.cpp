// The extensions that the CPU kernels were compiled for: this file has their compiler flags, but
// only data, so that any processor can load it.
#include "base/vectors.h"

namespace pipetrain {

const InstructionSets kInstructionsOfKernels = 0
#ifdef __SSE4_2__
                                               | kSse42
#endif
#ifdef __POPCNT__
                                               | kPopcnt
#endif
#ifdef __MOVBE__
                                               | kMovbe
#endif
#ifdef __AVX__
                                               | kAvx
#endif
#ifdef __F16C__
                                               | kF16c
#endif
#ifdef __FMA__
                                               | kFma
#endif
#ifdef __AVX2__
                                               | kAvx2
#endif
#ifdef __BMI__
                                               | kBmi
#endif
#ifdef __BMI2__
                                               | kBmi2
#endif
#ifdef __LZCNT__
                                               | kLzcnt
#endif
#ifdef __AVX512F__
                                               | kAvx512f
#endif
#ifdef __AVX512BW__
                                               | kAvx512bw
#endif
#ifdef __AVX512VL__
                                               | kAvx512vl
#endif
    ;

}  // namespace pipetrain
