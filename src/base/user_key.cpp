#include "base/user_key.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "base/cache_directory.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/log.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKeyBytes = 32;

fs::path key_path() {
  const fs::path folder = default_cache_directory();
  return folder.empty() ? folder : folder / "user.key";
}

/// The key; empty if there is none, or others can read it.
std::string read_key(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) return {};
  struct stat status {};
  const bool is_private = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
                          status.st_uid == ::geteuid() && (status.st_mode & 077) == 0;
  std::array<char, kKeyBytes + 1> key{};
  const ssize_t bytes = ::read(descriptor, key.data(), key.size());
  ::close(descriptor);
  if (!is_private || bytes != static_cast<ssize_t>(kKeyBytes)) {
    log_debug("base", "{} is not used: it is not a key file that only this user can read",
              printable(path.string()));
    return {};
  }
  return {key.data(), kKeyBytes};
}

/// Creates the key atomically, unless another process was faster.
void make_key(const fs::path& path) {
  std::array<unsigned char, kKeyBytes> key{};
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error || RAND_bytes(key.data(), static_cast<int>(key.size())) != 1) return;
  const fs::path temporary = path.string() + fmt::format(".{}.tmp", ::getpid());
  const int descriptor =
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor < 0) return;
  const bool written =
      ::write(descriptor, key.data(), key.size()) == ssize_t{kKeyBytes} && ::fsync(descriptor) == 0;
  ::close(descriptor);
  if (written) fs::create_hard_link(temporary, path, error);
  fs::remove(temporary, error);
}

}  // namespace

std::string sign_as_user(std::string_view text) {
  const fs::path path = key_path();
  if (path.empty()) return {};
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) make_key(path);
  const std::string key = read_key(path);
  return key.empty() ? "" : hmac_sha256(key, text);
}

bool is_signed_by_user(std::string_view text, std::string_view signature) {
  const fs::path path = key_path();
  const std::string key = path.empty() ? "" : read_key(path);
  if (key.empty()) return false;
  const std::string expected = hmac_sha256(key, text);
  return signature.size() == expected.size() &&
         CRYPTO_memcmp(signature.data(), expected.data(), expected.size()) == 0;
}

}  // namespace pipetrain
