// Needle's threads for compiled code.
#pragma once

namespace needle {

// Sets the number of threads that this thread's calls to adopted code use; 1 at first.
void use_threads(int count);
// Lets the library loaded from `path` use needle's threads. Throws std::runtime_error if it is not
// loaded.
void adopt(const char* path);

}  // namespace needle
