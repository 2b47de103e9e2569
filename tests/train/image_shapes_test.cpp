// The text in which a model keeps the shapes that images had in its training.
#include "train/image_shapes.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace pipetrain {
namespace {

TEST(ImageShapes, AreReadAsTheyAreWritten) {
  const std::map<std::string, Shape> shapes = {{"left", Shape{3, 4, 6}}, {"right", Shape{8, 8, 1}}};
  const std::string text = text_of_image_shapes(shapes);
  EXPECT_EQ(text, R"({"left":[3,4,6],"right":[8,8,1]})");
  EXPECT_EQ(parse_image_shapes(text), shapes);
  EXPECT_EQ(text_of_image_shapes({}), "");
}

TEST(ImageShapes, ThatAreNoneAreRefused) {
  for (const char* wrong : {"", "[]", "7", R"({"x":3})", R"({"x":[3,4]})", R"({"x":[3,4,0]})",
                            R"({"x":[3,4,-6]})", R"({"x":[3,4,1e9]})", R"({"x":[3,4,"6"]})",
                            R"({"x":[3,4,18446744073709551615]})", R"({"x":[3,4,2000000]})"})
    EXPECT_THROW(parse_image_shapes(wrong), Error) << wrong;
}

}  // namespace
}  // namespace pipetrain
