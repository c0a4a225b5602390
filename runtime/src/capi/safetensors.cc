#include "capi/safetensors.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <stdexcept>

#include "capi/dtypes.h"
#include "capi/failure.h"
#include "capi/json.h"

namespace needle::capi {

namespace {

// In bytes; the second is the format's own limit.
constexpr size_t kHead = 8, kLargestHeader = 100 << 20;

std::string escaped(const std::string& name) {
  static const char digits[] = "0123456789abcdef";
  std::string text = "\"";
  for (const char letter : name) {
    const auto code = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      text += {'\\', letter};
    } else if (code < ' ') {
      text += std::string("\\u00") + digits[code >> 4] + digits[code & 15];
    } else {
      text += letter;
    }
  }
  return text + "\"";
}

}  // namespace

bool byte_size(needle_dtype dtype, const std::vector<int64_t>& shape, size_t* bytes) {
  auto total = static_cast<int64_t>(needle_dtype_size(dtype));
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) return false;
    empty = empty || extent == 0;
    if (extent > 0 && __builtin_mul_overflow(total, extent, &total)) return false;
  }
  *bytes = empty ? 0 : static_cast<size_t>(total);
  return true;
}

std::vector<NamedArray> read_safetensors(const Bytes& bytes) {
  uint64_t header = 0;
  if (bytes.size() >= kHead)
    for (size_t i = kHead; i-- > 0;) header = header << 8 | static_cast<unsigned char>(bytes[i]);
  if (bytes.size() < kHead || header > std::min(bytes.size() - kHead, kLargestHeader))
    throw std::invalid_argument("it ends before its header does");
  const size_t start = kHead + static_cast<size_t>(header), size = bytes.size() - start;
  std::vector<NamedArray> arrays;
  std::vector<std::pair<uint64_t, uint64_t>> spans;
  for (const auto& [key, entry] : json::parse(bytes.data() + kHead, header)) {
    const std::string name = json::as<json::ffi::String>(key, "name");
    if (name == "__metadata__") continue;
    try {
      const auto fields = json::as<json::Object>(entry, "array");
      const std::string dtype = json::text(fields, "dtype");
      const auto known = find_dtype(&Dtype::safetensors, dtype);
      if (!known) throw std::invalid_argument("dtype");
      NamedArray array{name, *known, {}, nullptr, 0};
      for (const auto& extent : json::get<json::Array>(fields, "shape"))
        array.shape.push_back(json::as<int64_t>(extent, "shape"));
      const auto offsets = json::get<json::Array>(fields, "data_offsets");
      if (offsets.size() != 2) throw std::invalid_argument("data_offsets");
      const auto begin = static_cast<uint64_t>(json::as<int64_t>(offsets[0], "data_offsets"));
      const auto end = static_cast<uint64_t>(json::as<int64_t>(offsets[1], "data_offsets"));
      if (begin > end || end > size || !byte_size(array.dtype, array.shape, &array.bytes) ||
          array.bytes != end - begin)
        throw std::invalid_argument("data_offsets");
      array.data = bytes.data() + start + begin;
      spans.emplace_back(begin, end);
      arrays.push_back(std::move(array));
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(quote(name) + " is not an array of the file (" + error.what() +
                                  ")");
    }
  }
  std::sort(spans.begin(), spans.end());
  uint64_t at = 0;
  for (const auto& [begin, end] : spans) {
    if (begin != at) throw std::invalid_argument("its arrays overlap, or leave gaps");
    at = end;
  }
  if (at != size) throw std::invalid_argument("it is longer than its arrays");
  return arrays;
}

Bytes write_safetensors(const std::vector<NamedArray>& arrays) {
  std::string header = "{";
  size_t at = 0;
  for (const NamedArray& array : arrays) {
    header += (at == 0 && header.size() == 1 ? "" : ",") + escaped(array.name) + ":{\"dtype\":\"" +
              kDtypes[array.dtype].safetensors + "\",\"shape\":[" + joined(array.shape, ",") +
              "],\"data_offsets\":[" + std::to_string(at) + "," + std::to_string(at + array.bytes) +
              "]}";
    at += array.bytes;
  }
  header += "}";
  header.resize((header.size() + kHead - 1) / kHead * kHead, ' ');
  Bytes bytes(kHead);
  for (size_t i = 0; i < kHead; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  bytes.reserve(kHead + header.size() + at);
  bytes.insert(bytes.end(), header.begin(), header.end());
  for (const NamedArray& array : arrays)
    bytes.insert(bytes.end(), array.data, array.data + array.bytes);
  return bytes;
}

}  // namespace needle::capi
