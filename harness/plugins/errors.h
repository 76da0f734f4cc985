// SPDX-License-Identifier: Apache-2.0
// What can go wrong between the tools and a backend, by what a user has to do about it.
#pragma once

#include <stdexcept>

namespace harness {

// A name, index or file that the user gave is wrong: exit 2.
class BadRequest : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A backend is not here, because ... : nothing can be judged on it, exit 77.
class Absent : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The backend or a kernel reported an error: exit 5.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace harness
