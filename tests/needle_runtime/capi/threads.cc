// Programs that several threads use at once.
//
//   threads MODEL WEIGHTS_A WEIGHTS_B STEP
//
// MODEL takes float32(n, 16); the two files hold weights for it. STEP is a training step.
#include <atomic>
#include <cstring>
#include <needle_runtime.hpp>
#include <set>
#include <thread>
#include <vector>

#include "expect.h"

namespace {

constexpr int kRounds = 60;

std::vector<float> numbers(std::size_t count) {
  std::vector<float> found(count);
  for (std::size_t i = 0; i < count; ++i) found[i] = static_cast<float>(i % 13) / 4 - 1;
  return found;
}

std::vector<float> run(needle::Call& call, const std::vector<float>& x) {
  call.input("x", x, {static_cast<std::int64_t>(x.size() / 16), 16}).run();
  const auto found = call.result<float>("output.0");
  return {found.begin(), found.end()};
}

// Calls of different sizes while the weights change: each result is that of one set of weights.
void weights_change_under_calls(const char* model, const char* a, const char* b) {
  needle::Program program(model);
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (const std::size_t rows : {1, 5, 40}) {
    const std::vector<float> x = numbers(16 * rows);
    needle::Call first(program);
    program.load_weights(a);
    const std::vector<float> with_a = run(first, x);
    program.load_weights(b);
    const std::vector<float> with_b = run(first, x);
    EXPECT(with_a != with_b);
    threads.emplace_back([&program, &done, x, with_a, with_b] {
      needle::Call call(program);
      while (!done) {
        const std::vector<float> found = run(call, x);
        EXPECT(found == with_a || found == with_b);
      }
    });
  }
  threads.emplace_back([&] {  // errors and descriptions
    needle::Call call(program);
    while (!done) {
      EXPECT_FAILS(NEEDLE_ERROR_INPUT, call.run());
      EXPECT(std::strcmp(needle_error(), "input 'x' was not set") == 0);
      EXPECT(program.inputs().at(0).name == "x" && program.weights().size() == 4);
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    program.load_weights(i % 2 == 0 ? a : b);
    EXPECT_FAILS(NEEDLE_ERROR_FILE, program.load_weights(model));
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

constexpr const char* kWeight = "model.modules.0.weight";

// Threads that step one state: no step is lost, and a copy of the state is that of a whole step.
// TSan does not see what compiled code writes, so the copies are compared.
void steps_are_taken_in_turn(const char* path) {
  const int callers = 3, steps = 40;
  const std::vector<float> x = numbers(8 * 6);
  const std::vector<std::int64_t> y{0, 1, 2, 0, 1, 2, 0, 1};
  needle::Program alone(path), shared(path);
  const auto prepared = [&](needle::Program& program) {
    needle::Call call(program);
    call.input(program.inputs().at(0).name, x).input(program.inputs().at(1).name, y);
    return call;
  };
  std::set<std::vector<float>> whole{alone.state<float>(kWeight)};
  needle::Call call = prepared(alone);
  for (int i = 0; i < callers * steps; ++i) {
    call.run();
    whole.insert(alone.state<float>(kWeight));
  }
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < callers; ++i)
    threads.emplace_back([&] {
      needle::Call own = prepared(shared);
      for (int step = 0; step < steps; ++step) own.run();
    });
  std::thread reader([&] {
    while (!done) EXPECT(whole.count(shared.state<float>(kWeight)) == 1);
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  reader.join();
  for (const needle::Info& info : alone.state())
    if (info.dtype == NEEDLE_FLOAT32)
      EXPECT(alone.state<float>(info.name) == shared.state<float>(info.name));
}

// One thread replaces an array of the state, another copies it.
void state_is_copied_whole(const char* path) {
  needle::Program program(path);
  needle_array array;
  std::size_t index = 0;
  needle::check(needle_find(program.handle(), NEEDLE_STATE, kWeight, &index));
  needle::check(needle_describe(program.handle(), NEEDLE_STATE, index, &array));
  const std::size_t count = program.state<float>(kWeight).size();
  const std::vector<float> one(count, 1), two(count, 2);
  const auto set = [&](std::vector<float> values) {
    array.data = values.data();
    array.bytes = count * sizeof(float);
    needle::check(needle_set_state(program.handle(), &array, 1));
  };
  set(one);
  std::thread writer([&] {
    for (int i = 0; i < kRounds; ++i) set(i % 2 == 0 ? two : one);
  });
  for (int i = 0; i < kRounds; ++i) {
    const std::vector<float> found = program.state<float>(kWeight);
    EXPECT(found == one || found == two);
  }
  writer.join();
}

// Threads that make the first calls of a program at the same moment.
void first_calls_are_made_at_once(const char* path) {
  constexpr int kCallers = 3;
  for (int round = 0; round < 1000; ++round) {
    needle::Program program(path);
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kCallers; ++i)
      threads.emplace_back([&] {
        ++ready;
        while (ready < kCallers) std::this_thread::yield();
        needle::Call call(program);
      });
    for (std::thread& thread : threads) thread.join();
  }
}

// Programs that are opened, run and closed by several threads.
void programs_come_and_go(const char* model) {
  const std::vector<float> x = numbers(16 * 4);
  needle::Program program(model);
  needle::Call call(program);
  const std::vector<float> expected = run(call, x);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 10; ++round) {
        needle::Options options;
        options.threads = i;
        needle::Program own(model, options);
        needle::Call its(own);
        EXPECT(run(its, x) == expected);
        EXPECT_FAILS(NEEDLE_ERROR_ARTIFACT, needle::Program("/nowhere"));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
  EXPECT(argc == 5);
  weights_change_under_calls(argv[1], argv[2], argv[3]);
  steps_are_taken_in_turn(argv[4]);
  state_is_copied_whole(argv[4]);
  first_calls_are_made_at_once(argv[4]);
  programs_come_and_go(argv[1]);
  std::puts("done");
}
