#include "data/files/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"

namespace pipetrain {

/// Where a file is mapped, for the signal handler. Ranges are never freed, but used again.
struct MappedRange {
  std::atomic<std::uintptr_t> begin = 0, end = 0;  // end 0: free
  std::atomic<bool> lost = false;                  // some of it was not there when it was read
  const MappedFile* file = nullptr;                // under the mutex
  MappedRange* next = nullptr;
};

namespace {

std::mutex ranges_mutex;
std::vector<MappedRange*> free_ranges;
std::string unchecked_damage;  // of a file that is no longer mapped
std::atomic<MappedRange*> ranges = nullptr;
std::uintptr_t page_bytes = 0;
struct sigaction former_bus_action;

/// Async-signal-safe. A fault outside of the mapped files ends the program as if this were not
/// here.
void put_zeros_in_place(int number, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const std::uintptr_t page = address - address % page_bytes;
  const int error = errno;
  for (MappedRange* range = ranges; range && info->si_code == BUS_ADRERR; range = range->next) {
    const std::uintptr_t begin = range->begin, end = range->end;
    // The range of the fault stays as it is; another one may be given to a new file just now.
    if (address < begin || address >= end || range->begin != begin) continue;
    range->lost = true;
    void* rest = ::mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    errno = error;
    if (rest == MAP_FAILED) break;
    return;
  }
  ::sigaction(number, &former_bus_action, nullptr);
  if (info->si_code <= 0) ::raise(number);  // sent by a process; a real fault is raised again
}

void install_handler() {
  page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  struct sigaction action {};
  action.sa_sigaction = put_zeros_in_place;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  ::sigaction(SIGBUS, &action, &former_bus_action);
}

MappedRange* take_range(const MappedFile* file, std::span<const std::byte> bytes) {
  const std::lock_guard lock(ranges_mutex);
  static std::once_flag installed;
  std::call_once(installed, install_handler);
  if (free_ranges.empty()) {
    auto* made = new MappedRange;
    made->next = ranges;
    ranges = made;
    free_ranges.push_back(made);
  }
  MappedRange* range = free_ranges.back();
  free_ranges.pop_back();
  range->file = file;
  range->lost = false;
  range->begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  range->end = range->begin + bytes.size();
  return range;
}

void give_back(MappedRange* range, std::string damage) {
  const std::lock_guard lock(ranges_mutex);
  range->end = 0;
  range->file = nullptr;
  free_ranges.push_back(range);
  if (!damage.empty()) unchecked_damage = std::move(damage);
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::map(int descriptor, const struct stat& status,
                                                  const std::string& path) {
  const auto size = static_cast<std::size_t>(status.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (address == MAP_FAILED) return nullptr;
  const std::span bytes(static_cast<const std::byte*>(address), size);
  return std::shared_ptr<const MappedFile>(new MappedFile(bytes, status, path));
}

MappedFile::MappedFile(std::span<const std::byte> bytes, const struct stat& status,
                       const std::string& path)
    : bytes_(bytes),
      device_(status.st_dev),
      inode_(status.st_ino),
      path_(path),
      range_(take_range(this, bytes)) {}

MappedFile::~MappedFile() {
  give_back(range_, checked_ ? std::string() : damage());
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

// By its name, since a data set may have more files than a process may have open. A file that was
// replaced or deleted is still mapped as it was.
std::string MappedFile::damage() const {
  struct stat now {};
  const bool same =
      ::stat(path_.c_str(), &now) == 0 && now.st_dev == device_ && now.st_ino == inode_;
  // Where no whole page is lost, the end of the last one is zeros without any fault.
  if (same && static_cast<std::size_t>(now.st_size) < bytes_.size()) {
    return fmt::format(
        "\"{}\" shrank from {} to {} bytes while it was in use; restore it, then run this again",
        printable(path_), bytes_.size(), now.st_size);
  }
  if (!range_->lost) return {};
  return fmt::format(
      "not all of the {} bytes of \"{}\" could be read: it was cut while it was in use, or its "
      "disk failed",
      bytes_.size(), printable(path_));
}

void MappedFile::check() const {
  checked_ = true;
  const std::string what = damage();
  PT_CHECK(what.empty(), kData, "{}", what);
}

void check_mapped_files() {
  const std::lock_guard lock(ranges_mutex);
  const std::string unchecked = std::exchange(unchecked_damage, {});
  PT_CHECK(unchecked.empty(), kData, "{}", unchecked);
  for (MappedRange* range = ranges; range; range = range->next) {
    if (range->file) range->file->check();
  }
}

}  // namespace pipetrain
