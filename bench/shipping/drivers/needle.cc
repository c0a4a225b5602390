// Runs needle_runtime.hpp, with input and output set once. Arguments: ARTIFACT INPUT THREADS.
#include <cstdlib>

#include "needle_runtime.hpp"
#include "serve.h"

int main(int, char** arguments) {
  return guarded([&] {
    needle::Options options;
    options.threads = std::atoi(arguments[3]);
    needle::Program program(arguments[1], options);
    needle::Call call(program);
    const std::vector<float> x = read_floats(arguments[2]);
    call.input(program.inputs()[0].name, x);
    const needle::Info info = program.outputs()[0];
    std::size_t count = 1;
    for (const int64_t extent : info.shape) count *= static_cast<std::size_t>(extent);
    std::vector<float> y(count);
    call.output(info.name, y);
    serve(count, [&] {
      call.run();
      return y.data();
    });
  });
}
