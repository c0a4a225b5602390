#include "capi/library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "capi/failure.h"
#include "threads/adopt.h"
#include "threads/thread_pool.h"

namespace needle::capi {

namespace {

namespace ffi = tvm::ffi;

// Registered by TVM's runtime library, which the process may have loaded already.
constexpr const char* kLoader = "ffi.Module.load_from_bytes.relax.VMExecutable";
constexpr int kFlags = RTLD_NOW | RTLD_GLOBAL;

void load_tvm() {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (ffi::Function::GetGlobal(kLoader).has_value()) return;
  // Try the path beside this library first: if dlopen is intercepted (by sanitizers, for example),
  // the loader does not see this library's RUNPATH.
  const std::string name = "libtvm_runtime.so";
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&load_tvm), &self) != 0 && self.dli_fname != nullptr) {
    const std::string path = self.dli_fname;
    const size_t folder = path.rfind('/') + 1;  // 0 without a folder
    if (folder > 0 && dlopen((path.substr(0, folder) + name).c_str(), kFlags) != nullptr) return;
  }
  if (dlopen(name.c_str(), kFlags) == nullptr)
    throw Failure(NEEDLE_ERROR_TARGET,
                  std::string("TVM's runtime library cannot be loaded (") + dlerror() + ")");
}

// A file with a library's bytes, for the loader to open while this object lives.
class Copy {
 public:
  virtual ~Copy() = default;
  std::string name, reason;  // the name is empty if the copy could not be made
};

bool write_all(int descriptor, const Bytes& bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t count = write(descriptor, bytes.data() + at, bytes.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += static_cast<size_t>(count);
  }
  return true;
}

// A copy in memory needs no disk, and leaves nothing behind if the process is killed.
class MemoryCopy : public Copy {
 public:
  explicit MemoryCopy(const Bytes& bytes) : descriptor_(memfd_create("needle-load", MFD_CLOEXEC)) {
    uint64_t bits = 0;
    if (descriptor_ < 0 || !write_all(descriptor_, bytes) ||
        getrandom(&bits, sizeof bits, 0) != sizeof bits) {
      reason = "memory (" + system_reason() + ")";
      return;
    }
    // The loader returns a library that it has already loaded under the same name, and descriptor
    // numbers are reused. So each name is spelled differently: "/./" and "//" both mean /.
    std::string path = "/proc/self";
    for (int i = 0; i < 64; ++i) path += (bits >> i & 1) != 0 ? "/./" : "//";
    path += "fd/" + std::to_string(descriptor_);
    if (access(path.c_str(), R_OK) == 0)
      name = path;
    else
      reason = "memory (/proc is missing)";
  }
  ~MemoryCopy() override {
    if (descriptor_ >= 0) close(descriptor_);
  }

 private:
  int descriptor_;
};

class FileCopy : public Copy {
 public:
  FileCopy(const Bytes& bytes, const std::string& folder) : path_(folder + "/needle-load-XXXXXX") {
    const int descriptor = mkostemp(path_.data(), O_CLOEXEC);
    if (descriptor >= 0) made_ = true;
    if (descriptor >= 0 && write_all(descriptor, bytes))
      name = path_;
    else
      reason = folder + " (" + system_reason() + ")";
    if (descriptor >= 0) close(descriptor);
  }
  ~FileCopy() override {
    if (made_) unlink(path_.c_str());
  }

 private:
  std::string path_;
  bool made_ = false;
};

}  // namespace

ffi::Module load_code(const Bytes& library, const std::string& path) {
  load_tvm();
  static std::once_flag once;
  try {
    std::call_once(once, init_threads);
  } catch (const std::exception& error) {
    throw Failure(NEEDLE_ERROR_USAGE, error.what());
  }
  std::vector<std::string> folders = {""};  // memory
  if (const char* chosen = std::getenv("TMPDIR"); chosen != nullptr && *chosen != 0)
    folders.emplace_back(chosen);
  for (const char* folder : {"/dev/shm", "/var/tmp", "/tmp"}) folders.emplace_back(folder);
  std::string refused;
  for (const std::string& folder : folders) {
    std::unique_ptr<Copy> copy;
    if (folder.empty())
      copy = std::make_unique<MemoryCopy>(library);
    else
      copy = std::make_unique<FileCopy>(library, folder);
    std::string reason = copy->reason;
    if (!copy->name.empty()) {
      // Opened here first, because TVM's own error includes a traceback of its C++ code.
      if (void* opened = dlopen(copy->name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
        const ffi::Function open = ffi::Function::GetGlobalRequired("ffi.Module.load_from_file.so");
        auto module = open(copy->name, "so").cast<ffi::Module>();
        adopt(copy->name.c_str());
        dlclose(opened);
        return module;
      }
      const std::string text = dlerror();
      const size_t at = text.find(copy->name + ": ");
      reason = (folder.empty() ? "memory" : folder) + " (" +
               (at == 0 ? text.substr(copy->name.size() + 2) : text) + ")";
    }
    refused += (refused.empty() ? "not from " : ", nor from ") + reason;
  }
  throw Failure(NEEDLE_ERROR_TARGET,
                path + ": the code cannot be loaded here: " + refused +
                    "; set TMPDIR to a folder that can be written to and is not mounted noexec");
}

}  // namespace needle::capi
