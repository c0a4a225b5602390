// Programs and calls that are moved, closed while others live, used after a fork, and left open
// when the process ends.
//
//   lifetimes MODEL [fork]
//
// MODEL takes float32(n, 16).
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <needle_runtime.hpp>
#include <string>
#include <utility>
#include <vector>

#include "expect.h"

namespace {

std::vector<float> run(needle::Call& call, const std::vector<float>& x) {
  call.input("x", x, {static_cast<std::int64_t>(x.size() / 16), 16}).run();
  const auto found = call.result<float>("output.0");
  return {found.begin(), found.end()};
}

std::unique_ptr<needle::Program> left_open;
std::unique_ptr<needle::Call> left_over;

}  // namespace

int main(int argc, char** argv) {
  EXPECT(argc >= 2);
  const std::string model = argv[1];
  const std::vector<float> x(16 * 50, 0.5F);
  std::vector<float> expected;
  for (int i = 0; i < 5; ++i) {
    needle::Program program(model);
    needle::Call call(program);
    const std::vector<float> found = run(call, x);
    EXPECT(expected.empty() || found == expected);
    expected = found;
  }

  // A program moves with its calls.
  needle::Program first(model);
  needle::Call call(first);
  needle::Program second = std::move(first);
  needle::Call moved = std::move(call);
  EXPECT(run(moved, x) == expected);
  second = needle::Program(model);  // `moved` keeps its own program open
  EXPECT(run(moved, x) == expected);
  moved = needle::Call(second);
  EXPECT(run(moved, x) == expected);
  needle_program* closed = nullptr;  // the same through the C interface
  needle_call* left = nullptr;
  needle::check(needle_open(model.c_str(), nullptr, &closed));
  needle::check(needle_new_call(closed, &left));
  needle_close(closed);
  const std::int64_t shape[] = {50, 16};
  needle::check(needle_set_input(left, "x", x.data(), x.size() * sizeof(float), shape, 2));
  needle::check(needle_run(left));
  needle_array output;
  needle::check(needle_output(left, "output.0", &output));
  EXPECT(std::memcmp(output.data, expected.data(), output.bytes) == 0);
  needle_free_call(left);

  // A failed constructor leaves nothing behind.
  EXPECT_FAILS(NEEDLE_ERROR_ARTIFACT, needle::Program("/nowhere"));
  EXPECT_FAILS(NEEDLE_ERROR_INPUT, moved.input("y", x));
  EXPECT_FAILS(NEEDLE_ERROR_INPUT, moved.input("x", std::vector<double>(16).data(), 16, {1, 16}));
  EXPECT_FAILS(NEEDLE_ERROR_INPUT, moved.result<double>("output.0"));
  EXPECT_FAILS(NEEDLE_ERROR_INPUT, second.state<float>("none"));
  EXPECT(run(moved, x) == expected);

  if (argc > 2) {
    const pid_t child = fork();
    if (child == 0) {
      EXPECT(run(moved, x) == expected);
      needle::Program own(model);
      needle::Call its(own);
      EXPECT(run(its, x) == expected);
      std::_Exit(0);
    }
    int status = 1;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(run(moved, x) == expected);
  }

  left_open = std::make_unique<needle::Program>(model);
  left_over = std::make_unique<needle::Call>(*left_open);
  EXPECT(run(*left_over, x) == expected);
  std::puts("done");
}
