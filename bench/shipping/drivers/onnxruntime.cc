// Runs ONNX Runtime's C API on values created once over the driver's memory. Arguments: MODEL
// INPUT THREADS.
#include <onnxruntime_c_api.h>

#include <cstdint>
#include <cstdlib>

#include "serve.h"

static const OrtApi* api = OrtGetApiBase()->GetApi(ORT_API_VERSION);

void check(OrtStatus* status) {
  if (status != nullptr) throw std::runtime_error(api->GetErrorMessage(status));
}

std::vector<int64_t> shape_of(OrtTypeInfo* type) {
  const OrtTensorTypeAndShapeInfo* info = nullptr;
  std::size_t count = 0;
  check(api->CastTypeInfoToTensorInfo(type, &info));
  check(api->GetDimensionsCount(info, &count));
  std::vector<int64_t> shape(count);
  check(api->GetDimensions(info, shape.data(), count));
  api->ReleaseTypeInfo(type);
  return shape;
}

OrtValue* over(std::vector<float>& memory, const std::vector<int64_t>& shape) {
  OrtMemoryInfo* cpu = nullptr;
  OrtValue* value = nullptr;
  check(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &cpu));
  check(api->CreateTensorWithDataAsOrtValue(cpu, memory.data(), memory.size() * sizeof(float),
                                            shape.data(), shape.size(),
                                            ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
  api->ReleaseMemoryInfo(cpu);
  return value;
}

int main(int, char** arguments) {
  return guarded([&] {
    OrtEnv* environment = nullptr;
    OrtSessionOptions* options = nullptr;
    OrtSession* session = nullptr;
    check(api->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "driver", &environment));
    check(api->CreateSessionOptions(&options));
    check(api->SetIntraOpNumThreads(options, std::atoi(arguments[3])));
    check(api->SetInterOpNumThreads(options, 1));
    check(api->SetSessionGraphOptimizationLevel(options, ORT_ENABLE_ALL));
    check(api->CreateSession(environment, arguments[1], options, &session));

    OrtAllocator* allocator = nullptr;
    char *input_name = nullptr, *output_name = nullptr;
    OrtTypeInfo *input_type = nullptr, *output_type = nullptr;
    check(api->GetAllocatorWithDefaultOptions(&allocator));
    check(api->SessionGetInputName(session, 0, allocator, &input_name));
    check(api->SessionGetOutputName(session, 0, allocator, &output_name));
    check(api->SessionGetInputTypeInfo(session, 0, &input_type));
    check(api->SessionGetOutputTypeInfo(session, 0, &output_type));

    const std::vector<int64_t> output_shape = shape_of(output_type);
    std::size_t count = 1;
    for (const int64_t extent : output_shape) count *= static_cast<std::size_t>(extent);
    std::vector<float> x = read_floats(arguments[2]), y(count);
    const OrtValue* input = over(x, shape_of(input_type));
    OrtValue* output = over(y, output_shape);
    serve(count, [&] {
      check(api->Run(session, nullptr, &input_name, &input, 1, &output_name, 1, &output));
      return y.data();
    });
    std::fflush(stdout);
    std::_Exit(0);  // objects that live as long as the process are not released one by one
  });
}
