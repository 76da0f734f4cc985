# SPDX-License-Identifier: Apache-2.0
# Run at every build: cmake -DSOURCE=... -DOUT=... -DVERSION=... -P version.cmake. Writes OUT only where it changes.
find_program(GIT git)
set(GIT_SHA "unknown")
if(GIT)
  execute_process(COMMAND ${GIT} describe --always --dirty --abbrev=12 --exclude=* WORKING_DIRECTORY ${SOURCE}
                  OUTPUT_VARIABLE sha ERROR_QUIET RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT failed AND sha)
    set(GIT_SHA "${sha}")
  endif()
endif()
configure_file(${SOURCE}/apps/cli/version.cpp.in ${OUT} @ONLY)
