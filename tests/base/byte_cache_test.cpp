#include "base/byte_cache.h"

#include <gtest/gtest.h>

#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

std::filesystem::path only_file(const std::filesystem::path& folder) {
  std::filesystem::path out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) out = entry.path();
  return out;
}

TEST(ByteCache, GivesWhatWasPutInUnlessItIsDamaged) {
  const TemporaryDirectory folder;
  const ByteCache cache(folder / "new" / "folder", 1000);
  EXPECT_FALSE(cache.find("a"));
  cache.put("a", std::string_view("\0bytes", 6));
  EXPECT_EQ(cache.find("a"), std::string("\0bytes", 6));
  EXPECT_FALSE(cache.find("b"));
  cache.put("a", "");
  EXPECT_EQ(cache.find("a"), "");
  cache.put("a", "other");
  const std::filesystem::path file = only_file(folder / "new" / "folder");
  const std::string whole = get_file(file);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    put_file(file, whole.substr(0, size));
    EXPECT_FALSE(cache.find("a")) << size;
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string other = whole;
    other[at] = static_cast<char>(other[at] ^ 1);
    put_file(file, other);
    EXPECT_FALSE(cache.find("a")) << at;
  }
  cache.put("a", "again");
  EXPECT_EQ(cache.find("a"), "again");
}

TEST(ByteCache, RemovesWhatWasNotUsedForLongest) {
  const TemporaryDirectory folder;
  const std::string bytes(100, 'x');
  const ByteCache cache(folder.path(), 600);  // an entry takes 164 bytes
  put_file(folder / "somebody's", bytes);
  const auto age = [&](std::string_view key, int minutes) {
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      if (get_file(entry.path()).ends_with(key))
        std::filesystem::last_write_time(
            entry.path(),
            std::filesystem::file_time_type::clock::now() - std::chrono::minutes(minutes));
    }
  };
  for (const char* key : {"1", "2", "3"}) cache.put(key, bytes + key);
  age("1", 3);
  age("2", 2);
  age("3", 1);
  EXPECT_TRUE(cache.find("1"));
  cache.put("4", bytes + "4");
  EXPECT_FALSE(cache.find("2"));
  for (const char* key : {"1", "3", "4"}) EXPECT_TRUE(cache.find(key)) << key;
  EXPECT_EQ(get_file(folder / "somebody's"), bytes);
}

TEST(ByteCache, DoesWithoutAFolder) {
  const TemporaryDirectory folder;
  put_file(folder / "file", "");
  for (const std::filesystem::path& path : {std::filesystem::path(), folder / "file" / "below"}) {
    const ByteCache cache(path, 1000);
    cache.put("a", "bytes");
    EXPECT_FALSE(cache.find("a"));
  }
}

}  // namespace
}  // namespace pipetrain
