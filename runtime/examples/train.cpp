// Train with an exported step, from C++, and classify with the weights that it has learned.
//
//   train STEP MODEL DATA EPOCHS STATE
//
// DATA/train_images.f32, train_labels.i32, test_images.f32 and test_labels.i32 hold images and
// their classes. Training continues from the file STATE, if there is one, and ends by writing it.
#include <algorithm>
#include <fstream>
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
  if (argc != 6) {
    std::cerr << "usage: train STEP MODEL DATA EPOCHS STATE\n";
    return 2;
  }
  const std::string data = argv[3], state = argv[5];
  const auto images = read_file<float>(data + "/train_images.f32");
  const auto labels = read_file<std::int32_t>(data + "/train_labels.i32");
  needle::Program step(argv[1]), model(argv[2]);
  if (std::ifstream(state)) step.load_state(state);

  const std::vector<needle::Info> inputs = step.inputs();  // the images and labels of a batch
  const auto batch = static_cast<std::size_t>(inputs.at(1).shape.at(0));
  const std::size_t pixels = images.size() / labels.size();
  needle::Call call(step);
  for (int epoch = std::stoi(argv[4]); epoch > 0; --epoch) {
    float loss = 0;
    for (std::size_t at = 0; at + batch <= labels.size(); at += batch) {
      call.input(inputs[0].name, images.data() + at * pixels, batch * pixels);
      call.input(inputs[1].name, labels.data() + at, batch).run();
      loss = call.result<float>("output.0")[0];
    }
    std::cout << "loss " << loss << '\n';
  }
  step.save_state(state);

  model.copy_weights(step, "model.");  // the step knows the weight `w` as `model.w`
  const auto test = read_file<float>(data + "/test_images.f32");
  const auto truth = read_file<std::int32_t>(data + "/test_labels.i32");
  needle::Call classify(model);
  classify.input(model.inputs().at(0).name, test,
                 {std::int64_t(truth.size()), std::int64_t(pixels)});
  classify.run();
  const auto scores = classify.result<float>("output.0");
  const auto classes = scores.size / truth.size();
  std::size_t right = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const float* row = &scores[i * classes];
    right += std::max_element(row, row + classes) - row == truth[i];
  }
  std::cout << right << " of " << truth.size() << " images right\n";
} catch (const std::exception& error) {
  std::cerr << "train: " << error.what() << '\n';
  return 1;
}
