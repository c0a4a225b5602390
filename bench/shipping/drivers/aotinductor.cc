// Runs AOTInductor's package loader on one row. Arguments: PACKAGE INPUT THREADS.
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdlib>

#include "serve.h"

int main(int, char** arguments) {
  return guarded([&] {
    at::set_num_threads(std::atoi(arguments[3]));
    const c10::InferenceMode inference;
    // true: no locks, since only one thread calls
    torch::inductor::AOTIModelPackageLoader loader(arguments[1], "model", true);
    std::vector<float> x = read_floats(arguments[2]);
    const std::vector<at::Tensor> inputs = {
        at::from_blob(x.data(), {1, static_cast<int64_t>(x.size())})};
    std::vector<at::Tensor> outputs = loader.run(inputs);
    serve(static_cast<std::size_t>(outputs[0].numel()), [&] {
      outputs = loader.run(inputs);
      return outputs[0].const_data_ptr<float>();
    });
  });
}
