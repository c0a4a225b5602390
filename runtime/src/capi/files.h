// Reads and writes whole files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace needle::capi {

using Bytes = std::vector<char>;

// An open folder. Files are opened relative to it, so an export that replaces the folder meanwhile
// cannot mix the files of two artifacts.
class Folder {
 public:
  explicit Folder(std::string path);
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::vector<std::string> names() const;
  bool has(const std::string& name) const;
  // The bytes of a regular file, at most `most`. Raises a Failure (ARTIFACT) for other files.
  Bytes read(const std::string& name, uint64_t most) const;

 private:
  std::string path_;
  int descriptor_;
};

// The bytes of a regular file. Raises a Failure (FILE) if it cannot be read.
Bytes read_file(const std::string& path);

// Writes a file as a whole or not at all. Raises a Failure (FILE).
void write_file(const std::string& path, const Bytes& bytes);

// The reason why the last system call failed.
std::string system_reason();

}  // namespace needle::capi
