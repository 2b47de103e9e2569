# What `cmake --install` puts where, and `cpack` in the build folder: pipetrain_*.deb and, where the plugin was built,
# pipetrain-cuda_*.deb. The program finds its topologies in ../share/pipetrain and its plugin in ../lib/pipetrain.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME program)
install(TARGETS pipetrain)
install(FILES ${DOCUMENTS}/pipetrain.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${DOCUMENTS}/pipetrain.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME pipetrain)
install(FILES ${DOCUMENTS}/_pipetrain DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
install(FILES ${DOCUMENTS}/pipetrain.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)
install(DIRECTORY topologies schedules models DESTINATION ${CMAKE_INSTALL_DATADIR}/pipetrain)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DATADIR}/pipetrain USE_SOURCE_PERMISSIONS)
# What Debian wants to know of each package: whose it is, and what has changed.
find_program(GZIP gzip REQUIRED)
file(MAKE_DIRECTORY ${DOCUMENTS})
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS cmake/changelog)
execute_process(COMMAND ${GZIP} -9nc ${CMAKE_SOURCE_DIR}/cmake/changelog OUTPUT_FILE ${DOCUMENTS}/changelog.gz
  COMMAND_ERROR_IS_FATAL ANY)
function(install_papers PACKAGE COMPONENT)
  install(FILES ${CMAKE_SOURCE_DIR}/cmake/copyright ${DOCUMENTS}/changelog.gz
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${PACKAGE} COMPONENT ${COMPONENT})
endfunction()
install_papers(pipetrain program)
if(TARGET pipetrain_cuda)
  install_papers(pipetrain-cuda cuda)
  # The linker finds NVIDIA's libraries where their packages put them.
  install(TARGETS pipetrain_cuda LIBRARY DESTINATION lib/pipetrain COMPONENT cuda)
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "the pipetrain authors <pipetrain@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "train ONNX networks through pipeline stages")
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)
set(CPACK_COMPONENTS_ALL program)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME pipetrain)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION "Trains a neural network in an ONNX file, cut automatically into pipeline
 stages, and writes the trained weights back into the same file.")
if(TARGET pipetrain_cuda)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
  string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" CUDA_RELEASE "${CMAKE_CUDA_COMPILER_VERSION}")
  string(REPLACE "." "-" CUDA_RELEASE "${CUDA_RELEASE}")
  string(REGEX MATCH "^[0-9]+" CUDA_MAJOR "${CUDA_RELEASE}")
  set(CPACK_DEBIAN_CUDA_PACKAGE_NAME pipetrain-cuda)
  set(CPACK_DEBIAN_CUDA_PACKAGE_SHLIBDEPS OFF)
  set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "pipetrain (= ${PROJECT_VERSION})")
  # From NVIDIA's repository; a toolkit that was installed in another way will do.
  set(CPACK_DEBIAN_CUDA_PACKAGE_RECOMMENDS
    "cuda-cudart-${CUDA_RELEASE}, cuda-nvrtc-${CUDA_RELEASE}, libcublas-${CUDA_RELEASE}, libcudnn9-cuda-${CUDA_MAJOR}, libnccl2")
  set(CPACK_DEBIAN_CUDA_DESCRIPTION "The part of pipetrain that trains on NVIDIA GPUs.")
endif()
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/cmake/compress_manual.cmake)
include(CPack)
