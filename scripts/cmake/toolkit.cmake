# SPDX-License-Identifier: Apache-2.0
# Project-wide compile rules, and toolkit_op(): the one line that adds an op in every room.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# Oracles and generators promise the same bits everywhere: no contraction, no fast-math.
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>)

# Everything that runs lies in one folder, so that plugins are found beside the apps and the folder can be copied.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_BUILD_RPATH "$ORIGIN")
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)

if(TOOLKIT_SANITIZER STREQUAL "address")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined> $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all> -g)
  add_link_options(-fsanitize=address,undefined)
elseif(TOOLKIT_SANITIZER STREQUAL "thread")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=thread> -g)
  add_link_options(-fsanitize=thread)
elseif(TOOLKIT_SANITIZER)
  message(FATAL_ERROR "TOOLKIT_SANITIZER is '${TOOLKIT_SANITIZER}': expected address, thread or empty")
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

function(toolkit_warnings target)
  # g++ 12 warns of an overlap in every "text" + std::string (its bug 105651).
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>
                                           $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)
endfunction()

# toolkit_op(qsa expand): contract kernels/include/qsa/expand.h, kernel kernels/qsa/expand.cu (and tuned ones for NVIDIA
# GPUs, kernels/qsa/expand_sm_80.cu, expand_sm_90.cu and expand_*_ of both, where they are: also on simt with 32 lanes), oracle
# reference/qsa/expand.cpp, card harness/ops/qsa/expand.cpp, test
# tests/qsa/expand_test.cpp. A missing one stops the configuration: an op comes whole.
function(toolkit_op family op)
  foreach(file kernels/include/${family}/${op}.h kernels/${family}/${op}.cu reference/${family}/${op}.cpp
               harness/ops/${family}/${op}.cpp tests/${family}/${op}_test.cpp)
    if(NOT EXISTS ${PROJECT_SOURCE_DIR}/${file})
      message(FATAL_ERROR "op ${family}.${op}: ${file} is missing (an op is contract, kernel, oracle, card and test)")
    endif()
  endforeach()
  set_property(GLOBAL APPEND PROPERTY TOOLKIT_KERNELS ${PROJECT_SOURCE_DIR}/kernels/${family}/${op}.cu)
  file(GLOB tuned CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/${family}/${op}_sm_80.cu
                                    ${PROJECT_SOURCE_DIR}/kernels/${family}/${op}_*_sm_80.cu
                                    ${PROJECT_SOURCE_DIR}/kernels/${family}/${op}_sm_90.cu
                                    ${PROJECT_SOURCE_DIR}/kernels/${family}/${op}_*_sm_90.cu)
  set_property(GLOBAL APPEND PROPERTY TOOLKIT_TUNED_KERNELS ${tuned})
  set_property(GLOBAL APPEND PROPERTY TOOLKIT_ORACLES ${PROJECT_SOURCE_DIR}/reference/${family}/${op}.cpp)
  set_property(GLOBAL APPEND PROPERTY TOOLKIT_CARDS ${PROJECT_SOURCE_DIR}/harness/ops/${family}/${op}.cpp)
endfunction()

# toolkit_probe(roof read): a kernel that is measured, not judged by an oracle: contract kernels/include/roof/read.h and
# kernel kernels/roof/read.cu. harness/measure/roofs.cpp calls it and checks what it gives by a sum.
function(toolkit_probe family probe)
  foreach(file kernels/include/${family}/${probe}.h kernels/${family}/${probe}.cu)
    if(NOT EXISTS ${PROJECT_SOURCE_DIR}/${file})
      message(FATAL_ERROR "probe ${family}.${probe}: ${file} is missing (a probe is contract and kernel)")
    endif()
  endforeach()
  set_property(GLOBAL APPEND PROPERTY TOOLKIT_KERNELS ${PROJECT_SOURCE_DIR}/kernels/${family}/${probe}.cu)
endfunction()

# Rules of sight by include paths: a room is included as "reference/oracle.h" through a folder that holds a link to
# that room alone, so that including a room which a target may not see does not compile.
function(toolkit_room room)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/rooms/${room})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${room} ${PROJECT_BINARY_DIR}/rooms/${room}/${room} SYMBOLIC)
endfunction()
