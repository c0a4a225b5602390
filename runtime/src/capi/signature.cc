#include "capi/signature.h"

#include <dlfcn.h>

#include <cstring>

#include "capi/failure.h"

namespace needle::capi {

namespace {

constexpr size_t kKeyLength = 32, kLargestFile = 1 << 16;  // bytes
// The head of an Ed25519 key's SubjectPublicKeyInfo (RFC 8410, section 4).
constexpr unsigned char kHead[] = {0x30, 0x2a, 0x30, 0x05, 0x06, 0x03,
                                   0x2b, 0x65, 0x70, 0x03, 0x21, 0x00};
constexpr const char* kLibraries[] = {"libsodium.so.26", "libsodium.so.23", "libsodium.so"};
constexpr int kBase64 = 1;  // sodium_base64_VARIANT_ORIGINAL

struct Sodium {
  int (*verify)(const unsigned char* signature, const unsigned char* data, unsigned long long size,
                const unsigned char* key);
  int (*decode)(unsigned char* out, size_t most, const char* text, size_t size, const char* ignore,
                size_t* length, const char** end, int variant);
};

Sodium load() {
  for (const char* name : kLibraries) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    Sodium found{};
    const auto start = reinterpret_cast<int (*)()>(dlsym(library, "sodium_init"));
    found.verify = reinterpret_cast<decltype(found.verify)>(
        dlsym(library, "crypto_sign_ed25519_verify_detached"));
    found.decode = reinterpret_cast<decltype(found.decode)>(dlsym(library, "sodium_base642bin"));
    if (start != nullptr && found.verify != nullptr && found.decode != nullptr && start() >= 0)
      return found;
  }
  throw Failure(NEEDLE_ERROR_SIGNATURE,
                "signatures need libsodium, which was not found (Debian: libsodium23)");
}

}  // namespace

bool is_signed_by(const Bytes& data, const Bytes& signature, const std::string& public_key) {
  static const Sodium sodium = load();
  Bytes pem;
  try {
    pem = read_file(public_key);
  } catch (const Failure& error) {
    throw Failure(NEEDLE_ERROR_SIGNATURE, error.what());
  }
  const std::string text(pem.begin(), pem.end());
  static const std::string begin = "-----BEGIN PUBLIC KEY-----", end = "-----END PUBLIC KEY-----";
  if (text.find("PRIVATE KEY") != std::string::npos)
    throw Failure(NEEDLE_ERROR_SIGNATURE,
                  public_key + ": is a private key; the public one is needed");
  const size_t from = text.find(begin), to = text.find(end);
  unsigned char key[sizeof kHead + kKeyLength];
  size_t length = 0;
  const bool right =
      pem.size() <= kLargestFile && from != std::string::npos && to != std::string::npos &&
      to > from &&
      sodium.decode(key, sizeof key, text.data() + from + begin.size(), to - from - begin.size(),
                    " \r\n\t", &length, nullptr, kBase64) == 0 &&
      length == sizeof key && std::memcmp(key, kHead, sizeof kHead) == 0;
  if (!right)
    throw Failure(NEEDLE_ERROR_SIGNATURE,
                  public_key + ": is not an Ed25519 public key in PEM form");
  return signature.size() == kSignatureLength &&
         sodium.verify(reinterpret_cast<const unsigned char*>(signature.data()),
                       reinterpret_cast<const unsigned char*>(data.data()), data.size(),
                       key + sizeof kHead) == 0;
}

}  // namespace needle::capi
