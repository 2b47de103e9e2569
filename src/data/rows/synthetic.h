// Synthetic data generated for the model's inputs, for benchmarks and runs without data. The labels
// follow a fixed random rule, so that training reduces the loss.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/filling.h"
#include "data/rows/data_spec.h"
#include "data/rows/dataset.h"

namespace pipetrain {

/// Sample i is a pure function of (seed, i); nothing is stored.
///  - classes: float inputs are noise plus a coarse pattern of the class, ids lean to the class;
///  - a label per position, shaped like an input: decided by the input at that position;
///  - numbers: a fixed random linear map of the first float input (the input itself if of the
///    same shape);
///  - token sequences: with probability 3/4 a token is followed by its fixed random successor.
std::shared_ptr<const Dataset> make_synthetic(const DataSpec& spec, std::size_t samples,
                                              std::uint64_t seed);

/// How an input is filled in when data lack it (base/filling.h).
std::optional<Filling> known_filling(const ModelInput& input);
/// "ones", "zeros", "positions 0, 1, 2, …"
std::string_view name_of(Filling filling);

}  // namespace pipetrain
