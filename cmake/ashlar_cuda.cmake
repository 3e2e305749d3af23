# Looks for a CUDA compiler and turns the CUDA language on where there is one: ASHLAR_HAS_CUDA.
#
# First the compiler that was named or is in the path; then the one that scripts/bootstrap puts below
# build/cuda-venv, a toolkit made of Python packages. Sanitizer and cross builds go without: their compiler is
# not the one that nvcc drives.
set(ASHLAR_CUDA_ARCHITECTURES "90" CACHE STRING
  "GPUs to compile for, as CMAKE_CUDA_ARCHITECTURES; newer ones use the PTX")
set(ASHLAR_HAS_CUDA OFF)

function(ashlar_find_packaged_nvcc variable)
  file(GLOB found ${PROJECT_SOURCE_DIR}/build/cuda-venv/lib/python*/site-packages/nvidia/cu*/bin/nvcc)
  if(found)
    list(GET found 0 found)
  endif()
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()

if(CMAKE_CROSSCOMPILING OR ASHLAR_SANITIZE OR ASHLAR_TIDY)
  ashlar_component(cuda off "not in sanitizer, clang-tidy and cross builds")
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER)
  find_program(ASHLAR_NVCC NAMES $ENV{CUDACXX} nvcc HINTS /usr/local/cuda/bin NO_CACHE)
  if(ASHLAR_NVCC)
    set(CMAKE_CUDA_COMPILER ${ASHLAR_NVCC} CACHE FILEPATH "CUDA compiler" FORCE)
  else()
    ashlar_find_packaged_nvcc(packaged)
    if(packaged)
      get_filename_component(tree ${packaged} DIRECTORY)
      get_filename_component(tree ${tree} DIRECTORY)
      set(CMAKE_CUDA_COMPILER ${packaged} CACHE FILEPATH "CUDA compiler" FORCE)
      # The packages keep their libraries in lib/, where nvcc does not look by itself.
      set(CMAKE_CUDA_FLAGS_INIT "-L${tree}/lib")
    endif()
  endif()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  ashlar_component(cuda no "nvcc, from a CUDA 13 toolkit or from scripts/bootstrap test")
  return()
endif()
if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER} CACHE FILEPATH "Host compiler of nvcc")
  else()
    find_program(CMAKE_CUDA_HOST_COMPILER NAMES g++-12 g++)
  endif()
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES ${ASHLAR_CUDA_ARCHITECTURES})
endif()

enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13)
  ashlar_component(cuda no "CUDA 13; ${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION}")
  return()
endif()
# CMake 3.25's FindCUDAToolkit cannot read CUDA 13, so the runtime is found here; it is linked statically and
# by its path.
get_filename_component(ASHLAR_CUDA_ROOT ${CMAKE_CUDA_COMPILER} REALPATH)
get_filename_component(ASHLAR_CUDA_ROOT ${ASHLAR_CUDA_ROOT} DIRECTORY)
get_filename_component(ASHLAR_CUDA_ROOT ${ASHLAR_CUDA_ROOT} DIRECTORY)
find_library(ASHLAR_CUDART_LIBRARY cudart_static HINTS ${ASHLAR_CUDA_ROOT}
  ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES}
  PATH_SUFFIXES lib64 lib NO_CACHE)
find_path(ASHLAR_CUDART_INCLUDE cuda_runtime_api.h HINTS ${ASHLAR_CUDA_ROOT}
  ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}
  PATH_SUFFIXES include NO_CACHE)
if(NOT ASHLAR_CUDART_LIBRARY OR NOT ASHLAR_CUDART_INCLUDE)
  ashlar_component(cuda no "libcudart_static and its headers beside ${CMAKE_CUDA_COMPILER}")
  return()
endif()
set(ASHLAR_HAS_CUDA ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
ashlar_component(cuda yes "${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}")

# ashlar_cuda_flags(target): what our *.cu files are compiled with, and the usual warnings for the *.cc files
# beside them. The language level is a flag, because CMake 3.25 does not know that this nvcc has C++20.
function(ashlar_cuda_flags target)
  set_target_properties(${target} PROPERTIES CUDA_STANDARD_REQUIRED OFF)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--Werror=all-warnings;-Xcompiler=-Wall,-Wextra>
    $<$<COMPILE_LANGUAGE:CXX>:$<TARGET_PROPERTY:ashlar_warnings,INTERFACE_COMPILE_OPTIONS>>)
endfunction()
