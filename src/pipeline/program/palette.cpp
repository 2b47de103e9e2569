#include "pipeline/program/palette.h"

namespace pipetrain {

const KindLook& look_of(Kind kind) {
  static const KindLook kForward = {'F', "forward", "░", "f", "#3b7dd8", 26, 75};
  static const KindLook kBackward = {'B', "backward", "▓", "b", "#d9791f", 166, 215};
  static const KindLook kInput = {'I', "input gradient", "▓", "i", "#b8860b", 94, 179};
  static const KindLook kWeight = {'W', "weight gradient", "▒", "w", "#2a9d74", 29, 79};
  static const KindLook kRecompute = {'R', "recompute", "┄", "r", "#7f95bd", 60, 146};
  static const KindLook kReduce = {'A', "reduce", "═", "a", "#6b7280", 242, 242};
  static const KindLook kSync = {'G', "gradient sync", "═", "g", "#6b7280", 242, 242};
  static const KindLook kUpdate = {'U', "update", "█", "u", "#8659b5", 97, 183};
  static const KindLook kSend = {'S', "send", "─", "s", "#94a3b8", 245, 245};
  static const KindLook kReceive = {'R', "receive", "─", "v", "#94a3b8", 245, 245};
  switch (kind) {
    case Kind::kForward:
      return kForward;
    case Kind::kBackward:
      return kBackward;
    case Kind::kBackwardInput:
      return kInput;
    case Kind::kBackwardWeight:
      return kWeight;
    case Kind::kRecompute:
      return kRecompute;
    case Kind::kReduce:
      return kReduce;
    case Kind::kGradientSync:
      return kSync;
    case Kind::kSend:
      return kSend;
    case Kind::kReceive:
      return kReceive;
    case Kind::kUpdate:
      break;
  }
  return kUpdate;
}

bool is_work(Kind kind) { return is_compute(kind) || kind == Kind::kUpdate; }

std::vector<int> chunks_on(const Program& program, int device) {
  std::vector<int> chunks;
  int next = 0;
  for (int s = 0; s < program.stages; ++s) {
    chunks.push_back(next);
    if (program.replica_on(s, device) >= 0) ++next;
  }
  return chunks;
}

}  // namespace pipetrain
