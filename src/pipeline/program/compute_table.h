// Where each stage's work on each micro-batch stands in a program's lists: what producers and
// consumers of a transfer are looked up in.
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
  /// Reads the lists of a program whose stages and micro-batches are in range. Of duplicates the
  /// last counts.
  explicit ComputeTable(const Program& program);

  const Place& at(Kind kind, int stage, int micro_batch) const;
  /// What makes the data of this edge for a micro-batch: the forward, or the backward with respect
  /// to inputs.
  Place producer(const Edge& edge, int micro_batch) const;
  /// What first reads it.
  Place consumer(const Edge& edge, int micro_batch) const;

 private:
  Place activation_or_gradient(int stage, int micro_batch, bool gradient) const;

  std::size_t stages_, micro_batches_;
  std::vector<Place> places_;
};

}  // namespace pipetrain
