// Every operator states its traits.
#include "graph/op_traits.h"

#include <gtest/gtest.h>

#include <string>

#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

/// Calls body(op) for all operators of all families.
template <class Body>
void for_all_operators(Body body) {
  for (const OpFamily* family : all_families()) {
    for (const OpDef& op : family->ops) body(op);
  }
}

std::string what_is_missing(const OpTraits& traits) {
  std::string missing;
  if (traits.kind == KernelKind::kUnstated) missing += " kind";
  if (traits.precision.kind == PrecisionRule::kUnstated) missing += " precision";
  if (traits.layout == LayoutRule::kUnstated) missing += " layout";
  if (traits.chunks.kind == ChunkRule::kUnstated) missing += " chunks";
  if (traits.fusion == Fusion::kUnstated) missing += " fusion";
  return missing;
}

TEST(OpTraits, AreAllStated) {
  int count = 0;
  for_all_operators([&](const OpDef& op) {
    EXPECT_EQ(what_is_missing(op.traits), "") << op.name;
    ++count;
  });
  EXPECT_GT(count, 150);
}

TEST(OpTraits, NothingIsStatedByDefault) {
  EXPECT_EQ(what_is_missing({}), " kind precision layout chunks fusion");
}

TEST(OpTraits, AgreeWithFlags) {
  for_all_operators([](const OpDef& op) {
    const OpTraits& traits = op.traits;
    const bool elementwise = (op.flags & kElementwise) && !(op.flags & kRandom);
    EXPECT_EQ(traits.chunks.kind == ChunkRule::kElements, elementwise) << op.name;
    if (elementwise) {
      EXPECT_EQ(traits.kind, KernelKind::kElementwise) << op.name;
      EXPECT_EQ(traits.layout, LayoutRule::kFollows) << op.name;
    }
    // A view has the bytes of its operand.
    if (op.flags & kView) {
      EXPECT_EQ(traits.precision.kind, PrecisionRule::kFirst) << op.name;
    }
  });
}

TEST(OpTraits, SlotsAreThoseNamed) {
  constexpr Slots slots = {0, 2, 31};
  for (const std::size_t slot : {0, 2, 31}) EXPECT_TRUE(slots.contains(slot)) << slot;
  for (const std::size_t slot : {1, 3, 30, 32, 64}) EXPECT_FALSE(slots.contains(slot)) << slot;
}

}  // namespace
}  // namespace pipetrain
