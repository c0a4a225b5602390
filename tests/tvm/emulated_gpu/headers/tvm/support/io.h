#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
#include <type_traits>
namespace tvm { namespace support {
class Stream {
 public:
  virtual ~Stream() = default;
  virtual size_t Read(void* p, size_t n) = 0;
  virtual size_t Write(const void* p, size_t n) = 0;
  template <class T> void Write(const T& x);
  template <class T> bool Read(T* x);
  template <class T> void WriteArray(const T* x, size_t n);
  template <class T> bool ReadArray(T* x, size_t n);
};
template <class T, class = void> struct Serializer;
}}
