#include "base/page_block.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace pipetrain {
namespace {

TEST(PageBlock, IsZeroedAndKeepsWhatItHolds) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, std::size_t{9} << 20}) {
    PageBlock block(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % 4096, 0U);
    block.data()[bytes - 1] = std::byte{7};
    block.take();
    EXPECT_EQ(block.data()[bytes - 1], std::byte{7});
    EXPECT_EQ(std::count(block.data(), block.data() + bytes, std::byte{0}),
              static_cast<std::ptrdiff_t>(bytes) - 1);
  }
}

TEST(PageBlock, IsTakenWhereItIsTouchedAndGivenBack) {
  const auto resident = [](const PageBlock& block) {
    std::vector<unsigned char> pages((block.bytes() + 4095) / 4096);
    EXPECT_EQ(::mincore(block.data(), block.bytes(), pages.data()), 0);
    return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
  };
  for (const bool huge : {false, true}) {
    PageBlock block(std::size_t{8} << 20, huge);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % (huge ? 2U << 20 : 4096U), 0U);
    EXPECT_EQ(resident(block), 0);
    block.data()[5000] = std::byte{7};
    EXPECT_GE(resident(block), 1);
    block.take();
    EXPECT_EQ(resident(block), 2048);
    block.release();
    EXPECT_EQ(resident(block), 0);
    EXPECT_EQ(block.data()[5000], std::byte{0});
  }
}

TEST(PageBlock, Moves) {
  PageBlock from(100);
  from.data()[0] = std::byte{1};
  PageBlock to(200);
  to = std::move(from);
  EXPECT_EQ(to.bytes(), 100U);
  EXPECT_EQ(to.data()[0], std::byte{1});
  const PageBlock nothing(0);
  EXPECT_EQ(nothing.data(), nullptr);
  nothing.take();
}

TEST(PageBlock, SaysWhenThereIsNotSoMuch) {
  try {
    PageBlock block(std::numeric_limits<std::size_t>::max() / 4);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
  }
}

}  // namespace
}  // namespace pipetrain
