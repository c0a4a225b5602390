// Checks of the test programs: a check that fails ends the process with its place.
#pragma once

#include <cstdio>
#include <cstdlib>

#define EXPECT(condition)                                                          \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::_Exit(1);                                                               \
    }                                                                              \
  } while (false)

// The call fails with this status.
#define EXPECT_FAILS(status_, call)                                  \
  do {                                                               \
    bool failed = false;                                             \
    try {                                                            \
      call;                                                          \
    } catch (const needle::Error& error) {                           \
      failed = error.status() == (status_) && *error.what() != '\0'; \
    }                                                                \
    EXPECT(failed);                                                  \
  } while (false)
