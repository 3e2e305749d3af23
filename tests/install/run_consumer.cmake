# Installs BUILD below SCRATCH, then configures, builds and runs the programs of CONSUMER against that copy.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${SCRATCH})
set(prefix ${SCRATCH}/prefix)

execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix}
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${CONSUMER} -B ${SCRATCH}/build -G ${GENERATOR}
  -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=${CONFIG} -DCMAKE_CXX_FLAGS=${FLAGS}
  -DCMAKE_PREFIX_PATH=${prefix}
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${SCRATCH}/build COMMAND_ERROR_IS_FATAL ANY)
foreach(program IN ITEMS use_base use_blocks use_memory use_routing use_testing)
  execute_process(COMMAND ${SCRATCH}/build/${program} COMMAND_ERROR_IS_FATAL ANY)
endforeach()

# A component that does not exist must be refused by name.
execute_process(COMMAND ${CMAKE_COMMAND} -S ${CONSUMER} -B ${SCRATCH}/refused -G ${GENERATOR}
  -DEXTRA_COMPONENT=no_such_part
  -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${prefix} RESULT_VARIABLE status OUTPUT_QUIET
  ERROR_VARIABLE output)
if(status EQUAL 0 OR NOT output MATCHES "no_such_part")
  message(FATAL_ERROR
    "find_package(ashlar COMPONENTS no_such_part) must fail with that name, but said:\n${output}")
endif()
