// SPDX-License-Identifier: Apache-2.0
// What a backend folder gives to its plugin: its name and its runtime. Host code.
#pragma once

#include "toolkit/plugin.h"

namespace device {

struct Backend {
  const char* name;  // "cuda"; the plugin's name in rows and in --device
  const tk_runtime* runtime;
};

const Backend& backend();  // in <backend>/runtime.cpp

}  // namespace device
