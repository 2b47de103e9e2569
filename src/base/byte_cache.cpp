#include "base/byte_cache.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <vector>

#include "base/atomic_file.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"

namespace pipetrain {
namespace {

constexpr std::size_t kDigest = 64;
constexpr std::string_view kEnding = ".cached";
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

}  // namespace

std::filesystem::path ByteCache::file_of(std::string_view key) const {
  return folder_ / (sha256(key).substr(0, 32) + std::string(kEnding));
}

std::optional<std::string> ByteCache::find(std::string_view key) const {
  if (folder_.empty()) return {};
  const std::filesystem::path path = file_of(key);
  const std::optional<std::string> all = read_if_file(path, kMostBytes);
  if (!all || all->size() < kDigest) return {};
  const std::string bytes = all->substr(kDigest);
  if (sha256(bytes) != std::string_view(*all).substr(0, kDigest)) return {};
  std::error_code ignored;
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now(), ignored);
  return bytes;
}

void ByteCache::put(std::string_view key, std::string_view bytes) const {
  if (folder_.empty()) return;
  try {
    std::filesystem::create_directories(folder_);
    write_file(file_of(key), sha256(bytes) + std::string(bytes));
    remove_oldest();
  } catch (const Error& error) {
    log_debug("base", "the cache {} is not used: {}", folder_.string(), error.message());
  } catch (const std::filesystem::filesystem_error& error) {
    log_debug("base", "the cache {} is not used: {}", folder_.string(), error.what());
  }
}

void ByteCache::remove_oldest() const {
  using Entry = std::tuple<std::filesystem::file_time_type, std::uintmax_t, std::filesystem::path>;
  std::vector<Entry> entries;
  std::uintmax_t total = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path().extension() != kEnding) continue;
    std::error_code gone;  // another process may have removed it
    const std::uintmax_t size = entry.file_size(gone);
    const auto time = entry.last_write_time(gone);
    if (gone) continue;
    entries.emplace_back(time, size, entry.path());
    total += size;
  }
  std::sort(entries.begin(), entries.end());
  for (const auto& [time, size, path] : entries) {
    if (total <= most_bytes_) return;
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    total -= size;
  }
}

}  // namespace pipetrain
