# Precompiled standard and GoogleTest headers for the sanitizer presets, which compile nearly everything twice
# more. Only clang and only where sources are compiled in units: g++ 12 gains little by them and forgets that
# the warnings of system headers are not ours; and a file compiled alone should name what it includes.
#
# ashlar_precompiled(<target> [TEST] [PLAIN]): the target's sources get the headers. TEST: an executable with
# GoogleTest's too. PLAIN: under a sanitizer it is not optimised, which halves the time to compile it: for
# code that waits rather than computes. Targets of one kind share one precompiled file.
set(ASHLAR_PRECOMPILED <algorithm> <array> <atomic> <bit> <chrono> <condition_variable> <functional> <map>
  <memory> <mutex> <optional> <random> <set> <span> <sstream> <string> <thread> <unordered_map> <vector>)

function(ashlar_precompiled target)
  cmake_parse_arguments(P "TEST;PLAIN" "" "" ${ARGN})
  set(own_options "")
  if(P_PLAIN AND ASHLAR_SANITIZE)
    set(own_options -O0)
    target_compile_options(${target} PRIVATE -O0)
  endif()
  if(NOT (ASHLAR_SANITIZE AND ASHLAR_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang"))
    return()
  endif()
  set(kind "")
  if(P_TEST)
    set(kind _test)
  endif()
  string(MAKE_C_IDENTIFIER "ashlar_precompiled${kind}${own_options}" holder)
  if(NOT TARGET ${holder})
    set(empty ${PROJECT_BINARY_DIR}/${holder}.cc)
    file(CONFIGURE OUTPUT ${empty} CONTENT "")
    add_library(${holder} OBJECT EXCLUDE_FROM_ALL ${empty})
    target_compile_features(${holder} PRIVATE cxx_std_20)
    target_compile_options(${holder} PRIVATE ${own_options} -Xclang -fno-pch-timestamp)
    if(P_TEST)
      set_target_properties(${holder} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${holder} PRIVATE -fPIE)
      target_link_libraries(${holder} PRIVATE GTest::gmock)
      target_precompile_headers(${holder} PRIVATE ${ASHLAR_PRECOMPILED} <gmock/gmock.h> <gtest/gtest.h>)
    else()
      target_precompile_headers(${holder} PRIVATE ${ASHLAR_PRECOMPILED})
    endif()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${holder})
endfunction()
