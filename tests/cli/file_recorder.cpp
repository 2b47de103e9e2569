// Preloaded into a program: writes down in what order it writes files, syncs and renames them, one
// line each in the file that FILE_RECORD names, then calls what it stands for.
//   write PATH · sync PATH · rename FROM TO · remove PATH, with tabs in between
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstring>

namespace {

/// The function that a program would have called without this library.
template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

void put(const char* what, const char* first, const char* second = nullptr) {
  const char* record = ::getenv("FILE_RECORD");
  if (!record) return;
  char line[3 * PATH_MAX];
  const int length = std::snprintf(line, sizeof line, "%s\t%s%s%s\n", what, first,
                                   second ? "\t" : "", second ? second : "");
  const int file = static_cast<int>(
      ::syscall(SYS_openat, AT_FDCWD, record, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (file < 0) return;
  if (length > 0) ::syscall(SYS_write, file, line, static_cast<std::size_t>(length));
  ::syscall(SYS_close, file);
}

/// Where a path leads, of which at least the folder must be there.
void full_path(const char* path, char (&out)[PATH_MAX]) {
  char folder[PATH_MAX], resolved[PATH_MAX];
  std::snprintf(folder, sizeof folder, "%s", path);
  const std::size_t length = std::strlen(folder);
  if (length > 1 && folder[length - 1] == '/') folder[length - 1] = '\0';
  char* slash = std::strrchr(folder, '/');
  const char* name = slash ? slash + 1 : folder;
  if (slash) *slash = '\0';
  if (!::realpath(slash ? (*folder ? folder : "/") : ".", resolved)) resolved[0] = '\0';
  std::snprintf(out, sizeof out, "%.2000s/%.2000s", resolved, name);
}

void put_descriptor(const char* what, int descriptor) {
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = ::readlink(link, path, sizeof path - 1);
  if (length <= 0 || path[0] != '/') return;  // a pipe
  path[length] = '\0';
  put(what, path);
}

void put_paths(const char* what, const char* from, const char* to) {
  char first[PATH_MAX], second[PATH_MAX];
  full_path(from, first);
  full_path(to, second);
  put(what, first, second);
}

void put_path(const char* what, const char* path) {
  char full[PATH_MAX];
  full_path(path, full);
  put(what, full);
}

}  // namespace

extern "C" {

ssize_t write(int descriptor, const void* bytes, size_t count) {
  put_descriptor("write", descriptor);
  return real<ssize_t(int, const void*, size_t)>("write")(descriptor, bytes, count);
}

ssize_t pwrite(int descriptor, const void* bytes, size_t count, off_t at) {
  put_descriptor("write", descriptor);
  return real<ssize_t(int, const void*, size_t, off_t)>("pwrite")(descriptor, bytes, count, at);
}

ssize_t writev(int descriptor, const iovec* parts, int count) {
  put_descriptor("write", descriptor);
  return real<ssize_t(int, const iovec*, int)>("writev")(descriptor, parts, count);
}

int ftruncate(int descriptor, off_t length) noexcept {
  put_descriptor("write", descriptor);
  return real<int(int, off_t)>("ftruncate")(descriptor, length);
}

int fsync(int descriptor) {
  const int result = real<int(int)>("fsync")(descriptor);
  if (result == 0) put_descriptor("sync", descriptor);
  return result;
}

int fdatasync(int descriptor) {
  const int result = real<int(int)>("fdatasync")(descriptor);
  if (result == 0) put_descriptor("sync", descriptor);
  return result;
}

int rename(const char* from, const char* to) noexcept {
  put_paths("rename", from, to);
  return real<int(const char*, const char*)>("rename")(from, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  put_paths("rename", from, to);
  return real<int(int, const char*, int, const char*, unsigned)>("renameat2")(from_folder, from,
                                                                              to_folder, to, flags);
}

int unlink(const char* path) noexcept {
  put_path("remove", path);
  return real<int(const char*)>("unlink")(path);
}

int rmdir(const char* path) noexcept {
  put_path("remove", path);
  return real<int(const char*)>("rmdir")(path);
}

}  // extern "C"
