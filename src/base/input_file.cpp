#include "base/input_file.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/pipe_wait.h"
#include "base/units.h"

namespace pipetrain {

InputFile::InputFile(const std::filesystem::path& path, ErrorKind kind, Takes takes)
    : path_(path.string()), kind_(kind) {
  const auto require = [&](bool condition, const char* verb) {
    if (condition) return;
    const int error = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    throw Error(kind,
                fmt::format("cannot {} \"{}\": {}", verb, printable(path_), std::strerror(error)));
  };
  // Opening a pipe without O_NONBLOCK waits for its writer.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  require(descriptor_ >= 0, "open");
  require(::fstat(descriptor_, &status_) == 0, "read");
  try {
    if (S_ISDIR(status_.st_mode))
      throw Error(kind, fmt::format("\"{}\" is a directory, not a file", printable(path_)));
    if (takes == Takes::kFiles && !S_ISREG(status_.st_mode))
      throw Error(kind, fmt::format("cannot read \"{}\": it is a pipe or a device, not a file",
                                    printable(path_)));
    if (S_ISFIFO(status_.st_mode)) wait_for_writer();
    const int flags = ::fcntl(descriptor_, F_GETFL);
    ::fcntl(descriptor_, F_SETFL, flags & ~O_NONBLOCK);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

InputFile::~InputFile() { ::close(descriptor_); }

// Without a writer there is nothing to read; with one that has not written yet, EAGAIN.
void InputFile::wait_for_writer() {
  begin_.resize(4096);
  for (int waited = 0;; waited += kPipePause) {
    const ssize_t got = ::read(descriptor_, begin_.data(), begin_.size());
    if (got != 0) {
      begin_.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
      return;
    }
    if (waited >= kPipeWait)
      throw Error(kind_, fmt::format("\"{}\" is a pipe that nothing writes to", printable(path_)));
    ::poll(nullptr, 0, kPipePause);
  }
}

std::string InputFile::read(std::size_t most) const {
  return begin_ + read_all(descriptor_, path_, kind_, most);
}

std::string InputFile::read_at(off_t offset, std::size_t bytes) const {
  std::string out(bytes, '\0');
  std::size_t used = 0;
  while (used < bytes) {
    const ssize_t got =
        ::pread(descriptor_, out.data() + used, bytes - used, offset + static_cast<off_t>(used));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw Error(kind_,
                  fmt::format("cannot read \"{}\": {}", printable(path_), std::strerror(errno)));
    }
    if (got == 0) break;
    used += static_cast<std::size_t>(got);
  }
  out.resize(used);
  return out;
}

std::string read_all(int descriptor, const std::string& path, ErrorKind kind, std::size_t most) {
  std::string out;
  std::size_t used = 0;
  while (true) {
    if (out.size() - used < 65536) out.resize(std::max<std::size_t>(out.size() * 2, 1 << 18));
    const ssize_t got = ::read(descriptor, out.data() + used, out.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw Error(kind,
                  fmt::format("cannot read \"{}\": {}", printable(path), std::strerror(errno)));
    }
    if (got == 0) break;
    used += static_cast<std::size_t>(got);
    if (used > most) {
      throw Error(kind, fmt::format("\"{}\" is larger than {}", printable(path), bytes_text(most)));
    }
  }
  out.resize(used);
  return out;
}

std::string read_file(const std::filesystem::path& path, ErrorKind kind, std::size_t most) {
  return InputFile(path, kind).read(most);
}

std::optional<std::string> read_if_file(const std::filesystem::path& path, std::size_t most) {
  try {
    return read_file(path, ErrorKind::kData, most);
  } catch (const Error&) {
    return {};
  }
}

std::optional<std::string> begin_of_file(const std::filesystem::path& path, std::size_t bytes) {
  try {
    return InputFile(path, ErrorKind::kData).read_at(0, bytes);
  } catch (const Error&) {
    return {};
  }
}

std::string end_of_file(const std::filesystem::path& path, std::size_t bytes) {
  try {
    const InputFile file(path, ErrorKind::kData);
    const off_t left = file.status().st_size - static_cast<off_t>(bytes);
    return file.read_at(std::max<off_t>(left, 0), bytes);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace pipetrain
