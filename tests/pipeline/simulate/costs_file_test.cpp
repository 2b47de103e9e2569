#include "pipeline/simulate/costs_file.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/example_programs.h"

namespace pipetrain {
namespace {

std::string document(const std::string& fields) {
  return R"({"schema": "pipetrain.costs/1", )" + fields + "}";
}

TEST(CostsFile, ReadsEveryField) {
  Program program = lowered(options_for("1f1b", 2, 3));
  const Costs costs = parse_costs(document(R"(
      "stages": [{"forward": 1, "backward": 3, "update": 4, "reduce": 5},
                 {"forward": 2, "backward_input": 3, "backward_weight": 4, "recompute": 6}],
      "link": {"latency": 0.5, "bytes_per_second": 8},
      "edges": [{"from": 1, "to": 0, "bytes": 16, "latency": 0.25}],
      "units": [1, 1, 0.5], "devices": [1, 2], "gradient_sync": 7, "transfers": "rendezvous")"),
                                  "c.json", program);
  ASSERT_EQ(costs.stage.size(), 2U);
  EXPECT_EQ(costs.stage[0].backward_input, 1.5);
  EXPECT_EQ(costs.stage[0].recompute, 1);
  EXPECT_EQ(costs.stage[0].update, 4);
  EXPECT_EQ(costs.stage[0].reduce, 5);
  EXPECT_EQ(costs.stage[1].backward, 7);
  EXPECT_EQ(costs.stage[1].recompute, 6);
  ASSERT_EQ(costs.edge_link.size(), 2U);
  EXPECT_EQ(costs.edge_link[0].latency_seconds, 0.5);
  EXPECT_EQ(costs.edge_link[1].latency_seconds, 0.25);
  EXPECT_EQ(costs.edge_link[1].bytes_per_second, 8);
  EXPECT_EQ(program.edges[1].bytes_per_micro_batch, 16);
  EXPECT_EQ(costs.micro_batch_scale.back(), 0.5);
  EXPECT_EQ(costs.device_scale.back(), 2);
  EXPECT_EQ(costs.gradient_sync_seconds, 7);
  EXPECT_EQ(costs.transfers, TransferMode::kRendezvous);
}

TEST(CostsFile, OneStageStandsForAll) {
  Program program = generate(options_for("gpipe", 4, 6));
  const Costs costs =
      parse_costs(document(R"("stages": [{"forward": 1, "backward": 2}])"), "c.json", program);
  EXPECT_DOUBLE_EQ(simulate(program, costs).makespan, (6 + 3) * 3);
}

TEST(CostsFile, ErrorsNameTheField) {
  Program program = generate(options_for("1f1b", 3, 4));
  const auto expect = [&](const std::string& fields, const std::string& message) {
    try {
      parse_costs(document(fields), "c.json", program);
      ADD_FAILURE() << fields;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(error.message().find(message), std::string::npos) << error.message();
    }
  };
  const std::string stages = R"("stages": [{"forward": 1, "backward": 2}])";
  expect(R"("link": {})", "stages");
  expect(R"("stages": [{"forward": 1}])", "stages[0]");
  expect(R"("stages": [{"forward": -1, "backward": 2}])", "stages[0].forward");
  expect(R"("stages": [{"forward": 1, "backward": 2}, {"forward": 1, "backward": 2}])",
         "has 2 entries, but the schedule '1f1b' has 3 stages");
  expect(stages + R"(, "edges": [{"from": 0, "to": 2}])", "edges[0] is an edge");
  expect(stages + R"(, "units": [1])", "units has 1 numbers");
  // With less, the time of a transfer is no finite number.
  for (const char* slow : {"0", "1e-320", "0.0009"})
    expect(stages + R"(, "link": {"bytes_per_second": )" + slow + "}",
           "link.bytes_per_second must be at least 0.001");
  expect(stages + R"(, "transfers": "slow")", "transfers is buffered or rendezvous");
  expect(stages + R"(, "stagse": 1)", "stagse");
}

}  // namespace
}  // namespace pipetrain
