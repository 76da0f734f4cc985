# SPDX-License-Identifier: Apache-2.0
# Enables CUDA where it is wanted and there, and sets TOOLKIT_WITH_CUDA. Included at the top, so that every folder has
# the language.
set(TOOLKIT_WITH_CUDA OFF)
if(NOT TOOLKIT_CUDA MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "TOOLKIT_CUDA is '${TOOLKIT_CUDA}': expected ON, OFF or AUTO")
endif()
if(TOOLKIT_CUDA STREQUAL "OFF")
  message(STATUS "kernels-cuda: off (TOOLKIT_CUDA=OFF)")
  return()
endif()

find_program(TOOLKIT_NVCC nvcc HINTS $ENV{CUDACXX} $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
set(nvcc_reason "")
if(NOT TOOLKIT_NVCC)
  set(nvcc_reason "no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda")
else()
  execute_process(COMMAND ${TOOLKIT_NVCC} --version OUTPUT_VARIABLE nvcc_version ERROR_VARIABLE nvcc_version)
  if(NOT nvcc_version MATCHES "release ([0-9]+\\.[0-9]+)")
    set(nvcc_reason "${TOOLKIT_NVCC} --version says nothing of a release")
  elseif(CMAKE_MATCH_1 VERSION_LESS 12.0)
    set(nvcc_reason "${TOOLKIT_NVCC} is ${CMAKE_MATCH_1}; C++20 in kernels needs 12.0 or newer")
  endif()
endif()
if(nvcc_reason)
  if(TOOLKIT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "kernels-cuda: ${nvcc_reason}. Install the CUDA toolkit, or configure with -DTOOLKIT_CUDA=OFF")
  endif()
  message(STATUS "kernels-cuda: not built (${nvcc_reason})")
  return()
endif()

if(TOOLKIT_CUDA_ARCHITECTURES STREQUAL "full")
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90a-real;100a-real;103a-real")
else()
  set(CMAKE_CUDA_ARCHITECTURES "${TOOLKIT_CUDA_ARCHITECTURES}")
endif()
set(CMAKE_CUDA_COMPILER ${TOOLKIT_NVCC})
enable_language(CUDA)
# CMake 3.25 does not know that nvcc speaks C++20, and refuses or silently drops the flag.
if(CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA" AND NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  list(APPEND CMAKE_CUDA20_COMPILE_FEATURES cuda_std_20)
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(TOOLKIT_WITH_CUDA ON)
message(STATUS "kernels-cuda: nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")

# - No contraction: a kernel says device::fma where it means one, and so rounds alike on every backend.
# - A spill to local memory is a warning. With -DCMAKE_CUDA_FLAGS=-Werror=all-warnings it stops the build.
function(toolkit_cuda_options target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:
    --fmad=false --expt-relaxed-constexpr --compress-mode=size -lineinfo
    -Xptxas=--warn-on-spills -Xcompiler=-Wall,-Wno-restrict>)
endfunction()
