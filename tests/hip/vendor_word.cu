// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

DEVICE_KERNEL(64) vendor_word(int* p) { p[threadIdx.x] = 1; }
