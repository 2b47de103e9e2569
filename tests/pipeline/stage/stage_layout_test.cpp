#include "pipeline/stage/stage_layout.h"

#include <gtest/gtest.h>

#include "graph/op.h"
#include "passes/batch_weight_gradients.h"
#include "passes/linearise.h"
#include "pipeline/stage/stage_arena.h"
#include "support/small_networks.h"

namespace pipetrain {
namespace {

TEST(Pack, BuffersAliveTogetherDoNotOverlap) {
  std::uint64_t state = 7;
  const auto random = [&](int limit) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int>((state >> 33) % static_cast<std::uint64_t>(limit));
  };
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::vector<Lifetime> buffers;
    for (int i = 0; i < 40; ++i) {
      const int first = random(30);
      buffers.push_back({static_cast<std::size_t>(1 + random(2000)), first, first + random(6)});
    }
    std::size_t total = 0;
    const std::vector<std::size_t> offsets = pack(buffers, &total);
    std::size_t sum = 0, peak = 0;
    for (int t = 0; t < 40; ++t) {
      std::size_t alive = 0;
      for (const Lifetime& buffer : buffers)
        alive += buffer.first <= t && t <= buffer.last ? (buffer.bytes + 63) / 64 * 64 : 0;
      peak = std::max(peak, alive);
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      EXPECT_EQ(offsets[i] % 64, 0U);
      EXPECT_LE(offsets[i] + buffers[i].bytes, total);
      sum += (buffers[i].bytes + 63) / 64 * 64;
      for (std::size_t j = 0; j < i; ++j) {
        const bool together =
            buffers[i].first <= buffers[j].last && buffers[j].first <= buffers[i].last;
        const bool overlap = offsets[i] < offsets[j] + buffers[j].bytes &&
                             offsets[j] < offsets[i] + buffers[i].bytes;
        EXPECT_FALSE(together && overlap);
      }
    }
    EXPECT_GE(total, peak);
    EXPECT_LE(total, sum);
  }
}

TEST(Pack, FreeRoomInABlockIsTakenFirst) {
  std::uint64_t state = 9;
  const auto random = [&](int limit) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int>((state >> 33) % static_cast<std::uint64_t>(limit));
  };
  int inside = 0;
  for (int repeat = 0; repeat < 50; ++repeat) {
    // Saved values, one behind the other, that die one after the other.
    std::vector<PlacedLifetime> taken;
    std::size_t block = 0;
    for (int i = 0; i < 10; ++i) {
      const auto bytes = static_cast<std::size_t>(1 + random(3000));
      taken.push_back({{bytes, 0, 29 - 3 * i}, block});
      block += (bytes + 63) / 64 * 64;
    }
    std::vector<Lifetime> buffers;
    for (int i = 0; i < 30; ++i) {
      const int first = random(30);
      buffers.push_back({static_cast<std::size_t>(1 + random(2000)), first, first + random(4)});
    }
    std::size_t total = 0;
    const std::vector<PackedPlace> places = pack_into(buffers, taken, block, &total);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      EXPECT_LE(places[i].offset + buffers[i].bytes, places[i].inside ? block : total);
      inside += places[i].inside;
      const auto apart = [&](const Lifetime& other, bool is_inside, std::size_t offset) {
        const bool together = buffers[i].first <= other.last && other.first <= buffers[i].last;
        const bool overlap = places[i].inside == is_inside &&
                             places[i].offset < offset + other.bytes &&
                             offset < places[i].offset + buffers[i].bytes;
        EXPECT_FALSE(together && overlap);
      };
      for (std::size_t j = 0; j < i; ++j) apart(buffers[j], places[j].inside, places[j].offset);
      for (const PlacedLifetime& saved : taken) apart(saved.lifetime, true, saved.offset);
    }
  }
  EXPECT_GT(inside, 500);
}

/// Nothing that a stage needs at one time shares memory, and every edge's values are placed on both
/// ends.
TEST(StageLayout, PlacesEveryValueOfEveryCut) {
  const OnnxModel model = test::difficult_network(/*tied=*/true);
  const auto training = test::training_graph(model, 4);
  const Chain chain = linearise(*training);
  for (int cut = 1; cut < static_cast<int>(chain.order.size()); ++cut) {
    const Slices slices = slice_stages(*training, stages_of_chain(*training, chain, {0, cut}), 2);
    for (int s = 0; s < 2; ++s) {
      for (const bool split : {false, true}) {
        const StageLayout layout = lay_out_stage(*training, slices, s, split);
        for (const ValueEdge& edge : slices.edges) {
          for (const ValueId id : edge.values) {
            const Space space = layout.location.at(id).space;
            if (edge.to == s) EXPECT_EQ(space, Space::kTable);
            if (edge.from == s)
              EXPECT_EQ(space, edge.gradient ? Space::kGradientOut : Space::kForwardOut);
          }
        }
        const StageSlice& slice = slices.stages[static_cast<std::size_t>(s)];
        for (const auto* nodes : {&slice.forward, &slice.backward, &slice.finish}) {
          for (const NodeId node : *nodes) {
            for (const ValueId id : training->graph[node].outputs)
              EXPECT_TRUE(layout.location.contains(id));
          }
        }
      }
    }
  }
}

