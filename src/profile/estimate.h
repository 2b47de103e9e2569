// Estimates kernel times from a device's data sheet, to plan for devices that are not available.
#pragma once

#include <string>

#include "profile/profile.h"

namespace pipetrain {

/// The rates of one device.
struct DeviceSpeed {
  std::string name;              // "H100": printed
  double flops_per_second = 0;   // of a well-shaped matrix product
  double bytes_per_second = 0;   // of its memory, reading and writing
  double launch_seconds = 3e-6;  // that every kernel takes, however small
};

/// One core of an ordinary CPU, where nothing has been measured.
DeviceSpeed ordinary_core();

/// Additions and multiplications of one run of a node; 0 where its operator counts none.
double node_flops(const Graph& graph, const Node& node);

/// FLOPs of training per sample, without work done once per step and without recomputation.
double flops_of_sample(const TrainingGraph& training);

/// Bytes that one run of a node moves between memory and the processor: every operand once, except
/// that an operator without arithmetic (a copy, a selection) reads no more of an operand than it
/// writes. `is_read` is values_read(): outputs that nobody reads are not written.
double node_bytes(const Graph& graph, const Node& node, const std::vector<bool>& is_read);

/// The profile by the roofline model (Williams, Waterman, Patterson 2009): a node takes the longer
/// of its arithmetic and its traffic, after its launch. Views take nothing, no node has a
/// workspace, and adding a weight gradient to its accumulator moves three bytes a byte. An update
/// does the same, and reads and writes the optimizer's state, of `slots` numbers per parameter.
/// Error (kUsage) when a speed is not positive.
Profile estimate_profile(const TrainingGraph& training, const DeviceSpeed& device, int slots = 0);

/// How many threads of a stage pay off, of `most`: several threads cost a start and an end in every
/// kernel, which small kernels do not make up for, and which takes many times as long while other
/// programs use the cores. By shapes alone, since threads may change bits.
int useful_threads(const TrainingGraph& training, int most);

}  // namespace pipetrain
