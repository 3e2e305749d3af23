# What Ashlar is built on. Required: threads, xxhash.h, spdlog. Everything else is an optional component that
# is found when present and listed at the end of the configure step.

find_package(Threads REQUIRED)

if(CMAKE_CROSSCOMPILING)
  # The host's include folder holds the host's C library too; only the prepared folder will do.
  find_path(ASHLAR_XXHASH_INCLUDE xxhash.h PATHS ${ASHLAR_XXHASH_DIR}
    ${PROJECT_SOURCE_DIR}/build/cross-include
    NO_DEFAULT_PATH NO_CACHE)
else()
  find_path(ASHLAR_XXHASH_INCLUDE xxhash.h HINTS ${ASHLAR_XXHASH_DIR} NO_CACHE)
endif()
if(NOT ASHLAR_XXHASH_INCLUDE)
  message(FATAL_ERROR "xxhash.h was not found. Install libxxhash-dev (scripts/bootstrap does), "
    "or point ASHLAR_XXHASH_DIR at a folder that holds it.")
endif()

if(CMAKE_CROSSCOMPILING)
  # Header-only forms of the libraries, from the folder that scripts/bootstrap aarch64 prepares.
  add_library(ashlar_spdlog INTERFACE)
  target_include_directories(ashlar_spdlog SYSTEM INTERFACE ${PROJECT_SOURCE_DIR}/build/cross-include)
  target_compile_definitions(ashlar_spdlog INTERFACE SPDLOG_HEADER_ONLY SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
else()
  find_package(spdlog REQUIRED)
  add_library(ashlar_spdlog INTERFACE)
  target_link_libraries(ashlar_spdlog INTERFACE spdlog::spdlog)
endif()

if(ASHLAR_BUILD_TESTS)
  if(CMAKE_CROSSCOMPILING)
    add_subdirectory(/usr/src/googletest ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
    if(NOT TARGET GTest::gmock_main)
      add_library(GTest::gmock_main ALIAS gmock_main)
    endif()
    include(GoogleTest)
  else()
    find_package(GTest REQUIRED)
    include(GoogleTest)
  endif()
endif()
if(ASHLAR_BUILD_BENCH)
  find_package(benchmark REQUIRED)
endif()

# Optional components: name, the package or program that brings it, and whether it is here. A component is a
# leaf under src/backend/; one without a leaf yet is only reported.
set(ASHLAR_COMPONENTS "" CACHE INTERNAL "")
function(ashlar_component name found detail)
  set_property(GLOBAL APPEND PROPERTY ASHLAR_COMPONENT_LINES "${name}\;${found}\;${detail}")
endfunction()

find_package(PkgConfig QUIET)
function(ashlar_probe_pkg name module package)
  if(PkgConfig_FOUND AND NOT CMAKE_CROSSCOMPILING)
    pkg_check_modules(ASHLAR_${name} QUIET ${module})
  endif()
  if(ASHLAR_${name}_FOUND)
    string(REGEX REPLACE "[<>=].*" "" library ${module})
    ashlar_component(${name} yes "${library} ${ASHLAR_${name}_VERSION}")
  else()
    ashlar_component(${name} no "Debian package ${package}")
  endif()
endfunction()

include(ashlar_cuda)
ashlar_probe_pkg(uring liburing liburing-dev)
ashlar_probe_pkg(ucx ucx libucx-dev)
ashlar_probe_pkg(nats libnats libnats-dev)
ashlar_probe_pkg(zmq libzmq libzmq3-dev)
ashlar_probe_pkg(s3 libcurl>=7.88 libcurl4-openssl-dev) # the oldest whose signatures are tested
ashlar_probe_pkg(redis hiredis libhiredis-dev)
# Asio is headers; 1.81 is the version that the leaf is tested with.
set(ASHLAR_http_FOUND FALSE)
if(NOT CMAKE_CROSSCOMPILING)
  find_package(Boost 1.81 QUIET)
  find_package(OpenSSL QUIET)
  if(Boost_FOUND AND OPENSSL_FOUND)
    set(ASHLAR_http_FOUND TRUE)
  endif()
endif()
if(ASHLAR_http_FOUND)
  ashlar_component(http yes "boost ${Boost_VERSION}, openssl ${OPENSSL_VERSION}")
else()
  ashlar_component(http no "Debian packages libboost1.81-dev and libssl-dev")
endif()

function(ashlar_print_summary)
  message(NOTICE "")
  set(compiler "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  message(NOTICE
    "Ashlar ${PROJECT_VERSION} (${CMAKE_BUILD_TYPE}, ${compiler}, ${CMAKE_SYSTEM_PROCESSOR})")
  message(NOTICE
    "  tests ${ASHLAR_BUILD_TESTS}, benchmarks ${ASHLAR_BUILD_BENCH}, programs ${ASHLAR_BUILD_APPS}, "
    "sanitizers '${ASHLAR_SANITIZE}'")
  message(NOTICE "  optional components (the core needs none of them):")
  get_property(lines GLOBAL PROPERTY ASHLAR_COMPONENT_LINES)
  foreach(line IN LISTS lines)
    list(GET line 0 name)
    list(GET line 1 found)
    list(GET line 2 detail)
    string(LENGTH "${name}" width)
    math(EXPR pad "8 - ${width}")
    string(REPEAT " " ${pad} space)
    if(found STREQUAL "off")
      message(NOTICE "    ${name}${space}off      ${detail}")
    elseif(found)
      message(NOTICE "    ${name}${space}found    ${detail}")
    else()
      message(NOTICE "    ${name}${space}missing  needs ${detail}")
    endif()
  endforeach()
  message(NOTICE "")
endfunction()
