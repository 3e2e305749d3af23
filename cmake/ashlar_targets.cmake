# How Ashlar's targets are made: one function per kind of target, flags in one place.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

if(PROJECT_IS_TOP_LEVEL)
  find_program(ASHLAR_CCACHE ccache)
  set(ashlar_cache env)
  if(ASHLAR_CCACHE AND NOT ASHLAR_TIDY)
    # Paths below the source folder are hashed relative to it, so that every clone on a machine shares one
    # cache.
    set(ashlar_cache ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${ASHLAR_CCACHE})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${ashlar_cache})
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${ashlar_cache})
  endif()
  # clang takes half the time of g++ for what is not optimised, and both link together.
  if(ASHLAR_TESTS_BY_CLANG AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    find_program(ASHLAR_CLANG clang++-19)
    list(POP_BACK ashlar_cache ccache)
    set(ashlar_by_clang ${ashlar_cache} ${PROJECT_SOURCE_DIR}/cmake/compile_with_clang ${ccache}
      ${ASHLAR_CLANG})
  endif()
  find_program(ASHLAR_MOLD mold)
  if(ASHLAR_MOLD AND NOT CMAKE_CROSSCOMPILING)
    add_link_options(-fuse-ld=mold)
  endif()
  if(ASHLAR_SANITIZE)
    add_compile_options(-fsanitize=${ASHLAR_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${ASHLAR_SANITIZE})
    # AddressSanitizer finds these too, and they take a third of the time to compile.
    if(ASHLAR_SANITIZE MATCHES "address.*undefined")
      add_compile_options(-fno-sanitize=null,object-size,vptr)
    endif()
  endif()
  if(ASHLAR_TIDY)
    set(CMAKE_CXX_CLANG_TIDY clang-tidy-19)
  endif()
endif()

# ashlar_not_shipped(<target> [TEST]): it shows something or tests it, and is not optimised. With
# ASHLAR_TESTS_BY_CLANG clang compiles it, with the standard headers precompiled; TEST: GoogleTest's too.
function(ashlar_not_shipped target)
  cmake_parse_arguments(N "TEST" "" "" ${ARGN})
  target_compile_options(${target} PRIVATE -O0)
  if(NOT (ASHLAR_TESTS_BY_CLANG AND ASHLAR_CLANG))
    return()
  endif()
  set(headers ${ASHLAR_PRECOMPILED})
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_RELEASE} -O0 -fPIE -std=c++20")
  set(kind plain)
  if(N_TEST)
    list(APPEND headers <gmock/gmock.h> <gtest/gtest.h>)
    list(APPEND flags -DGTEST_HAS_PTHREAD=1)  # as GTest::gmock_main has it
    set(kind test)
  endif()
  set(precompiled ${PROJECT_BINARY_DIR}/clang_${kind}.pch)
  if(NOT TARGET ashlar_clang_${kind})
    list(TRANSFORM headers PREPEND "#include ")
    list(JOIN headers "\n" text)
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/clang_${kind}.h CONTENT "${text}\n")
    add_custom_command(OUTPUT ${precompiled} DEPENDS ${PROJECT_BINARY_DIR}/clang_${kind}.h
      COMMAND ${ASHLAR_CLANG} ${flags} -x c++-header -Xclang -fno-pch-timestamp -o ${precompiled}
        ${PROJECT_BINARY_DIR}/clang_${kind}.h
      COMMENT "Precompiling headers for clang: ${kind}" VERBATIM)
    add_custom_target(ashlar_clang_${kind} DEPENDS ${precompiled})
  endif()
  add_dependencies(${target} ashlar_clang_${kind})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON
    CXX_COMPILER_LAUNCHER "${ashlar_by_clang};${precompiled}")
endfunction()

# Warnings for our own code only; a consumer's flags are its own business.
add_library(ashlar_warnings INTERFACE)
target_compile_options(ashlar_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
  -Wno-sign-conversion
  -Wnon-virtual-dtor -Woverloaded-virtual $<$<BOOL:${PROJECT_IS_TOP_LEVEL}>:-Werror>
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety;-Wthread-safety-beta>
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)  # g++ 12 sees overlaps in std::string that are not there

# In a unit, a constant of a test may be called as one of another file. Linked behind the warnings.
add_library(ashlar_test_warnings INTERFACE)
target_compile_options(ashlar_test_warnings INTERFACE $<$<BOOL:${ASHLAR_UNITY}>:-Wno-shadow>)

# ashlar_<label>_tests builds all tests of a label, so that a sanitizer preset builds no more than it runs.
foreach(label unit concurrency hostile long stage_tsan stage_asan)
  add_custom_target(ashlar_${label}_tests)
endforeach()
add_custom_target(ashlar_benchmarks)
# A process takes longer to start than most cases to run.
set(ASHLAR_SHARDS 4 CACHE STRING "ctests that share the cases of a test program; 0: one ctest per case")

option(ASHLAR_ALL_TESTS "Build also the tests that make test runs under a sanitizer alone" ON)
set(ashlar_gpu_tests ${ASHLAR_ALL_TESTS})
if(EXISTS /dev/nvidiactl)
  set(ashlar_gpu_tests ON)
endif()
option(ASHLAR_GPU_TESTS "Build the tests that need a GPU" ${ashlar_gpu_tests})

