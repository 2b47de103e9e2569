// The functions by which files and directories change. Defined in a program they take the place of
// the C library's; they call those, and tell a recording if there is one.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <string>

#include "simulation/recorded_files.h"

namespace {

using pipetrain::simulation::RecordedFiles;

template <class Function>
Function* real(Function*, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}
#define PT_REAL(name)                              \
  ([] {                                            \
    static auto* const found = real(&name, #name); \
    return found;                                  \
  }())

/// A path of openat() and the like.
std::string path_at(int directory, const char* path) {
  if (directory == AT_FDCWD || path[0] == '/') return path;
  char target[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(directory);
  const ssize_t length = ::readlink(link.c_str(), target, sizeof target);
  return std::string(target, static_cast<std::size_t>(length > 0 ? length : 0)) + "/" + path;
}

/// The recording of a path, if there is one.
RecordedFiles* recording_of(const std::string& path) {
  RecordedFiles* recording = RecordedFiles::recording();
  return recording && recording->is_below(path) ? recording : nullptr;
}

int open_any(int directory, const char* path, int flags, mode_t mode) {
  const std::string whole = path_at(directory, path);
  RecordedFiles* recording = recording_of(whole);
  const bool existed = recording && ::access(whole.c_str(), F_OK) == 0;
  const int descriptor = PT_REAL(openat)(directory, path, flags, mode);
  if (recording && descriptor >= 0) recording->opened(descriptor, whole, flags, existed);
  return descriptor;
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_any(AT_FDCWD, path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_any(AT_FDCWD, path, flags, mode);
}

ssize_t write(int descriptor, const void* data, size_t size) {
  const ssize_t done = PT_REAL(write)(descriptor, data, size);
  if (RecordedFiles* recording = RecordedFiles::recording(); recording && done > 0)
    recording->wrote(descriptor, {static_cast<const char*>(data), static_cast<size_t>(done)});
  return done;
}

int ftruncate(int descriptor, off_t size) noexcept {
  const int result = PT_REAL(ftruncate)(descriptor, size);
  if (RecordedFiles* recording = RecordedFiles::recording(); recording && result == 0)
    recording->resized(descriptor, size);
  return result;
}

off_t lseek(int descriptor, off_t offset, int from) noexcept {
  const off_t result = PT_REAL(lseek)(descriptor, offset, from);
  if (RecordedFiles* recording = RecordedFiles::recording(); recording && result >= 0)
    recording->moved(descriptor, result);
  return result;
}

int fsync(int descriptor) {
  const int result = PT_REAL(fsync)(descriptor);
  if (RecordedFiles* recording = RecordedFiles::recording(); recording && result == 0)
    recording->synced(descriptor);
  return result;
}

int close(int descriptor) {
  if (RecordedFiles* recording = RecordedFiles::recording()) recording->closed(descriptor);
  return PT_REAL(close)(descriptor);
}

int mkdir(const char* path, mode_t mode) noexcept {
  const int result = PT_REAL(mkdir)(path, mode);
  if (RecordedFiles* recording = recording_of(path); recording && result == 0)
    recording->made_directory(path);
  return result;
}

int rename(const char* from, const char* to) noexcept {
  const int result = PT_REAL(rename)(from, to);
  if (RecordedFiles* recording = recording_of(from); recording && result == 0)
    recording->renamed(from, to, /*exchanged=*/false);
  return result;
}

int renameat2(int from_directory, const char* from, int to_directory, const char* to,
              unsigned flags) noexcept {
  RecordedFiles* recording = recording_of(from);
  const bool exchanged = (flags & RENAME_EXCHANGE) != 0;
  if (recording && exchanged && !recording->exchanges()) {
    errno = EINVAL;
    return -1;
  }
  const int result = PT_REAL(renameat2)(from_directory, from, to_directory, to, flags);
  if (recording && result == 0) recording->renamed(from, to, exchanged);
  return result;
}

int unlinkat(int directory, const char* path, int flags) noexcept {
  const std::string whole = path_at(directory, path);
  const int result = PT_REAL(unlinkat)(directory, path, flags);
  if (RecordedFiles* recording = recording_of(whole); recording && result == 0)
    recording->removed(whole);
  return result;
}

int unlink(const char* path) noexcept { return unlinkat(AT_FDCWD, path, 0); }

int rmdir(const char* path) noexcept { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int remove(const char* path) noexcept {
  const int result = unlinkat(AT_FDCWD, path, 0);
  return result != 0 && errno == EISDIR ? unlinkat(AT_FDCWD, path, AT_REMOVEDIR) : result;
}

}  // extern "C"
