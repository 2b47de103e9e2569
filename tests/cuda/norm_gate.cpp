// Checks that cuDNN offers a plan for the backend's batch normalizations on a described GPU, which
// need not be present: norm_gate DEVICE.json. Also compares result sizes with pipetrain's.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "ops/norm/batch_norm.h"
#include "ops/norm/norm_graph_cuda.h"

namespace {

using pipetrain::NormGraph;
using pipetrain::NormShapes;
using pipetrain::Shape;

struct Case {
  const char* name;
  Shape x;
  bool relu;  // behind it
};

const Case kCases[] = {
    {"ResNet-50, first", {32, 64, 112, 112}, true},
    {"ResNet-50, first stage", {32, 64, 56, 56}, true},
    {"ResNet-50, end of a block", {32, 256, 56, 56}, false},
    {"ResNet-50, second stage", {32, 128, 28, 28}, true},
    {"ResNet-50, third stage", {32, 1024, 14, 14}, false},
    {"ResNet-50, last stage", {32, 512, 7, 7}, true},
    {"ResNet-50, last", {32, 2048, 7, 7}, false},
    {"one image", {1, 64, 55, 55}, false},
    {"no positions", {64, 512}, false},
    {"one axis", {16, 32, 100}, false},
    {"three axes", {4, 32, 8, 16, 16}, false},
};

/// From the operators' inference.
NormShapes shapes_of(const Case& c, bool gradient, NormShapes::Precision numbers) {
  const pipetrain::BatchNormShape x(c.x);
  return {gradient, x.images, x.channels, x.positions, gradient ? 0 : 1e-5F, !gradient && c.relu,
          numbers};
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  std::ifstream file(arguments[1]);
  const std::string device((std::istreambuf_iterator<char>(file)), {});
  constexpr const char* kNames[] = {"float32", "bfloat16", "float16"};
  int refused = 0;
  for (const int type : {0, 1, 2}) {
    int accepted = 0, offered = 0, kept = 0, fewest = 1 << 30;
    for (const Case& c : kCases) {
      for (const bool gradient : {false, true}) {
        const NormShapes shapes = shapes_of(c, gradient, static_cast<NormShapes::Precision>(type));
        NormGraph graph(shapes);
        std::string reason;
        if (!NormGraph::infers_sizes(shapes, &reason)) reason = "another size of " + reason;
        pipetrain::PlanCount plans;
        if (reason.empty()) plans = graph.plans_for(device, &reason);
        if (plans.kept == 0) {
          ++refused;
          std::printf("refused: %s in %s, %s: %s\n", c.name, kNames[type],
                      gradient ? "gradient" : "forward", reason.c_str());
          continue;
        }
        ++accepted;
        offered += plans.offered;
        kept += plans.kept;
        fewest = std::min(fewest, plans.kept);
      }
    }
    std::printf(
        "normalizations in %s that cuDNN accepts for %s: %d; of %d plans %d are kept, at least "
        "%d of a graph\n",
        kNames[type], arguments[1], accepted, offered, kept, accepted > 0 ? fewest : 0);
  }
  std::printf("refused: %d\n", refused);
  return refused > 0 ? 1 : 0;
}
