// Positions of compute instructions in a program's lists, for looking up the producer and consumer
// of a transfer.
#pragma once

#include <vector>

#include "pipeline/program/program.h"

namespace pipetrain {

/// A place in a program: Program::device[device][index]. Absent: index -1.
struct Place {
  int device = -1;
  int index = -1;

  bool exists() const { return index >= 0; }
};

class ComputeTable {
 public:
  /// Reads the lists of a program whose stages and micro-batches are in range. The last of
  /// duplicates wins.
  explicit ComputeTable(const Program& program);

  const Place& at(Kind kind, int stage, int micro_batch) const;
  /// The producer of this edge's data for a micro-batch: its forward, or its backward or input
  /// gradient.
  Place producer(const Edge& edge, int micro_batch) const;
  /// The first consumer.
  Place consumer(const Edge& edge, int micro_batch) const;

 private:
  Place activation_or_gradient(int stage, int micro_batch, bool gradient) const;

  std::size_t stages_, micro_batches_;
  std::vector<Place> places_;
};

}  // namespace pipetrain
