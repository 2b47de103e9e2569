# Run by cpack before packaging: Debian requires compressed manual pages.
file(GLOB_RECURSE PAGES ${CPACK_TEMPORARY_DIRECTORY}/*/pipetrain.1)
foreach(PAGE ${PAGES})
  execute_process(COMMAND gzip -9nf ${PAGE} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
