// A broken precondition is our bug, not the world's: say where and stop. Kept here because kernels/ includes nothing of
// ours.
#pragma once

#include <cstdio>
#include <cstdlib>

#define GRADLANE_KERNELS_CHECK(condition)                                                       \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      std::fprintf(stderr, "%s:%d: precondition broken: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                             \
    }                                                                                           \
  } while (false)
