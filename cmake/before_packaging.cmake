# Run by cpack before packaging. Without this program the packages would depend on nothing.
cmake_policy(SET CMP0057 NEW)  # IN_LIST: scripts of cpack begin without policies
find_program(SHLIBDEPS dpkg-shlibdeps)
if(NOT SHLIBDEPS)
  message(FATAL_ERROR "Debian packages need dpkg-shlibdeps (apt-get install dpkg-dev file)")
endif()
file(GLOB_RECURSE PLUGIN ${CPACK_TEMPORARY_DIRECTORY}/*/libpipetrain_cuda.so)
if("cuda" IN_LIST CPACK_COMPONENTS_ALL AND NOT PLUGIN)
  message(FATAL_ERROR "the GPU plugin is not built: cmake --build . --target pipetrain_cuda")
endif()
# Debian requires compressed manual pages.
file(GLOB_RECURSE PAGES ${CPACK_TEMPORARY_DIRECTORY}/*/pipetrain.1)
foreach(PAGE ${PAGES})
  execute_process(COMMAND gzip -9nf ${PAGE} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
