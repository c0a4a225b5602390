#include "threads/adopt.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "threads/thread_pool.h"

namespace needle {

namespace {

// Compiled code divides its work among needle's threads. The library asks for threads through two
// pointers. TVM's loader has set them to functions of TVM with the same signatures as these.
thread_local int t_threads = 1;  // for this thread's calls

int launch(TaskFn fn, void* context, int tasks) {
  return run_team(tasks > 0 ? std::min(tasks, t_threads) : t_threads, fn, context);
}

int wait_for_team(int, Team* team) {
  barrier(team);
  return 0;
}

}  // namespace

void use_threads(int count) { t_threads = count; }

void adopt(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) throw std::runtime_error(std::string(path) + " is not loaded");
  // A library has only the symbols that it uses.
  if (void* slot = dlsym(library, "__TVMBackendParallelLaunch"))
    *static_cast<decltype(&launch)*>(slot) = launch;
  if (void* slot = dlsym(library, "__TVMBackendParallelBarrier"))
    *static_cast<decltype(&wait_for_team)*>(slot) = wait_for_team;
  dlclose(library);
}

}  // namespace needle
