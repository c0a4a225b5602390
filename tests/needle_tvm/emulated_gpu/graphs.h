// Work on the emulated GPU's streams: done at once, or kept for a graph that captures the stream.
#pragma once

#include <functional>

#include "cuda_runtime.h"

namespace emulated {

// Work for a stream, which may be another stream when a graph is replayed.
using Work = std::function<cudaError_t(cudaStream_t)>;

cudaError_t submit(cudaStream_t stream, Work work);
// Whether work on the stream is kept for a graph. Anything that would wait for it must then fail.
bool captured(cudaStream_t stream);

}  // namespace emulated
