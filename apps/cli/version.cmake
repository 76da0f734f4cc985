# SPDX-License-Identifier: Apache-2.0
# Run at every build: cmake -DSOURCE=... -DOUT=... -DVERSION=... -DGIVEN=... -P version.cmake. Writes OUT only where it
# changes. The revision is the given one (TOOLKIT_GIT_SHA, for a tree that was copied without its history), else git's
# of the tree, else that of the archive (`git archive` fills revision.txt), else "unknown".
set(GIT_SHA "${GIVEN}")
if(NOT GIT_SHA AND EXISTS ${SOURCE}/.git)  # not of a repository that merely holds this tree
  find_program(GIT git)
  if(GIT)
    execute_process(COMMAND ${GIT} describe --always --dirty --abbrev=12 --exclude=* WORKING_DIRECTORY ${SOURCE}
                    OUTPUT_VARIABLE GIT_SHA ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
endif()
if(NOT GIT_SHA)
  file(STRINGS ${SOURCE}/apps/cli/revision.txt archived LIMIT_COUNT 1)
  if(archived MATCHES "^[0-9a-f]+$")
    string(SUBSTRING "${archived}" 0 12 GIT_SHA)
  else()
    set(GIT_SHA "unknown")
  endif()
endif()
configure_file(${SOURCE}/apps/cli/version.cpp.in ${OUT} @ONLY)
