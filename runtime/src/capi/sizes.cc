#include "capi/sizes.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <stdexcept>

#include "capi/failure.h"

namespace needle::capi {

namespace {

constexpr size_t kLongest = 1000;  // characters of a text

int64_t divided(int64_t a, int64_t b) {
  if (b == 0 || (a == INT64_MIN && b == -1)) throw std::overflow_error("extent");
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

}  // namespace

// Recursive descent: sum = product (+|- product)*, product = unary ((*|//) unary)*.
class ExtentParser {
 public:
  ExtentParser(const std::string& text, const std::vector<Dim>& dims, Extent* extent)
      : text_(text), dims_(dims), extent_(extent) {}

  void parse() {
    sum();
    space();
    if (at_ != text_.size()) fail();
  }

 private:
  [[noreturn]] void fail() const { throw std::invalid_argument("extent " + quote(text_)); }
  void space() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(const char* sign) {
    space();
    const std::string wanted = sign;
    if (text_.compare(at_, wanted.size(), wanted) != 0) return false;
    at_ += wanted.size();
    return true;
  }
  void add(char kind, int64_t value = 0) { extent_->steps_.push_back({kind, value}); }

  void sum() {
    product();
    while (true) {
      const char sign = take("+") ? '+' : take("-") ? '-' : 0;
      if (sign == 0) return;
      product();
      add(sign);
    }
  }
  void product() {
    unary();
    while (true) {
      const char sign = take("//") ? '/' : take("*") ? '*' : 0;
      if (sign == 0) return;
      unary();
      add(sign);
    }
  }
  void unary() {
    if (take("-")) {
      unary();
      add('~');
      return;
    }
    if (take("(")) {
      sum();
      if (!take(")")) fail();
      return;
    }
    space();
    size_t end = at_;
    while (end < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[end])) != 0 ||
                                  text_[end] == '_' || (text_[end] & 0x80) != 0))
      ++end;
    const std::string word = text_.substr(at_, end - at_);
    at_ = end;
    if (word.empty()) fail();
    if (std::isdigit(static_cast<unsigned char>(word[0])) != 0) {
      size_t used = 0;
      int64_t number = 0;
      try {
        number = std::stoll(word, &used);
      } catch (const std::out_of_range&) {
        fail();
      }
      if (used != word.size()) fail();
      add('n', number);
      return;
    }
    for (size_t i = 0; i < dims_.size(); ++i)
      if (dims_[i].name == word) {
        add('d', static_cast<int64_t>(i));
        return;
      }
    fail();
  }

  const std::string& text_;
  const std::vector<Dim>& dims_;
  Extent* extent_;
  size_t at_ = 0;
};

Extent::Extent(int64_t number) : steps_{{'n', number}} {}

Extent::Extent(const std::string& text, const std::vector<Dim>& dims) : text_(text) {
  if (text.size() > kLongest) throw std::invalid_argument("an extent has too many characters");
  ExtentParser(text, dims, this).parse();
  if (std::none_of(steps_.begin(), steps_.end(), [](const Step& s) { return s.kind == 'd'; }))
    throw std::invalid_argument("extent " + quote(text));
}

int64_t Extent::at(const std::vector<int64_t>& sizes) const {
  std::vector<int64_t> stack;
  for (const Step& step : steps_) {
    if (step.kind == 'n' || step.kind == 'd') {
      stack.push_back(step.kind == 'n' ? step.value : sizes[static_cast<size_t>(step.value)]);
      continue;
    }
    int64_t b = stack.back(), result = 0;
    stack.pop_back();
    int64_t a = 0;
    if (step.kind != '~') {
      a = stack.back();
      stack.pop_back();
    }
    bool wraps = false;
    if (step.kind == '+') wraps = __builtin_add_overflow(a, b, &result);
    if (step.kind == '-' || step.kind == '~') wraps = __builtin_sub_overflow(a, b, &result);
    if (step.kind == '*') wraps = __builtin_mul_overflow(a, b, &result);
    if (step.kind == '/') result = divided(a, b);
    if (wraps) throw std::overflow_error("extent " + quote(text_));
    stack.push_back(result);
  }
  return stack.back();
}

