# Installs BUILD below PREFIX, and makes the wheel of SOURCE with PYTHON against it, into WHEELS.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX}
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE config ${PREFIX}/ashlarConfig.cmake)
get_filename_component(config ${config} DIRECTORY)
execute_process(COMMAND ${PYTHON} -m pip wheel ${SOURCE} --quiet --disable-pip-version-check --no-input
    --no-index --no-build-isolation --no-deps --wheel-dir ${WHEELS}
    --config-settings=build-dir=${SCRATCH} --config-settings=cmake.define.ashlar_DIR=${config}
  COMMAND_ERROR_IS_FATAL ANY)
file(WRITE ${WHEELS}/built.txt "")
