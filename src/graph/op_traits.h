// OpTraits: properties of an operator that passes, kernels and reports use, stated once in its
// definition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace pipetrain {

/// A set of operands or results, by index (below 32).
class Slots {
 public:
  constexpr Slots() = default;
  constexpr Slots(std::initializer_list<unsigned> slots) {
    for (const unsigned slot : slots) bits_ |= 1U << slot;
  }
  constexpr bool contains(std::size_t slot) const {
    return slot < 32 && ((bits_ >> slot) & 1U) != 0;
  }

 private:
  std::uint32_t bits_ = 0;
};

/// The kind of work, for the report of where the time of a step goes.
enum class KernelKind : std::uint8_t {
  kProduct,      // matrix products, convolutions, recurrences, attention: compute-bound
  kRows,         // norms, softmax, pooling, sums and gathers of rows
  kElementwise,  // element by element: memory-bound
  kReorder,      // copies, also into another layout
  kUnstated,     // no operator's
};
inline constexpr int kKernelKinds = 4;
/// "products", "rows", "element-wise", "reorders". Not for kUnstated.
std::string_view name_of(KernelKind kind);

/// Which tensors choose_precision() may store in a narrow type.
struct PrecisionRule {
  enum Kind : std::uint8_t {
    kUnstated,  // no operator's
    kFloat,     // all results are float32
    kProduct,   // `operands` are rounded, and `results` may be stored in a narrow type
    kFirst,     // result 0 has the type of operand 0: elements are moved, selected or averaged
    kAllFirst,  // the same for all results
    kJoined,    // result 0 has the common type of all operands, which it concatenates
    kAsLarge,  // result 0 has the common type of all operands of its size; smaller ones are widened
  };
  Kind kind = kUnstated;
  Slots operands = {}, results = {};  // kProduct

  /// Whether results consist of elements of operand 0 or of all operands, or of values close to
  /// them.
  constexpr bool moves() const { return kind == kFirst || kind == kAllFirst || kind == kJoined; }
};

/// How choose_layouts() treats an operator's feature maps.
enum class LayoutRule : std::uint8_t {
  kUnstated,     // no operator's
  kRowMajor,     // row-major, all of them
  kConvolution,  // a convolution: channel-blocked or channels last
  kPositions,    // a reduction, which reads channels last if it is over height and width
  kFollows,      // the layout of its operands
  kWholeBlocks,  // the same, if it joins, splits or slices channels at multiples of a block
};

/// How a float32 kernel runs on tensors that are stored in a narrow type.
struct ChunkRule {
  enum Kind : std::uint8_t {
    kUnstated,  // no operator's
    kWhole,     // on whole tensors: all operands are widened first
    kCopies,    // it only copies, so it supports narrow elements directly
    kElements,  // in chunks of the elements
    kChannels,  // in chunks of the channels of (N, C, ...)
    kSamples,   // in chunks of the first axis
  };
  Kind kind = kUnstated;
  // kSamples:
  Slots shared = {};    // operands that all samples read
  int mask = -1;        // an operand that all samples read unless it has four axes
  bool summed = false;  // every sample adds to the results
  bool axis = false;    // the attribute `axis`, the last one by default, must not be the first axis
};

/// Whether an operator can be a step of a fused chain (ops/fused/fused.h), and over which types.
enum class Fusion : std::uint8_t {
  kUnstated,    // no operator's
  kNever,       //
  kFloats,      // floats to a float
  kComparison,  // two floats or integers, or for Equal bools, to a bool
  kLogic,       // bools to a bool
  kTest,        // a float to a bool
  kChoice,      // a bool and two numbers of one type to that type
  kConversion,  // a number or bool to another type
};

struct OpTraits {
  KernelKind kind = KernelKind::kUnstated;
  PrecisionRule precision = {};
  LayoutRule layout = LayoutRule::kUnstated;
  ChunkRule chunks = {};
  Fusion fusion = Fusion::kUnstated;
};

}  // namespace pipetrain