/// What the planner takes for a cut's bytes is what two stages cut there send each other.
TEST(StageLayout, CutsCostWhatTheirStagesSend) {
  for (const OnnxModel& model :
       {test::difficult_network(/*tied=*/true), test::wide_network(), test::table_network()}) {
    for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
      const auto training = test::training_graph(model, 4, /*training=*/true, precision);
      const Chain chain = linearise(*training);
      for (int cut = 1; cut < static_cast<int>(chain.order.size()); ++cut) {
        const Slices slices =
            slice_stages(*training, stages_of_chain(*training, chain, {0, cut}), 2);
        std::size_t forward = 0, backward = 0;
        for (const ValueEdge& edge : slices.edges)
          (edge.gradient ? backward : forward) += edge.bytes;
        EXPECT_EQ(forward, chain.forward_bytes[static_cast<std::size_t>(cut)]) << cut;
        EXPECT_EQ(backward, chain.backward_bytes[static_cast<std::size_t>(cut)]) << cut;
      }
    }
  }
}

/// What a node of the backward pass writes, or reads for the last time, does not overlap with
/// gradients that are complete.
TEST(StageLayout, GradientsLieWhereActivationsWere) {
  const OnnxModel model = test::difficult_network(/*tied=*/true);
  const auto training = test::training_graph(model, 4);
  const Graph& graph = training->graph;
  const Chain chain = linearise(*training);
  int in_slot = 0;
  for (int cut = 1; cut < static_cast<int>(chain.order.size()); ++cut) {
    const Slices slices = slice_stages(*training, stages_of_chain(*training, chain, {0, cut}), 2);
    const auto root = [&](ValueId id) { return slices.root[static_cast<std::size_t>(id.index)]; };
    for (int s = 0; s < 2; ++s) {
      EXPECT_TRUE(lay_out_stage(*training, slices, s, /*split_backward=*/true,
                                /*one_micro_batch=*/true)
                      .accumulators.empty());
      const StageLayout layout = lay_out_stage(*training, slices, s, false, true);
      const StageSlice& slice = slices.stages[static_cast<std::size_t>(s)];
      std::vector<NodeId> nodes = slice.backward;
      nodes.insert(nodes.end(), slice.finish.begin(), slice.finish.end());
      for (const auto& [i, place] : layout.accumulators) {
        in_slot += place.space == Space::kSlot;
        const ValueId sum = root(training->accumulations[static_cast<std::size_t>(i)].contribution);
        const std::size_t bytes = graph[sum].type.bytes();
        EXPECT_LE(place.offset + bytes,
                  place.space == Space::kSlot ? layout.slot_bytes : layout.temporary_bytes);
        bool complete = false;
        for (const NodeId id : nodes) {
          std::vector<ValueId> values = graph[id].outputs;
          values.insert(values.end(), graph[id].inputs.begin(), graph[id].inputs.end());
          for (const ValueId value : values) {
            if (!value || root(value) == sum) continue;
            const auto found = layout.location.find(root(value));
            if (found == layout.location.end() || found->second.space != place.space) continue;
            const std::size_t begin = found->second.offset;
            const bool overlap = begin < place.offset + bytes &&
                                 place.offset < begin + graph[root(value)].type.bytes();
            const bool writes_sum = graph[id].outputs.size() > 0 && graph[sum].producer == id;
            EXPECT_FALSE((complete || writes_sum) && overlap)
                << graph[id].name << " at cut " << cut << ", stage " << s;
          }
          complete = complete || graph[sum].producer == id;
        }
        EXPECT_TRUE(complete);
      }
    }
  }
  EXPECT_GT(in_slot, 20);
}

/// Which value each 64 bytes of a slot hold, while nodes run.
class SlotContent {
 public:
  SlotContent(const TrainingGraph& training, const Slices& slices, const StageLayout& layout)
      : graph_(training.graph), slices_(slices), layout_(layout) {
    holds_.resize(layout.slot_bytes / 64, -1);
  }

  /// Every operand in the slot must still be there.
  void run(const std::vector<NodeId>& nodes) {
    for (const NodeId node : nodes) {
      for (const ValueId id : graph_[node].inputs) {
        for_each_line(id, [&](int& holds, ValueId root) {
          EXPECT_EQ(holds, root.index) << graph_[root].name << " for " << graph_[node].name;
        });
      }
      for (const ValueId id : graph_[node].outputs)
        for_each_line(id, [&](int& holds, ValueId root) { holds = root.index; });
    }
  }
  bool holds(ValueId id) {
    bool all = true;
    for_each_line(id, [&](const int& holds, ValueId root) { all = all && holds == root.index; });
    return all;
  }

 private:
  template <class Visit>
  void for_each_line(ValueId id, const Visit& visit) {
    if (!id) return;
    const ValueId root = slices_.root[static_cast<std::size_t>(id.index)];
    const auto found = layout_.location.find(root);
    if (found == layout_.location.end() || found->second.space != Space::kSlot) return;
    const std::size_t first = found->second.offset / 64;
    for (std::size_t i = 0; i < aligned(graph_[root].type.bytes()) / 64; ++i)
      visit(holds_.at(first + i), root);
  }

