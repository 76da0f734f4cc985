// SPDX-License-Identifier: Apache-2.0
// What tuned kernels for NVIDIA GPUs (*_sm_80.cu and up) may call beside the dialect: the layout of
// matrix fragments, loads of them, byte permutations, packed halves. Runs on every NVIDIA GPU from
// sm_80 on and on simt with 32 lanes. Meanings: device/dialect.md, "NVIDIA only".
#pragma once

#include "device/device.h"

static_assert(device::kWave == 32, "a tuned kernel for NVIDIA GPUs is compiled for 32 lanes only");

#include "backend_nvidia.h"
