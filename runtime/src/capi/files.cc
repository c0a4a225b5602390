#include "capi/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include "capi/failure.h"

namespace needle::capi {

namespace {

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }

 private:
  int number_;
};

[[noreturn]] void fail(needle_status status, const std::string& path, const std::string& reason) {
  throw Failure(status, path + ": cannot be read (" + reason + ")");
}

// O_NONBLOCK: opening a pipe must not block.
constexpr int kFlags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;

Bytes read_all(int descriptor, const std::string& path, uint64_t most, needle_status status) {
  struct stat found;
  if (descriptor < 0 || fstat(descriptor, &found) != 0) fail(status, path, system_reason());
  if (!S_ISREG(found.st_mode)) fail(status, path, "not a regular file");
  const auto size = static_cast<uint64_t>(found.st_size);
  if (size > most)
    throw Failure(status, path + ": is too long (" + std::to_string(size) + " bytes, at most " +
                              std::to_string(most) + ")");
  Bytes bytes(size);
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t count = ::read(descriptor, bytes.data() + at, bytes.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(status, path, system_reason());
    if (count == 0) break;  // the file has become shorter
    at += static_cast<size_t>(count);
  }
  bytes.resize(at);
  return bytes;
}

}  // namespace

std::string system_reason() { return std::strerror(errno); }

Folder::Folder(std::string path)
    : path_(std::move(path)), descriptor_(open(path_.c_str(), O_DIRECTORY | kFlags)) {
  if (descriptor_ < 0 && (errno == ENOENT || errno == ENOTDIR))
    throw Failure(NEEDLE_ERROR_ARTIFACT, path_ + ": no artifact there (manifest.json is missing)");
  if (descriptor_ < 0) fail(NEEDLE_ERROR_ARTIFACT, path_, system_reason());
}

Folder::~Folder() { close(descriptor_); }

std::vector<std::string> Folder::names() const {
  // Uses a second descriptor, because reading the folder moves the descriptor's position.
  const int again = openat(descriptor_, ".", O_DIRECTORY | kFlags);
  std::unique_ptr<DIR, int (*)(DIR*)> stream(again < 0 ? nullptr : fdopendir(again), closedir);
  if (stream == nullptr) {
    const std::string reason = system_reason();
    if (again >= 0) close(again);
    fail(NEEDLE_ERROR_ARTIFACT, path_, reason);
  }
  std::vector<std::string> names;
  while (const dirent* entry = readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  return names;
}

bool Folder::has(const std::string& name) const {
  return faccessat(descriptor_, name.c_str(), F_OK, 0) == 0;
}

Bytes Folder::read(const std::string& name, uint64_t most) const {
  const Descriptor file(openat(descriptor_, name.c_str(), kFlags));
  return read_all(file.get(), path_ + "/" + name, most, NEEDLE_ERROR_ARTIFACT);
}

Bytes read_file(const std::string& path) {
  const Descriptor file(open(path.c_str(), kFlags));
  return read_all(file.get(), path, std::numeric_limits<uint64_t>::max(), NEEDLE_ERROR_FILE);
}

void write_file(const std::string& path, const Bytes& bytes) {
  // mkostemp would make files that only their owner may read. The umask must decide instead, and
  // reading it would change it for other threads.
  static std::atomic<unsigned> count{0};
  std::string temporary;
  int descriptor = -1;
  do {
    temporary = path + "." + std::to_string(getpid()) + "." + std::to_string(count++);
    descriptor = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor < 0 && errno == EEXIST);
  const Descriptor file(descriptor);
  const auto check = [&](bool done) {
    if (done) return;
    const std::string reason = system_reason();
    if (file.get() >= 0) unlink(temporary.c_str());
    throw Failure(NEEDLE_ERROR_FILE, path + ": cannot be written (" + reason + ")");
  };
  check(file.get() >= 0);
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t count = write(file.get(), bytes.data() + at, bytes.size() - at);
    if (count < 0 && errno == EINTR) continue;
    check(count > 0);
    at += static_cast<size_t>(count);
  }
  check(fsync(file.get()) == 0);
  check(rename(temporary.c_str(), path.c_str()) == 0);
}

}  // namespace needle::capi
