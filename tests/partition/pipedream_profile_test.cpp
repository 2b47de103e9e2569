#include "partition/pipedream_profile.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

const std::filesystem::path kProfiles =
    std::filesystem::path(PIPETRAIN_SOURCE_DIR) / "tests/data/pipedream";

std::string error_of(std::string_view text) {
  try {
    parse_pipedream_profile(text, "graph.txt");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
  return "no error";
}

constexpr const char* kFields =
    "forward_compute_time=1.500, backward_compute_time=2.000, activation_size=8.0, "
    "parameter_size=4.000";

TEST(PipeDreamProfile, EveryPublishedFileComesBackByteForByte) {
  int files = 0;
  for (const auto& folder : std::filesystem::directory_iterator(kProfiles)) {
    if (!folder.is_directory()) continue;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      const PipeDreamProfile profile = read_pipedream_profile(entry.path());
      EXPECT_EQ(pipedream_text(profile), get_file(entry.path())) << entry.path();
      EXPECT_EQ(parse_pipedream_profile(pipedream_text(profile), "again"), profile);
      ++files;
    }
  }
  EXPECT_EQ(files, 15);
}

// Sums and counts that were taken from the files with another program.
TEST(PipeDreamProfile, HoldsWhatTheFilesSay) {
  struct Case {
    const char* name;
    std::size_t nodes, edges;
    double forward_milliseconds, backward_milliseconds, activation_gigabytes, parameter_megabytes;
  };
  for (const Case& expected : {Case{"vgg16", 41, 41, 251.9, 438.6, 14.759, 553.4},
                               Case{"gnmt", 48, 58, 33.5, 55.9, 0.409, 775.1},
                               Case{"gnmt_large", 96, 122, 182.6, 337.9, 1.356, 1110.9},
                               Case{"nasnetalarge", 1251, 1468, 416.1, 249.2, 8.587, 369.0}}) {
    const PipeDreamProfile profile =
        read_pipedream_profile(kProfiles / expected.name / "graph.txt");
    EXPECT_EQ(profile.nodes.size(), expected.nodes);
    EXPECT_EQ(profile.edges.size(), expected.edges);
    double forward = 0, backward = 0, activations = 0, parameters = 0;
    for (const PipeDreamNode& node : profile.nodes) {
      forward += node.forward_milliseconds;
      backward += node.backward_milliseconds;
      activations += node.output_bytes();
      parameters += node.parameter_bytes;
    }
    EXPECT_NEAR(forward, expected.forward_milliseconds, 0.06) << expected.name;
    EXPECT_NEAR(backward, expected.backward_milliseconds, 0.06) << expected.name;
    EXPECT_NEAR(activations / 1e9, expected.activation_gigabytes, 6e-4) << expected.name;
    EXPECT_NEAR(parameters / 1e6, expected.parameter_megabytes, 0.06) << expected.name;
  }
}

TEST(PipeDreamProfile, ReadsListsStagesAndDescriptionsWithCommas) {
  const PipeDreamProfile profile = parse_pipedream_profile(
      "a -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=1.500, "
      "backward_compute_time=2.250, activation_size=[8.0; 16.0; 4.0], parameter_size=4.000 -- "
      "stage_id=3\r\n\nb -- ReLU -- " +
          std::string(kFields) + "\n\ta -- b\n",
      "graph.txt");
  ASSERT_EQ(profile.nodes.size(), 2U);
  const PipeDreamNode& node = profile.nodes[0];
  EXPECT_EQ(node.description, "Conv2d(3, 64, kernel_size=(3, 3))");
  EXPECT_EQ(node.output_bytes(), 28);
  EXPECT_EQ(node.activation_bytes.size(), 3U);
  EXPECT_EQ(node.seconds(), 0.00375);
  EXPECT_EQ(node.stage, 3);
  EXPECT_EQ(profile.nodes[1].stage, -1);
  EXPECT_EQ(profile.edges, (std::vector<PipeDreamEdge>{{0, 1}}));
}

TEST(PipeDreamProfile, AnErrorNamesFileAndLine) {
  const std::string node = std::string("a -- ReLU -- ") + kFields + "\n";
  EXPECT_EQ(error_of(node + "\ta -- b\n"),
            "graph.txt line 2: no line before this one describes \"b\"");
  EXPECT_EQ(error_of(node + "\n" + node), "graph.txt line 3: a second node called \"a\"");
  EXPECT_EQ(error_of(node + "\ta -- a\n"), "graph.txt line 2: \"a\" leads to itself");
  EXPECT_EQ(error_of(node + "\ta\n"), "graph.txt line 2: an edge is \"<tab>FROM -- TO\"");
  EXPECT_NE(error_of("").find("describes no node"), std::string::npos);
  EXPECT_NE(error_of("PK\x03\x04\n").find("graph.txt line 1: a node is"), std::string::npos);
  EXPECT_NE(error_of("a -- ReLU -- forward_compute_time=1\n").find("4 fields"), std::string::npos);
  for (const char* wrong : {"nan", "-1", "1e31", "inf", "", "1.0x", "0x10"}) {
    const std::string text = fmt::format(
        "a -- ReLU -- forward_compute_time={}, backward_compute_time=2.000, activation_size=8.0, "
        "parameter_size=4.000",
        wrong);
    EXPECT_EQ(error_of(text),
              fmt::format("graph.txt line 1: \"{}\" is not a number from 0 to 1e30", wrong));
  }
  for (const char* list : {"[1.0", "[]", "[1.0; ]", "[1.0, 2.0]"}) {
    EXPECT_NE(error_of(fmt::format("a -- ReLU -- forward_compute_time=1, backward_compute_time=1, "
                                   "activation_size={}, parameter_size=1",
                                   list))
                  .find("graph.txt line 1: "),
              std::string::npos)
        << list;
  }
}

TEST(PipeDreamProfile, ACycleIsRefused) {
  std::string text;
  for (const char* name : {"a", "b", "c"}) text += fmt::format("{} -- ReLU -- {}\n", name, kFields);
  EXPECT_NE(error_of(text + "\ta -- b\n\tb -- c\n\tc -- b\n").find("cycle"), std::string::npos);
}

TEST(PipeDreamProfile, AMissingFileIsNamed) {
  try {
    read_pipedream_profile("nowhere/graph.txt");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("nowhere/graph.txt"), std::string::npos);
  }
}

}  // namespace
}  // namespace pipetrain