# ashlar_stage_labels(<variable> <labels> [<stages>]): adds the labels that say in which stages of `make test`
# (release, tsan, asan) a test runs; sanitized: not in release. Without stages, unit tests run in asan, others
# in release, and tests of threads in tsan as well.
function(ashlar_stage_labels variable labels)
  set(stages ${ARGN})
  if(NOT stages)
    if("unit" IN_LIST labels)
      list(APPEND stages asan)
    else()
      list(APPEND stages release)
    endif()
    if("concurrency" IN_LIST labels)
      list(APPEND stages tsan)
    endif()
  endif()
  foreach(stage IN LISTS stages)
    if(NOT stage MATCHES "^(release|tsan|asan)$")
      message(FATAL_ERROR "'${stage}' is no stage of make test; release, tsan and asan are")
    endif()
    list(APPEND labels stage_${stage})
  endforeach()
  if(NOT "release" IN_LIST stages)
    list(APPEND labels sanitized)
  endif()
  set(${variable} ${labels} PARENT_SCOPE)
endfunction()

# ashlar_test(NAME x [WHOLE] [OPTIMIZED] [BELOW_TIERS] SOURCES … LABELS unit|concurrency|… [STAGES
# release|tsan|asan …] [LIBRARIES …]): one GoogleTest executable; its ctests are x.1, x.2 … WHOLE: its cases
# share something that is dear to start, so the program is one ctest. OPTIMIZED: its own code, not the
# library, is what takes the time. BELOW_TIERS: it needs no tiers, so a stage without tests of tiers need not
# compile them. STAGES: where `make test` runs it, if not where its labels say; see
# docs/decisions/0031-stages-by-layer.md.
function(ashlar_test)
  cmake_parse_arguments(T "WHOLE;OPTIMIZED;BELOW_TIERS" "NAME" "SOURCES;LABELS;STAGES;LIBRARIES" ${ARGN})
  add_executable(${T_NAME})
  ashlar_stage_labels(T_LABELS "${T_LABELS}" ${T_STAGES})
  if(NOT ASHLAR_ALL_TESTS AND sanitized IN_LIST T_LABELS)
    set_target_properties(${T_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  ashlar_sources(${T_NAME} ${T_SOURCES})
  if(T_BELOW_TIERS)
    set(library ashlar_below_tiers ashlar_testing_below_tiers)
  else()
    set(library ashlar::ashlar ashlar::testing)
  endif()
  target_link_libraries(${T_NAME} PRIVATE ${library} ashlar_warnings ashlar_test_warnings GTest::gmock_main
    ${T_LIBRARIES})
  target_include_directories(${T_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests
    ${ASHLAR_XXHASH_INCLUDE})
  # The library is what ships; cases run once. Not optimised they compile in a third of the time, and a little
  # optimised, for those that search, in a half.
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    if(T_OPTIMIZED OR "model" IN_LIST T_LABELS)
      target_compile_options(${T_NAME} PRIVATE $<IF:$<CXX_COMPILER_ID:GNU>,-Og,-O1>)
    else()
      ashlar_not_shipped(${T_NAME} TEST)
    endif()
  endif()
  # What is checked is the library; a fifth of the time to compile a test goes into checks of its own code.
  if(ASHLAR_SANITIZE MATCHES undefined)
    target_compile_options(${T_NAME} PRIVATE -fno-sanitize=undefined)
  endif()
  if(T_OPTIMIZED)
    ashlar_precompiled(${T_NAME} TEST)
  else()
    ashlar_precompiled(${T_NAME} TEST PLAIN)
  endif()
  foreach(label IN LISTS T_LABELS)
    if(TARGET ashlar_${label}_tests)
      add_dependencies(ashlar_${label}_tests ${T_NAME})
    endif()
  endforeach()
  if(T_WHOLE)
    add_test(NAME ${T_NAME} COMMAND ${T_NAME})
    set_tests_properties(${T_NAME} PROPERTIES LABELS "${T_LABELS}" TIMEOUT 1800)
    return()
  endif()
  if(ASHLAR_SHARDS GREATER 0)
    foreach(shard RANGE 1 ${ASHLAR_SHARDS})
      math(EXPR index "${shard} - 1")
      add_test(NAME ${T_NAME}.${shard} COMMAND ${T_NAME} --gtest_brief=1)
      set_tests_properties(${T_NAME}.${shard} PROPERTIES LABELS "${T_LABELS}" TIMEOUT 1800
        ENVIRONMENT "GTEST_TOTAL_SHARDS=${ASHLAR_SHARDS};GTEST_SHARD_INDEX=${index}")
    endforeach()
    return()
  endif()
  gtest_discover_tests(${T_NAME} DISCOVERY_TIMEOUT 120 TEST_LIST ${T_NAME}_CASES PROPERTIES TIMEOUT 600)
  # Labels are set by a file of our own: a list does not survive the way through gtest_discover_tests().
  set(labels_file ${CMAKE_CURRENT_BINARY_DIR}/${T_NAME}_labels.cmake)
  file(WRITE ${labels_file} "foreach(case IN LISTS ${T_NAME}_CASES)\n"
    "  set_tests_properties(\${case} PROPERTIES LABELS \"${T_LABELS}\")\nendforeach()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${labels_file})
endfunction()

# ashlar_benchmark(NAME x SOURCES …): one Google Benchmark executable.
function(ashlar_benchmark)
  cmake_parse_arguments(B "" "NAME" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${B_NAME} ${B_SOURCES})
  target_link_libraries(${B_NAME} PRIVATE ashlar::ashlar ashlar_warnings benchmark::benchmark ${B_LIBRARIES})
  target_include_directories(${B_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/bench)
  add_dependencies(ashlar_benchmarks ${B_NAME})
endfunction()
