#include "data/loading/batch_reader.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "support/data_files.h"

namespace pipetrain {
namespace {

/// Sample i is i; can be slow, and sample 7 is bad.
class Slow : public Dataset {
 public:
  std::size_t size() const override { return 10; }
  std::span<const Column> columns() const override { return columns_; }
  void gather(std::span<const std::size_t> indices, std::size_t, Tensor out) const override {
    std::this_thread::sleep_for(delay);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      PT_CHECK(indices[i] != 7, kData, "item {} is bad", indices[i]);
      out.as<float>()[i] = static_cast<float>(indices[i]);
    }
  }
  std::chrono::seconds delay{0};

 private:
  std::vector<Column> columns_ = {{"x", DType::kFloat32, {}}};
};

TEST(BatchReader, ReadsBatchesInAnyOrder) {
  BatchReader reader(std::make_shared<Slow>(), /*timeout_seconds=*/60);
  for (const std::vector<std::size_t>& indices :
       {std::vector<std::size_t>{4, 2, 9}, std::vector<std::size_t>{0}, {8, 8, 1, 3}}) {
    const Tensor& x = reader.read(5, indices).front();
    ASSERT_EQ(x.type.shape, Shape{static_cast<std::int64_t>(indices.size())});
    for (std::size_t i = 0; i < indices.size(); ++i)
      EXPECT_EQ(x.as<float>()[i], static_cast<float>(indices[i]));
  }
  expect_contains(data_error([&] { reader.read(5, {6, 7}); }), "item 7 is bad");
  EXPECT_EQ(reader.read(6, {6}).front().as<float>()[0], 6);
}

TEST(BatchReader, DoesNotWaitForAThreadThatIsStuck) {
  auto data = std::make_shared<Slow>();
  data->delay = std::chrono::seconds(60);
  const auto begin = std::chrono::steady_clock::now();
  {
    BatchReader reader(data, /*timeout_seconds=*/0.1);
    try {
      reader.read(0, {1});
      ADD_FAILURE() << "a batch came";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kDevice);
      EXPECT_NE(error.message().find("training waits for samples"), std::string::npos)
          << error.message();
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace pipetrain
