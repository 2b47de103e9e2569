// OpTraits, what passes, kernels and reports must know of an operator besides its types: stated
// once, in its definition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace pipetrain {

/// A set of operands or results, by their places (below 32).
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

/// What kind of work an operator is, for telling where the time of a step goes.
enum class KernelKind : std::uint8_t {
  kProduct,      // matrix products, convolutions, recurrences, attention: bound by arithmetic
  kRows,         // norms, softmax, pooling, sums and gathers of rows
  kElementwise,  // element by element: bound by memory
  kReorder,      // copies into another layout or place
  kUnstated,     // no operator's
};
inline constexpr int kKernelKinds = 4;
/// "products", "rows", "element-wise", "reorders". Not for kUnstated.
std::string_view name_of(KernelKind kind);

/// Which tensors choose_precision() may store narrow.
struct PrecisionRule {
  enum Kind : std::uint8_t {
    kUnstated,  // no operator's
    kFloat,     // all results are float32
    kProduct,   // `operands` are rounded, and `results` may be stored narrow
    kFirst,     // result 0 as operand 0: elements are moved, or neighbours chosen or averaged
    kAllFirst,  // the same for all results
    kJoined,    // result 0 as all operands, which it consists of
    kAsLarge,   // result 0 as all operands that are as large as it; smaller ones are widened
  };
  Kind kind = kUnstated;
  Slots operands = {}, results = {};  // kProduct

  /// Whether results consist of elements of operand 0, or of all operands, or are close to them.
  constexpr bool moves() const { return kind == kFirst || kind == kAllFirst || kind == kJoined; }
};

/// What choose_layouts() makes of an operator's feature maps.
enum class LayoutRule : std::uint8_t {
  kUnstated,     // no operator's
  kRowMajor,     // row-major, all of them
  kConvolution,  // a convolution: blocks of channels, or channels last
  kPositions,    // a reduction, which reads channels last where it is over height and width
  kFollows,      // the layout that one of the operands has already
  kWholeBlocks,  // the same, for what concatenates or slices channels at multiples of a block
};

/// How a kernel for float32 runs on tensors that are stored narrow.
struct PieceRule {
  enum Kind : std::uint8_t {
    kUnstated,  // no operator's
    kWhole,     // at once: all operands are widened first
    kCopies,    // it only copies, so it takes narrow elements as they are
    kElements,  // in pieces of the elements
    kChannels,  // in pieces of the channels of (N, C, ...)
    kSamples,   // in pieces of the first axis
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
  PieceRule pieces = {};
  Fusion fusion = Fusion::kUnstated;
};

}  // namespace pipetrain
