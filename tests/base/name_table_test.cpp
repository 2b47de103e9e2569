#include "base/name_table.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <string>

namespace pipetrain {
namespace {

TEST(NameTable, HasWhatAMapHas) {
  std::deque<std::string> names;  // their addresses stay
  std::map<std::string, int> expected;
  NameTable<int> table;
  std::uint64_t state = 1;
  for (int i = 0; i < 200'000; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    // Short and long ones, half of them again.
    std::string name = std::to_string(state >> 47);
    if (i % 3 == 0) name.insert(0, std::string(static_cast<std::size_t>(i % 40), 'x'));
    names.push_back(name);
    const auto [value, added] = table.add(names.back(), i);
    const auto [entry, is_new] = expected.emplace(name, i);
    ASSERT_EQ(added, is_new) << name;
    ASSERT_EQ(*value, entry->second) << name;
  }
  EXPECT_EQ(table.size(), expected.size());
  for (const auto& [name, value] : expected) {
    const int* const found = table.find(name);
    ASSERT_NE(found, nullptr) << name;
    ASSERT_EQ(*found, value) << name;
  }
  EXPECT_EQ(table.find("no such name"), nullptr);
}

TEST(NameTable, TheEmptyNameAndNamesWithZeros) {
  using namespace std::string_view_literals;
  NameSet set;
  EXPECT_FALSE(set.contains(""));
  EXPECT_TRUE(set.insert({}));
  EXPECT_FALSE(set.insert(""));
  EXPECT_TRUE(set.contains(std::string_view()));
  EXPECT_TRUE(set.insert("\0"sv));
  EXPECT_TRUE(set.insert("\0\0"sv));
  EXPECT_TRUE(set.insert("12345678"));
  EXPECT_TRUE(set.insert("12345678\0"sv));
  EXPECT_FALSE(set.insert("\0\0"sv));
}

TEST(NameTable, HashesDifferInEveryByte) {
  for (const std::size_t length : {1, 7, 8, 9, 15, 16, 17, 40}) {
    const std::string name(length, 'a');
    for (std::size_t at = 0; at < length; ++at) {
      std::string other = name;
      other[at] = 'b';
      EXPECT_NE(hash_of_name(name), hash_of_name(other)) << length << " " << at;
    }
    EXPECT_NE(hash_of_name(name), hash_of_name(name + std::string(1, '\0'))) << length;
  }
}

}  // namespace
}  // namespace pipetrain
