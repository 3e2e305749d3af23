# Chooses the compiler that builds what ships when nobody named one: g++ 12 first, else whatever g++ there is.
# Debian's g++-12 package alone brings no command that CMake looks for by itself. Included before project().
if(NOT DEFINED CMAKE_CXX_COMPILER AND NOT DEFINED CMAKE_TOOLCHAIN_FILE AND "$ENV{CXX}" STREQUAL "")
  find_program(ASHLAR_CXX NAMES g++-12 g++ c++)
  if(ASHLAR_CXX)
    set(CMAKE_CXX_COMPILER ${ASHLAR_CXX})
  endif()
  mark_as_advanced(ASHLAR_CXX)
endif()
