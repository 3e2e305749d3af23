# Tests that a mistake does not compile.
#
# ashlar_compile_fail_test(x.cc): a file with a good and a bad variant,
#
#   // expect: <regular expression in CMake's syntax, searched in the compiler's message>
#   #ifdef ASHLAR_SHOULD_FAIL
#   …the mistake…
#   #else
#   …the same done right…
#   #endif
#
# The good variant must compile, or the test proves nothing; the bad one must fail for the expected reason.
# The test calls the compiler itself, without code generation, so it costs one parse per variant. The header
# that most files include is precompiled first, for compilers that find it by themselves.
set(ASHLAR_COMPILE_FAIL_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/run_compile_fail.cmake)

# ashlar_compile_fail_command(<variable> x.cc): the command that judges one file.
function(ashlar_compile_fail_command variable file)
  get_filename_component(path "${file}" ABSOLUTE)
  set(${variable} ${CMAKE_COMMAND} -DFILE=${path} -DCOMPILER=${CMAKE_CXX_COMPILER}
    "-DINCLUDES=${PROJECT_SOURCE_DIR}/include|${PROJECT_SOURCE_DIR}/src"
    -DPRECOMPILED=${CMAKE_CURRENT_BINARY_DIR}/precompiled ${ARGN} -P ${ASHLAR_COMPILE_FAIL_SCRIPT}
    PARENT_SCOPE)
endfunction()

# ashlar_compile_fail_precompile(header): before the tests.
function(ashlar_compile_fail_precompile header)
  ashlar_compile_fail_command(command "" -DHEADER=${header})
  add_test(NAME compile_fail.precompile COMMAND ${command})
  set_tests_properties(compile_fail.precompile PROPERTIES LABELS compile_fail TIMEOUT 300
    FIXTURES_SETUP compile_fail.precompiled)
endfunction()

function(ashlar_compile_fail_test file)
  get_filename_component(name ${file} NAME_WE)
  ashlar_compile_fail_command(command ${file})
  add_test(NAME compile_fail.${name} COMMAND ${command})
  set_tests_properties(compile_fail.${name} PROPERTIES LABELS compile_fail TIMEOUT 300
    FIXTURES_REQUIRED compile_fail.precompiled)
endfunction()
