# Judges one file of tests/compile_fail/; see ashlar_compile_fail.cmake.
# Reads FILE, COMPILER, INCLUDES (folders, joined by '|') and PRECOMPILED, a folder whose headers stand for
# those of the same names. With HEADER it precompiles that one into the folder instead; g++ finds it there by
# itself.
cmake_minimum_required(VERSION 3.25)
set(ENV{LC_ALL} C)

# FATAL_ERROR alone would break the text into paragraphs.
function(refuse text)
  message("${text}")
  message(FATAL_ERROR "compile-fail test")
endfunction()

string(REPLACE "|" ";" includes "${INCLUDES}")
list(TRANSFORM includes PREPEND "-I")
set(compile ${COMPILER} -std=c++20 -Wall -Wextra -Werror)

if(HEADER)
  list(GET includes 0 folder)
  string(SUBSTRING ${folder} 2 -1 folder)
  get_filename_component(place ${PRECOMPILED}/${HEADER} DIRECTORY)
  file(MAKE_DIRECTORY ${place})
  execute_process(COMMAND ${compile} -w ${includes} -x c++-header ${folder}/${HEADER} -o
    ${PRECOMPILED}/${HEADER}.gch
    RESULT_VARIABLE status ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    refuse("${HEADER}: cannot be precompiled:\n${output}")
  endif()
  return()
endif()

file(STRINGS ${FILE} lines REGEX "^// expect: ")
list(LENGTH lines count)
if(NOT count EQUAL 1)
  refuse("${FILE}: wants exactly one line '// expect: <regex>', has ${count}")
endif()
string(REGEX REPLACE "^// expect: " "" expected "${lines}")

set(compile ${compile} -fsyntax-only -I${PRECOMPILED} ${includes})
execute_process(COMMAND ${compile} ${FILE} RESULT_VARIABLE status ERROR_VARIABLE output)
if(NOT status EQUAL 0)
  refuse("${FILE}: the good variant must compile, but:\n${output}")
endif()

execute_process(COMMAND ${compile} -DASHLAR_SHOULD_FAIL ${FILE} RESULT_VARIABLE status ERROR_VARIABLE output)
if(status EQUAL 0)
  refuse("${FILE}: the bad variant compiles")
endif()
if(NOT output MATCHES "${expected}")
  refuse("${FILE}: the bad variant fails, but not with '${expected}':\n${output}")
endif()
