// Sizes that are known only at a call: dims, and extents that depend on them, such as "2 * n + 1".
// needle_runtime/artifact/sizes.py has the same rules.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace needle::capi {

// A named size, which may be any multiple of `multiple_of` from `min` to `max`.
struct Dim {
  std::string name;
  int64_t min, max, multiple_of;
};

struct Line {
  size_t dim;
  int64_t factor, added;
};

// A number, or an expression of dims: ints and names with + - * // and parentheses.
class Extent {
 public:
  explicit Extent(int64_t number);
  // Throws std::invalid_argument for text that is not such an expression.
  Extent(const std::string& text, const std::vector<Dim>& dims);

  bool is_open() const { return !text_.empty(); }
  // The value for these sizes of the dims. Throws std::overflow_error.
  int64_t at(const std::vector<int64_t>& sizes) const;
  // Returns factor * dim + added, with factor > 0, if the extent equals it at every size.
  std::optional<Line> linear(const std::vector<Dim>& dims) const;
  const std::string& text() const { return text_; }

 private:
  struct Step {
    char kind;  // n: a number, d: a dim, else an operator (~ negates, / rounds down)
    int64_t value;
  };
  friend class ExtentParser;
  std::string text_;         // "" for a number
  std::vector<Step> steps_;  // in reverse Polish notation
};

using Shape = std::vector<Extent>;

struct NamedShape {
  std::string name;
  Shape shape;
};

// Finds the sizes of dims in the shapes of a call's inputs.
class Sizes {
 public:
  Sizes() = default;
  // Throws std::invalid_argument if no axis determines a dim.
  Sizes(std::vector<Dim> dims, const std::vector<NamedShape>& inputs);

  const std::vector<Dim>& dims() const { return dims_; }
  // The size of each dim. `shapes` must have the right numbers of axes. Raises a Failure (INPUT)
  // for a size that a dim does not allow, and for two inputs that disagree.
  std::vector<int64_t> of(const std::vector<std::vector<int64_t>>& shapes) const;

 private:
  struct Axis {
    size_t input, axis;
    Extent extent;
    std::string name;  // of the input
  };
  struct Source {
    Axis axis;
    Line line;
  };
  std::vector<Dim> dims_;
  std::vector<Axis> axes_;
  std::vector<Source> first_;  // the axis that determines each dim
};

// The extents of a shape at these sizes. Throws std::overflow_error.
std::vector<int64_t> shape_at(const Shape& shape, const std::vector<int64_t>& sizes);

}  // namespace needle::capi
