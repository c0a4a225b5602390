// Classify images with an exported model, from C++, on several threads.
//
//   infer MODEL DATA [THREADS]
//
// DATA/test_images.f32 holds the images, and DATA/test_labels.i32 the class of each image. The
// threads share one program. Each thread has its own call, which writes the scores to the thread's
// memory.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <future>
#include <iostream>
#include <needle_runtime.hpp>

template <class T>
std::vector<T> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<T> values(file ? static_cast<std::size_t>(file.tellg()) / sizeof(T) : 0);
  file.seekg(0).read(reinterpret_cast<char*>(values.data()),
                     static_cast<std::streamsize>(values.size() * sizeof(T)));
  if (!file || values.empty()) throw std::runtime_error(path + ": cannot be read");
  return values;
}

int main(int argc, char** argv) try {
  if (argc < 3 || argc > 4) {
    std::cerr << "usage: infer MODEL DATA [THREADS]\n";
    return 2;
  }
  const std::string data = argv[2];
  const auto images = read_file<float>(data + "/test_images.f32");
  const auto labels = read_file<std::int32_t>(data + "/test_labels.i32");
  const std::size_t count = labels.size(), pixels = images.size() / count, batch = 32;

  needle::Options options;
  options.threads = 1;  // threads per call; the calls themselves run side by side
  needle::Program program(argv[1], options);
  const std::string input = program.inputs().at(0).name;
  const auto classes = static_cast<std::size_t>(program.outputs().at(0).shape.at(1));

  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    needle::Call call(program);
    std::vector<float> scores(batch * classes);
    std::size_t right = 0;
    for (std::size_t from; (from = next.fetch_add(batch)) < count;) {
      const std::size_t rows = std::min(batch, count - from);
      call.input(input, &images[from * pixels], rows * pixels,
                 {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(pixels)});
      call.output("output.0", scores.data(), rows * classes).run();
      for (std::size_t i = 0; i < rows; ++i) {
        const float* row = &scores[i * classes];
        right += std::max_element(row, row + classes) - row == labels[from + i];
      }
    }
    return right;
  };
  std::vector<std::future<std::size_t>> workers(argc == 4 ? std::stoul(argv[3]) : 2);
  for (auto& worker : workers) worker = std::async(std::launch::async, work);
  std::size_t right = 0;
  for (auto& worker : workers) right += worker.get();
  std::cout << right << " of " << count << " images right\n";
} catch (const std::exception& error) {
  std::cerr << "infer: " << error.what() << '\n';
  return 1;
}
