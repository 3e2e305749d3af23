# Enables C for the tests in C, where there is a compiler for it: CMAKE_C_COMPILER is set then. Included by
# the top folder, so that every test sees the same.
if(NOT CMAKE_C_COMPILER)
  # The C compiler that comes with the one for C++.
  string(REGEX REPLACE "g\\+\\+([-0-9.]*)$" "gcc\\1" ashlar_cc "${CMAKE_CXX_COMPILER}")
  string(REGEX REPLACE "clang\\+\\+([-0-9.]*)$" "clang\\1" ashlar_cc "${ashlar_cc}")
  if(NOT ashlar_cc STREQUAL CMAKE_CXX_COMPILER AND EXISTS "${ashlar_cc}")
    set(CMAKE_C_COMPILER "${ashlar_cc}")
  endif()
endif()
include(CheckLanguage)
check_language(C)
if(CMAKE_C_COMPILER)
  enable_language(C)
else()
  message(NOTICE "Ashlar: no C compiler: the tests in C, and of the installed C package, are left out")
endif()
