# Installs BUILD below SCRATCH, then configures, builds and runs the programs of CONSUMER against that copy.
# LEAVES, joined by commas, are the backends of BUILD; PROGRAM is 1 if it has the program `ashlar`.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${SCRATCH})
set(prefix ${SCRATCH}/prefix)
set(for_c "")
set(programs use_base use_blocks use_memory use_routing use_testing)
if(C_COMPILER)
  set(for_c -DCMAKE_C_COMPILER=${C_COMPILER} -DCMAKE_C_FLAGS=${FLAGS})
  list(APPEND programs use_c)
else()
  message(NOTICE "no C compiler: the installed C package is not tested")
endif()

execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix}
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${CONSUMER} -B ${SCRATCH}/build -G ${GENERATOR}
  -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=${CONFIG} -DCMAKE_CXX_FLAGS=${FLAGS}
  -DCMAKE_PREFIX_PATH=${prefix} ${for_c}
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${SCRATCH}/build COMMAND_ERROR_IS_FATAL ANY)
foreach(program IN LISTS programs)
  execute_process(COMMAND ${SCRATCH}/build/${program} COMMAND_ERROR_IS_FATAL ANY)
endforeach()

# The C interface by pkg-config.
find_program(PKG_CONFIG pkg-config)
if(C_COMPILER AND PKG_CONFIG)
  file(GLOB_RECURSE pc ${prefix}/*/ashlar_c.pc)
  cmake_path(GET pc PARENT_PATH pc)
  cmake_path(GET pc PARENT_PATH libraries)
  set(ENV{PKG_CONFIG_PATH} ${pc})
  execute_process(COMMAND ${PKG_CONFIG} --cflags --libs ashlar_c OUTPUT_VARIABLE found
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(found UNIX_COMMAND "${found}")
  execute_process(COMMAND ${C_COMPILER} -std=c99 ${FLAGS} ${CONSUMER}/use_c.c ${found} -Wl,-rpath,${libraries}
    -o ${SCRATCH}/use_c_by_pkg_config COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${SCRATCH}/use_c_by_pkg_config COMMAND_ERROR_IS_FATAL ANY)
else()
  message(NOTICE "no C compiler or no pkg-config: ashlar_c.pc is not tested")
endif()

# The program runs from where it was installed.
if(PROGRAM)
  execute_process(COMMAND ${prefix}/bin/ashlar --help OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  if(NOT output MATCHES "relay" OR NOT output MATCHES "advisor")
    message(FATAL_ERROR "the installed ashlar --help must name its commands, but said:\n${output}")
  endif()
endif()

# Exactly the headers of the backends that were built.
file(GLOB folders RELATIVE ${prefix}/include/ashlar/backend ${prefix}/include/ashlar/backend/*)
string(REPLACE "," ";" leaves "${LEAVES}")
list(SORT leaves)
if(NOT folders STREQUAL leaves)
  message(FATAL_ERROR "the build has the backends '${leaves}', and headers were installed for '${folders}'")
endif()

# A component that does not exist must be refused by name.
execute_process(COMMAND ${CMAKE_COMMAND} -S ${CONSUMER} -B ${SCRATCH}/refused -G ${GENERATOR}
  -DEXTRA_COMPONENT=no_such_part
  -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${prefix} RESULT_VARIABLE status OUTPUT_QUIET
  ERROR_VARIABLE output)
if(status EQUAL 0 OR NOT output MATCHES "no_such_part")
  message(FATAL_ERROR
    "find_package(ashlar COMPONENTS no_such_part) must fail with that name, but said:\n${output}")
endif()
