// How each kind of instruction looks, in the terminal, in SVG and in traces alike.
#pragma once

#include <vector>

#include "pipeline/program/program.h"

namespace pipetrain {

struct KindLook {
  char letter;              // as in the text of a schedule
  const char* word;         // "forward"
  const char* shade;        // fills a cell without colours
  const char* css;          // class of an SVG rectangle
  const char* fill;         // its colour; blue and orange are safe for colour-blind readers
  int terminal;             // background below light text, of xterm's 256 colours
  int terminal_next_chunk;  // below dark text: other stages that a device holds
};

const KindLook& look_of(Kind kind);

/// True for instructions that occupy the compute lane: compute instructions and updates.
bool is_work(Kind kind);

/// [stages]: the index of each stage among the stages of its device.
std::vector<int> chunks_on(const Program& program, int device);

}  // namespace pipetrain
