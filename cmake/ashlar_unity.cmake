# Compiles several source files as one unit. A unit parses the headers once, so a clean build takes a fraction
# of the time.
#
# ashlar_sources(<target> x.cc y.cc …): the target is made of these sources. With ASHLAR_UNITY on they are
# compiled in units of up to ASHLAR_UNITY_BYTES each. Sources with compile options of their own or the
# property ASHLAR_ALONE stay alone, and so does what is not *.cc.
# Sources of one target therefore share their anonymous namespaces: a name that two of them define does not
# compile.
#
# CMake's own UNITY_BUILD names the sources by absolute paths, which keeps clones from sharing a compiler
# cache.
option(ASHLAR_UNITY "Compile several source files as one unit" ON)
# Larger units parse less in all, but there are fewer to share among cores, and each takes some 2.5 GB. With
# precompiled headers (the sanitizer presets) there is little left to parse.
cmake_host_system_information(RESULT ashlar_cores QUERY NUMBER_OF_LOGICAL_CORES)
cmake_host_system_information(RESULT ashlar_memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR ashlar_memory_wanted_mib "3000 * ${ashlar_cores}")
set(ashlar_unity_bytes 150000)
if(NOT ASHLAR_SANITIZE AND ashlar_cores LESS_EQUAL 4 AND
    ashlar_memory_mib GREATER ashlar_memory_wanted_mib)
  set(ashlar_unity_bytes 300000)
endif()
set(ASHLAR_UNITY_BYTES ${ashlar_unity_bytes} CACHE STRING "Source bytes per unit")

function(ashlar_sources target)
  if(NOT ASHLAR_UNITY)
    target_sources(${target} PRIVATE ${ARGN})
    return()
  endif()
  set(units "")
  set(text "")
  set(bytes 0)
  set(count 0)
  macro(close_unit)
    if(text)
      set(unit ${CMAKE_CURRENT_BINARY_DIR}/unity/${target}_${count}.cc)
      file(CONFIGURE OUTPUT ${unit} CONTENT "${text}" @ONLY)
      list(APPEND units ${unit})
      math(EXPR count "${count} + 1")
      set(text "")
      set(bytes 0)
    endif()
  endmacro()
  foreach(source IN LISTS ARGN)
    get_filename_component(path ${source} ABSOLUTE)
    get_source_file_property(options ${path} COMPILE_OPTIONS)
    get_source_file_property(alone ${path} ASHLAR_ALONE)
    if(options OR alone OR NOT path MATCHES "\\.cc$")
      set_source_files_properties(${path} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
      list(APPEND units ${path})
      continue()
    endif()
    file(SIZE ${path} size)
    math(EXPR sum "${bytes} + ${size}")
    if(sum GREATER ASHLAR_UNITY_BYTES)
      close_unit()
    endif()
    math(EXPR bytes "${bytes} + ${size}")
    file(RELATIVE_PATH inside ${PROJECT_SOURCE_DIR} ${path})
    string(APPEND text "#include \"${inside}\"\n")
  endforeach()
  close_unit()
  target_sources(${target} PRIVATE ${units})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  # g++ takes what is included for a header, and warns of types of an anonymous namespace in it.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endfunction()
