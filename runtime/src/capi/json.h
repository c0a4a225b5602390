// Access to JSON that tvm_ffi parses. If a part is missing or of another type, the functions throw
// std::invalid_argument naming it.
#pragma once

#include <tvm/ffi/extra/json.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "capi/files.h"

namespace needle::capi::json {

namespace ffi = tvm::ffi;
using Object = ffi::json::Object;
using Array = ffi::json::Array;

// tvm_ffi's parser recurses for each level, and text from a file must not exhaust the stack.
constexpr int kDeepest = 200;

// Tells which characters of a JSON text belong to its strings, including their quotes.
class TextScanner {
 public:
  bool is_text(char letter) {
    if (!in_text_) return in_text_ = letter == '"';
    in_text_ = escaped_ || letter != '"';
    escaped_ = !escaped_ && letter == '\\';
    return true;
  }

 private:
  bool in_text_ = false, escaped_ = false;
};

inline bool is_shallow(const char* text, size_t size) {
  TextScanner scanner;
  int depth = 0;
  for (size_t i = 0; i < size; ++i) {
    if (scanner.is_text(text[i])) continue;
    if ((text[i] == '[' || text[i] == '{') && ++depth > kDeepest) return false;
    if (text[i] == ']' || text[i] == '}') --depth;
  }
  return true;
}

inline Object parse(const char* text, size_t size) {
  if (!is_shallow(text, size)) throw std::invalid_argument("it is nested too deeply");
  ffi::String error;
  const ffi::Any value = ffi::json::Parse(ffi::String(text, size), &error);
  if (!error.empty()) throw std::invalid_argument(error);
  const auto object = value.as<Object>();
  if (!object) throw std::invalid_argument("not a JSON object");
  return *object;
}

template <class T>
T as(const ffi::Any& value, const char* what) {
  const auto found = value.as<T>();
  if (!found) throw std::invalid_argument(what);
  return *found;
}

inline std::optional<ffi::Any> find(const Object& object, const char* name) {
  const ffi::Any key{ffi::String(name)};
  if (object.count(key) == 0) return std::nullopt;
  const ffi::Any value = object[key];
  if (value == nullptr) return std::nullopt;  // null counts as missing
  return value;
}

template <class T>
T get(const Object& object, const char* name) {
  const auto value = find(object, name);
  if (!value) throw std::invalid_argument(name);
  return as<T>(*value, name);
}

template <class T>
T get(const Object& object, const char* name, T missing) {
  const auto value = find(object, name);
  return value ? as<T>(*value, name) : missing;
}

inline std::string text(const Object& object, const char* name) {
  return get<ffi::String>(object, name);
}

// A number that is not negative.
inline uint64_t size(const Object& object, const char* name) {
  const auto number = get<int64_t>(object, name);
  if (number < 0) throw std::invalid_argument(name);
  return static_cast<uint64_t>(number);
}

}  // namespace needle::capi::json
