// Where each stage's work on each unit stands in a program's lists: what producers and consumers of
// a transfer are looked up in.
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
  /// Reads the lists of a program whose stages and units are in range. Of duplicates the last
  /// counts.
  explicit ComputeTable(const Program& program);

  const Place& at(Kind kind, int stage, int unit) const;
  /// What makes the data of this edge for a unit: the forward, or the backward with respect to
  /// inputs.
  Place producer(const Edge& edge, int unit) const;
  /// What first reads it.
  Place consumer(const Edge& edge, int unit) const;

 private:
  Place activation_or_gradient(int stage, int unit, bool gradient) const;

  std::size_t stages_, units_;
  std::vector<Place> places_;
};

}  // namespace pipetrain