  const Graph& graph_;
  const Slices& slices_;
  const StageLayout& layout_;
  std::vector<int> holds_;
};

TEST(StageLayout, PreparedWeightsLieInTheSlotUntilTheBackwardPassHasReadThem) {
  int prepared = 0, overwritten = 0;
  for (const OnnxModel& model : {test::wide_network(), test::difficult_network(/*tied=*/true)}) {
    const auto training = test::training_graph(model, 4, /*training=*/true, DType::kBFloat16);
    const Chain chain = linearise(*training);
    for (int cut = 1; cut < static_cast<int>(chain.order.size()); ++cut) {
      const Slices slices = slice_stages(*training, stages_of_chain(*training, chain, {0, cut}), 2);
      for (int s = 0; s < 2; ++s) {
        const StageSlice& slice = slices.stages[static_cast<std::size_t>(s)];
        const StageLayout layout = lay_out_stage(*training, slices, s, /*split_backward=*/false,
                                                 /*one_micro_batch=*/true);
        EXPECT_EQ(layout.prepared_in_slot, !slice.prepare.empty());
        EXPECT_EQ(layout.prepared_bytes, 0U);
        EXPECT_FALSE(lay_out_stage(*training, slices, s, false, false).prepared_in_slot);
        SlotContent slot(*training, slices, layout);
        for (int step = 0; step < 2; ++step) {
          slot.run(slice.prepare);
          slot.run(slice.forward);
          slot.run(slice.forward);  // a recompute
          slot.run(slice.backward);
          slot.run(slice.finish);
        }
        for (const NodeId node : slice.prepare) {
          ++prepared;
          overwritten += slot.holds(training->graph[node].outputs[0]) ? 0 : 1;
        }
      }
    }
  }
  EXPECT_GT(prepared, 90);
  EXPECT_GT(overwritten, prepared / 4);
}

// With one sample the gradient of an activation is that of the parameter that is added to it.
// Before the last node has read it, sums over replicas may overwrite its accumulator.
TEST(StageLayout, GradientsThatAreReadAreNotWrittenIntoAccumulators) {
  for (const bool batched : {false, true}) {
    const auto training = test::training_graph(test::position_network(), 1);
    if (batched) EXPECT_GE(batch_weight_gradients(*training, 4), 2);
    const Graph& graph = training->graph;
    const Slices slices = slice_stages(
        *training, stages_of_chain(*training, linearise(*training), std::vector<int>{0}), 1);
    const auto root = [&](ValueId id) { return slices.root[static_cast<std::size_t>(id.index)]; };
    std::set<ValueId> read;
    for (const Node& node : graph.nodes) {
      if (node.op->flags & kView) continue;
      for (const ValueId id : node.inputs) {
        if (id) read.insert(root(id));
      }
    }
    for (const BatchedValue& value : training->batched_values) read.insert(root(value.value));
    int both = 0;
    for (const Accumulation& use : training->accumulations)
      both += read.contains(root(use.contribution));
    EXPECT_EQ(both, 1) << graph.to_text();
    for (const bool split : {false, true}) {
      const StageLayout layout = lay_out_stage(*training, slices, 0, split);
      EXPECT_EQ(layout.direct.size(), training->accumulations.size() - 1);
      for (const auto& [id, accumulation] : layout.direct)
        EXPECT_FALSE(read.contains(id)) << graph[id].name;
    }
  }
}

TEST(StageLayout, TheLossGradientIsWrittenOverTheLogits) {
  const auto training = test::training_graph(test::difficult_network(/*tied=*/false), 4);
  const Slices slices = slice_stages(
      *training, stages_of_chain(*training, linearise(*training), std::vector<int>{0}), 1);
  const StageLayout layout = lay_out_stage(*training, slices, 0, /*split_backward=*/false);
  int found = 0;
  for (const Node& node : training->graph.nodes) {
    if (node.op->name != "SoftmaxCrossEntropyGrad") continue;
    ++found;
    const ValueId logits = slices.root[static_cast<std::size_t>(node.inputs[0].index)];
    EXPECT_EQ(layout.location.at(node.outputs[0]).space, Space::kSlot);
    EXPECT_EQ(layout.location.at(node.outputs[0]).offset, layout.location.at(logits).offset);
  }
  EXPECT_EQ(found, 1);
}

TEST(SharedWorkspaces, OneOnEachDeviceIsEnoughForEveryStage) {
  EXPECT_EQ(shared_workspaces({10, 30, 20, 5}, {{0}, {1}, {1}, {0}}),
            (std::vector<std::size_t>{30, 30, 20, 5}));
  EXPECT_EQ(shared_workspaces({10, 30}, {{0}, {0}}), (std::vector<std::size_t>{10, 30}));
  // Replicas neither share theirs nor run others' work.
  EXPECT_EQ(shared_workspaces({10, 90, 20}, {{0}, {1, 2}, {3}}),
            (std::vector<std::size_t>{20, 90, 20}));
}

}  // namespace
}  // namespace pipetrain
