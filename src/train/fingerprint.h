// Fingerprints of networks and data sets, so that a checkpoint is not resumed with others.
#pragma once

#include <string>

#include "data/rows/dataset.h"
#include "onnx_io/model.h"

namespace pipetrain {

/// SHA-256 of a network: operators, attributes, names, types and shapes, and its constants that are
/// not floating-point (shapes, axes, indices). Weights are not included.
std::string fingerprint(const OnnxModel& model);

/// "SAMPLES samples, CRC-32C of some of them".
std::string fingerprint(const Dataset& dataset);

/// The same of all samples where they take at most 1 GiB, else of 4,096: where one differs, so do
/// the data of two processes.
std::string content_fingerprint(const Dataset& dataset);

}  // namespace pipetrain
