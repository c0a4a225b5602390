// A stable radix sort, four bits at a time. A block sorts a tile of adjacent items, and each thread
// a run of them.
#include "cuda/sort.h"

#include "cuda/kernels.h"

namespace needle {
namespace cuda {

constexpr int kSortThreads = 128, kItems = 8, kTileItems = kSortThreads * kItems;
constexpr int kBits = 4, kDigits = 1 << kBits;

__global__ void __launch_bounds__(kThreads)
    start_sort(const int64_t* index, int64_t n, int64_t extent, int64_t* keys, int64_t* places) {
  for (int64_t i = grid_index(); i < n; i += grid_step()) {
    keys[i] = index[i] < 0 ? index[i] + extent : index[i];
    places[i] = i;
  }
}

// counts[digit][tile]
__global__ void __launch_bounds__(kSortThreads)
    count_digits(const int64_t* keys, int64_t n, int64_t tiles, int shift, int64_t* counts) {
  __shared__ int found[kDigits];
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    if (threadIdx.x < kDigits) found[threadIdx.x] = 0;
    __syncthreads();
    for (int j = 0; j < kItems; ++j) {
      const int64_t i = tile * kTileItems + j * kSortThreads + threadIdx.x;
      if (i < n) atomicAdd(found + ((keys[i] >> shift) & (kDigits - 1)), 1);
    }
    __syncthreads();
    if (threadIdx.x < kDigits) counts[threadIdx.x * tiles + tile] = found[threadIdx.x];
    __syncthreads();
  }
}

// An exclusive scan of the counts by one block; each thread scans a part of the row.
__global__ void __launch_bounds__(kThreads) sum_before(int64_t* counts, int64_t n) {
  __shared__ int64_t sums[kThreads];
  const int64_t begin = n * threadIdx.x / kThreads, end = n * (threadIdx.x + 1) / kThreads;
  int64_t sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += counts[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    int64_t before = 0;
    for (int t = 0; t < kThreads; ++t) {
      const int64_t own = sums[t];
      sums[t] = before;
      before += own;
    }
  }
  __syncthreads();
  int64_t before = sums[threadIdx.x];
  for (int64_t i = begin; i < end; ++i) {
    const int64_t own = counts[i];
    counts[i] = before;
    before += own;
  }
}

__global__ void __launch_bounds__(kSortThreads)
    place_digits(const int64_t* keys, const int64_t* places, int64_t n, int64_t tiles, int shift,
                 const int64_t* counts, int64_t* to_keys, int64_t* to_places) {
  __shared__ int64_t next[kDigits][kSortThreads];  // the place of a thread's next item of a digit
  const int t = static_cast<int>(threadIdx.x);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t begin = tile * kTileItems + t * kItems;
    const int64_t end = begin + kItems < n ? begin + kItems : n;
    for (int d = 0; d < kDigits; ++d) next[d][t] = 0;
    for (int64_t i = begin; i < end; ++i) ++next[(keys[i] >> shift) & (kDigits - 1)][t];
    __syncthreads();
    if (t < kDigits) {
      int64_t before = counts[t * tiles + tile];
      for (int j = 0; j < kSortThreads; ++j) {
        const int64_t own = next[t][j];
        next[t][j] = before;
        before += own;
      }
    }
    __syncthreads();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t to = next[(keys[i] >> shift) & (kDigits - 1)][t]++;
      to_keys[to] = keys[i];
      to_places[to] = places[i];
    }
    __syncthreads();
  }
}

Sorter::Sorter(const char* what, int device, int64_t n, int64_t extent)
    : n_(n),
      extent_(extent),
      tiles_(ceil_div(n, kTileItems)),
      pairs_(what, device, {4, n, int64_t{sizeof(int64_t)}}),
      counts_(what, device, {kDigits, tiles_, int64_t{sizeof(int64_t)}}) {}

Sorted Sorter::run(const Work& work, const int64_t* index) const {
  int64_t* keys = pairs_.as<int64_t>();
  int64_t *places = keys + n_, *other_keys = keys + 2 * n_, *other_places = keys + 3 * n_;
  int64_t* counts = counts_.as<int64_t>();
  work.launch(start_sort, grid_for(work.device(), n_, kThreads), kThreads, index, n_, extent_, keys,
              places);
  const Grid grid = grid_for(work.device(), tiles_, 1);
  for (int shift = 0; n_ > 1 && (extent_ - 1) >> shift > 0; shift += kBits) {
    work.launch(count_digits, grid, kSortThreads, keys, n_, tiles_, shift, counts);
    work.launch(sum_before, Grid(), kThreads, counts, kDigits * tiles_);
    work.launch(place_digits, grid, kSortThreads, keys, places, n_, tiles_, shift, counts,
                other_keys, other_places);
    std::swap(keys, other_keys);
    std::swap(places, other_places);
  }
  return {keys, places};
}

}  // namespace cuda
}  // namespace needle
