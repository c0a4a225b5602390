// Code that the drivers share. A driver prints the numbers of its first answer. Then it reads
// numbers of calls, and for each it prints the seconds that the calls took.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

inline std::vector<float> read_floats(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  std::vector<float> values(static_cast<std::size_t>(file.tellg()) / sizeof(float));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(float)));
  return values;
}

// `call` returns a pointer to the `count` numbers of its answer.
template <class Call>
void serve(std::size_t count, const Call& call) {
  const float* answer = call();
  for (std::size_t i = 0; i < count; ++i) std::printf("%.9g ", static_cast<double>(answer[i]));
  std::printf("\n");
  std::fflush(stdout);
  long calls = 0;
  while (std::scanf("%ld", &calls) == 1) {
    const auto start = std::chrono::steady_clock::now();
    for (long i = 0; i < calls; ++i) call();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    std::printf("%.9g\n", taken.count());
    std::fflush(stdout);
  }
}

// Runs a driver's `work`; returns the exit status of the process.
template <class Work>
int guarded(const Work& work) {
  try {
    work();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
