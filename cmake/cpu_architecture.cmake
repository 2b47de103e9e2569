# Checks that the compiler supports PIPETRAIN_CPU_ARCH for the target processor, with one sentence if it does not.
include(CheckCXXCompilerFlag)

set(CHOICES "set -DPIPETRAIN_CPU_ARCH to a -march value of this compiler, or leave it empty for the compiler's default, with slower kernels")
if(PIPETRAIN_CPU_ARCH MATCHES "^x86-64" AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64|x64)$")
  message(FATAL_ERROR "pipetrain's CPU kernels are compiled for ${PIPETRAIN_CPU_ARCH}, but this build is for ${CMAKE_SYSTEM_PROCESSOR}: ${CHOICES}.")
endif()
if(PIPETRAIN_CPU_ARCH)
  string(MAKE_C_IDENTIFIER "COMPILES_FOR_${PIPETRAIN_CPU_ARCH}" COMPILES)
  check_cxx_compiler_flag("-march=${PIPETRAIN_CPU_ARCH}" ${COMPILES})
  if(NOT ${COMPILES})
    message(FATAL_ERROR "${CMAKE_CXX_COMPILER} does not take -march=${PIPETRAIN_CPU_ARCH}, which pipetrain's CPU kernels are compiled with (x86-64-v3: GCC 11 or clang 12, or later): ${CHOICES}.")
  endif()
endif()
