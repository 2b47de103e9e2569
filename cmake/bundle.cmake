# Self-contained packages: `cmake --build build --target bundle` makes pipetrain-VERSION-linux-x86_64.tar.xz, which needs no installed libraries,
# and `--target wheel` the same as a Python wheel. Both contain what `cmake --install` installs (package.cmake), and Debian's libraries.
option(PIPETRAIN_GPU_CHECK "The bundle contains the GPU check" ON)

# Programs find their libraries there first. DT_RPATH, not DT_RUNPATH: the libraries inherit it, and it precedes LD_LIBRARY_PATH.
function(add_bundle_rpath)
  foreach(TARGET ${ARGN})
    set_target_properties(${TARGET} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/pipetrain" BUILD_WITH_INSTALL_RPATH ON)
    target_link_options(${TARGET} PRIVATE LINKER:--disable-new-dtags)
  endforeach()
endfunction()
add_bundle_rpath(pipetrain)

# Programs and files of scripts/gpu-check, in this package only.
set(COMPONENTS program)
if(PIPETRAIN_TESTS)
  set(GPU_CHECK_PROGRAMS ops_tests optim_tests nccl_processes)
  set(GPU_CHECK_FOLDERS bench scripts/gpu_check)  # models and schedules are the program's
  add_bundle_rpath(${GPU_CHECK_PROGRAMS})
  install(TARGETS ${GPU_CHECK_PROGRAMS} RUNTIME COMPONENT gpu_check EXCLUDE_FROM_ALL)
  file(GLOB GPU_CHECK_SCRIPTS CONFIGURE_DEPENDS scripts/gpu-check*)
  install(PROGRAMS ${GPU_CHECK_SCRIPTS} DESTINATION ${CMAKE_INSTALL_DATADIR}/pipetrain/scripts COMPONENT gpu_check EXCLUDE_FROM_ALL)
  foreach(FOLDER ${GPU_CHECK_FOLDERS})
    get_filename_component(PARENT ${FOLDER} DIRECTORY)
    install(DIRECTORY ${FOLDER} DESTINATION ${CMAKE_INSTALL_DATADIR}/pipetrain/${PARENT} COMPONENT gpu_check EXCLUDE_FROM_ALL
      USE_SOURCE_PERMISSIONS OPTIONAL PATTERN "*.cpp" EXCLUDE PATTERN "*.h" EXCLUDE PATTERN "__pycache__" EXCLUDE)
  endforeach()
endif()

# Without these two, convolutions run on the host and GPUs exchange by copies: such a plugin is not packaged.
if(TARGET pipetrain_cuda AND NOT (CUDNN_FRONTEND_INCLUDE AND PIPETRAIN_NCCL_INCLUDE))
  foreach(NAME bundle wheel)
    add_custom_target(${NAME} COMMAND ${CMAKE_COMMAND} -E echo "${NAME}: the GPU plugin of this build has no cuDNN graphs or no NCCL; \
configure with -DPIPETRAIN_CUDNN_FRONTEND=FOLDER (of cudnn_frontend.h) and -DPIPETRAIN_NCCL_INCLUDE=FOLDER (of nccl.h)"
      COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
  endforeach()
  return()
endif()

set(BUNDLE ${CMAKE_BINARY_DIR}/pipetrain-${PROJECT_VERSION}-linux-x86_64)
set(BUNDLE_ARGUMENTS --version ${PROJECT_VERSION} --package nlohmann-json3-dev)
if(TARGET pipetrain_cuda)
  list(APPEND COMPONENTS cuda)
  file(GLOB FRONTEND_LICENCES ${CUDNN_FRONTEND_INCLUDE}/../*.dist-info/licenses)
  foreach(FOLDER ${FRONTEND_LICENCES})
    list(APPEND BUNDLE_ARGUMENTS --licence nvidia-cudnn-frontend=${FOLDER})
  endforeach()
endif()
if(TARGET pipetrain_mpi)
  list(APPEND COMPONENTS mpi)
endif()

# Installs components into a separate folder, stripped, and packs it.
function(add_bundle NAME TREE COMPONENTS)
  set(INSTALL COMMAND ${CMAKE_COMMAND} -E rm -rf ${TREE})
  foreach(COMPONENT ${COMPONENTS})
    list(APPEND INSTALL COMMAND ${CMAKE_COMMAND} --install ${CMAKE_BINARY_DIR} --prefix ${TREE} --component ${COMPONENT} --strip > ${CMAKE_BINARY_DIR}/${NAME}.log)
  endforeach()
  add_custom_target(${NAME} ${INSTALL} COMMAND python3 ${CMAKE_SOURCE_DIR}/cmake/bundle.py ${TREE} ${BUNDLE_ARGUMENTS} ${ARGN} VERBATIM)
  add_dependencies(${NAME} pipetrain documents)
  foreach(PLUGIN pipetrain_cuda pipetrain_mpi)
    if(TARGET ${PLUGIN})
      add_dependencies(${NAME} ${PLUGIN})
    endif()
  endforeach()
endfunction()
add_bundle(wheel ${CMAKE_BINARY_DIR}/wheel "${COMPONENTS}" --wheel ${CMAKE_BINARY_DIR})
if(PIPETRAIN_GPU_CHECK AND PIPETRAIN_TESTS)
  add_bundle(bundle ${BUNDLE} "${COMPONENTS};gpu_check" --package googletest --tar ${BUNDLE}.tar.xz)
  add_dependencies(bundle ${GPU_CHECK_PROGRAMS})
else()
  add_bundle(bundle ${BUNDLE} "${COMPONENTS}" --tar ${BUNDLE}.tar.xz)
endif()
