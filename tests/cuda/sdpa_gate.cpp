// Checks that cuDNN offers fused attention for the backend's graphs on a described GPU, which need
// not be present: sdpa_gate DEVICE.json.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "ops/attention/sdpa_graph_cuda.h"

namespace {

using pipetrain::SdpaGraph;
using pipetrain::SdpaShapes;

struct Case {
  const char* name;
  std::int64_t batch, heads, key_heads, queries, keys, width;
  SdpaShapes::Mask mask;
  bool in_rows;  // (batch, step, heads · width), as linear layers leave it
};

const Case kCases[] = {
    {"GPT-2", 8, 12, 12, 1024, 1024, 64, SdpaShapes::Mask::kCausal, true},
    {"GPT-2, heads first", 8, 12, 12, 1024, 1024, 64, SdpaShapes::Mask::kCausal, false},
    {"BERT", 16, 12, 12, 128, 128, 64, SdpaShapes::Mask::kNone, true},
    {"128 wide", 4, 16, 16, 512, 512, 128, SdpaShapes::Mask::kCausal, true},
    {"32 wide", 4, 6, 6, 256, 256, 32, SdpaShapes::Mask::kCausal, true},
    {"shared keys", 4, 16, 4, 512, 512, 64, SdpaShapes::Mask::kCausal, true},
    {"one sequence reads another", 4, 8, 8, 64, 256, 64, SdpaShapes::Mask::kNone, true},
    {"the last of a longer sequence", 4, 8, 8, 128, 256, 64, SdpaShapes::Mask::kCausalLast, true},
    {"odd length", 2, 4, 4, 77, 77, 64, SdpaShapes::Mask::kNone, true},
};

SdpaShapes shapes_of(const Case& c, bool half) {
  const auto steps = [&](std::int64_t heads, std::int64_t length) {
    return c.in_rows ? SdpaShapes::Steps{length * heads * c.width, c.width, heads * c.width}
                     : SdpaShapes::Steps{length * heads * c.width, length * c.width, c.width};
  };
  return {c.batch,
          c.heads,
          c.key_heads,
          c.queries,
          c.keys,
          c.width,
          steps(c.heads, c.queries),
          steps(c.key_heads, c.keys),
          steps(c.key_heads, c.keys),
          steps(c.heads, c.queries),
          0.125F,
          c.mask,
          half};
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  std::ifstream file(arguments[1]);
  const std::string device((std::istreambuf_iterator<char>(file)), {});
  int refused = 0;
  for (const bool half : {false, true}) {
    int accepted = 0, offered = 0, kept = 0, fewest = 1 << 30;
    for (const Case& c : kCases) {
      for (const char* pass : {"forward", "forward alone", "gradient"}) {
        const std::string which = pass;
        SdpaGraph graph(shapes_of(c, half), which == "gradient", which == "forward");
        std::string reason;
        const pipetrain::PlanCount plans = graph.plans_for(device, &reason);
        if (plans.kept == 0) {
          ++refused;
          std::printf("refused: %s, %s: %s\n", c.name, pass, reason.c_str());
          continue;
        }
        ++accepted;
        offered += plans.offered;
        kept += plans.kept;
        fewest = std::min(fewest, plans.kept);
      }
    }
    std::printf(
        "attention graphs in %s that cuDNN accepts for %s: %d; of %d plans %d are kept, at least "
        "%d of a graph\n",
        half ? "float16" : "bfloat16", arguments[1], accepted, offered, kept,
        accepted > 0 ? fewest : 0);
  }
  std::printf("refused: %d\n", refused);
  return refused > 0 ? 1 : 0;
}
