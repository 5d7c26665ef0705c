// What the functions of the C interface share. Each returns 0 or more on success, and on failure
// -1 or a null pointer, with the reason in `error`.
#pragma once

#include <atomic>
#include <cstdio>

#define ASTRAI_EXPORT extern "C" __attribute__((visibility("default")))

namespace astrai {

constexpr size_t kErrorBytes = 256;

// XNNPACK keeps a pointer to the thread pool that a program was loaded with.
extern std::atomic<int> open_programs;

template <typename... Values>
int fail(char* error, const char* format, Values... values) {
  std::snprintf(error, kErrorBytes, format, values...);
  return -1;
}

}  // namespace astrai
