// Counter-based random numbers.
#pragma once

#include <stdint.h>

namespace needle {
namespace NEEDLE_ISA {

// Philox 4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
// (2011), section 4.3. See KernelTable.
static void philox(uint64_t key, uint64_t first, int64_t n, uint32_t* out, int64_t stride) {
  constexpr int kLanes = 64;
  for (int64_t i = 0; i < n; i += kLanes) {
    uint32_t x[4][kLanes];
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int l = 0; l < kLanes; ++l) {
      const uint64_t counter = first + static_cast<uint64_t>(i + l);
      x[0][l] = static_cast<uint32_t>(counter);
      x[1][l] = static_cast<uint32_t>(counter >> 32);
      x[2][l] = x[3][l] = 0;
    }
    for (int round = 0; round < 10; ++round) {
      for (int l = 0; l < kLanes; ++l) {
        const uint64_t a = uint64_t{0xD2511F53} * x[0][l], b = uint64_t{0xCD9E8D57} * x[2][l];
        x[0][l] = static_cast<uint32_t>(b >> 32) ^ x[1][l] ^ k0;
        x[1][l] = static_cast<uint32_t>(b);
        x[2][l] = static_cast<uint32_t>(a >> 32) ^ x[3][l] ^ k1;
        x[3][l] = static_cast<uint32_t>(a);
      }
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    const int64_t count = n - i < kLanes ? n - i : kLanes;
    for (int w = 0; w < 4; ++w)
      for (int64_t l = 0; l < count; ++l) out[w * stride + i + l] = x[w][l];
  }
}

}  // namespace NEEDLE_ISA
}  // namespace needle
