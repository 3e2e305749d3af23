# Configures the project as on a machine without Boost: everything but the HTTP leaf is there, and the program
# says what it lacks. Nothing is compiled.
#
#   cmake -DSOURCE=… -DSCRATCH=… -DGENERATOR=… -DCOMPILER=… -DC_COMPILER=… -P run_without_boost.cmake
file(REMOVE_RECURSE ${SCRATCH})
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${SCRATCH} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER}
    -DCMAKE_C_COMPILER=${C_COMPILER} -DCMAKE_DISABLE_FIND_PACKAGE_Boost=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
    -DASHLAR_BUILD_TESTS=OFF -DASHLAR_BUILD_BENCH=OFF -DASHLAR_UNITY=OFF
  OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "the project cannot be configured without Boost:\n${said}")
endif()
file(READ ${SCRATCH}/compile_commands.json commands)
foreach(source src/service/route/router.cc src/block/ apps/ashlar/no_serve_command.cc)
  string(FIND "${commands}" "${source}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${source} is not built without Boost")
  endif()
endforeach()
string(FIND "${commands}" "src/backend/http/" at)
if(NOT at EQUAL -1)
  message(FATAL_ERROR "the HTTP leaf is built without Boost")
endif()
file(REMOVE_RECURSE ${SCRATCH})