std::optional<Line> Extent::linear(const std::vector<Dim>& dims) const {
  std::set<int64_t> used;
  int64_t places = 2;
  for (const Step& step : steps_) {
    if (step.kind == '/') return std::nullopt;
    if (step.kind == 'd') {
      used.insert(step.value);
      ++places;
    }
  }
  if (used.size() != 1) return std::nullopt;
  const auto dim = static_cast<size_t>(*used.begin());
  std::vector<int64_t> sizes(dims.size(), 0);
  const auto value = [&](int64_t place) {
    sizes[dim] = place;
    return at(sizes);
  };
  try {
    const int64_t added = value(0), factor = value(1) - added;
    if (factor < 1) return std::nullopt;
    // A polynomial that agrees with a line at more points than its degree is that line.
    for (int64_t place = 0; place < places; ++place)
      if (value(place) != factor * place + added) return std::nullopt;
    return Line{dim, factor, added};
  } catch (const std::overflow_error&) {
    return std::nullopt;
  }
}

Sizes::Sizes(std::vector<Dim> dims, const std::vector<NamedShape>& inputs)
    : dims_(std::move(dims)) {
  std::vector<std::optional<Source>> found(dims_.size());
  for (size_t number = 0; number < inputs.size(); ++number)
    for (size_t axis = 0; axis < inputs[number].shape.size(); ++axis) {
      const Extent& extent = inputs[number].shape[axis];
      if (!extent.is_open()) continue;
      axes_.push_back({number, axis, extent, inputs[number].name});
      const std::optional<Line> line = extent.linear(dims_);
      if (!line) continue;
      const bool whole = line->factor == 1 && line->added == 0;
      std::optional<Source>& source = found[line->dim];
      const bool better = source && whole && (source->line.factor != 1 || source->line.added != 0);
      if (!source || better) source = Source{axes_.back(), *line};
    }
  for (const std::optional<Source>& each : found) {
    if (!each) throw std::invalid_argument("dims");
    first_.push_back(*each);
  }
}

std::vector<int64_t> Sizes::of(const std::vector<std::vector<int64_t>>& shapes) const {
  std::vector<int64_t> sizes(dims_.size());
  const auto fail = [&](const Axis& at, const std::string& wanted) {
    throw Failure(NEEDLE_ERROR_INPUT,
                  "input " + quote(at.name) + " has " + std::to_string(shapes[at.input][at.axis]) +
                      " along axis " + std::to_string(at.axis) + ", where " + wanted);
  };
  for (size_t i = 0; i < dims_.size(); ++i) {
    const Dim& dim = dims_[i];
    const auto& [at, line] = first_[i];
    int64_t multiple;
    const bool wraps = __builtin_sub_overflow(shapes[at.input][at.axis], line.added, &multiple);
    const int64_t size = wraps ? 0 : divided(multiple, line.factor);
    sizes[i] = size;
    if (!wraps && size * line.factor == multiple && size >= dim.min && size <= dim.max &&
        size % dim.multiple_of == 0)
      continue;
    std::string rule = dim.name + " is ";
    if (dim.min == dim.max) {
      rule += std::to_string(dim.min);
    } else {
      if (dim.multiple_of != 1) rule += "a multiple of " + std::to_string(dim.multiple_of) + " ";
      rule += "from " + std::to_string(dim.min) + " to " + std::to_string(dim.max);
    }
    const bool whole = at.extent.text() == dim.name;
    fail(at, whole ? rule : at.extent.text() + " is expected and " + rule);
  }
  for (const Axis& each : axes_) {
    int64_t wanted = 0;
    try {
      wanted = each.extent.at(sizes);
    } catch (const std::overflow_error&) {
      fail(each, each.extent.text() + " is too large");
    }
    if (shapes[each.input][each.axis] != wanted)
      fail(each, each.extent.text() + " = " + std::to_string(wanted) + " is expected");
  }
  return sizes;
}

std::vector<int64_t> shape_at(const Shape& shape, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> numbers;
  numbers.reserve(shape.size());
  for (const Extent& extent : shape) numbers.push_back(extent.at(sizes));
  return numbers;
}

}  // namespace needle::capi
