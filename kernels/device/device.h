// SPDX-License-Identifier: Apache-2.0
// The device side of the dialect (dialect.md): the only header a kernel includes for it.
// "backend.h" is found by the include path, which names the folder of one backend: simt/, cuda/ or
// hip/.
#pragma once

#include "backend.h"
#include "device/collectives.h"
#include "device/numeric.h"
