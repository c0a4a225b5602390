// TVM's headers include this one, which its wheel lacks: the declarations that they need.
#pragma once

#include <cstddef>

namespace tvm {
namespace support {

class Stream {
 public:
  virtual ~Stream() = default;
  virtual size_t Read(void* to, size_t bytes) = 0;
  virtual size_t Write(const void* from, size_t bytes) = 0;
  template <class T>
  void Write(const T& value);
  template <class T>
  bool Read(T* value);
  template <class T>
  void WriteArray(const T* values, size_t count);
  template <class T>
  bool ReadArray(T* values, size_t count);
};

template <class T, class = void>
struct Serializer;

}  // namespace support
}  // namespace tvm
