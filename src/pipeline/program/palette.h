// How each kind of instruction looks, in the terminal, in SVG and in traces alike.
#pragma once

#include <vector>

#include "pipeline/program/program.h"

namespace pipetrain {

struct KindLook {
  char letter;              // as in the text of a schedule
  const char* word;         // "forward"
  const char* shade;        // one character that fills a cell without colours
  const char* css;          // class of an SVG rectangle
  const char* fill;         // its colour: blue against orange can be told apart by nearly everybody
  int terminal;             // background below light text, of xterm's 256 colours
  int terminal_next_chunk;  // below dark text: other stages that a device holds
};

const KindLook& look_of(Kind kind);

/// True for what occupies a device's compute lane with work: compute instructions and updates.
bool is_work(Kind kind);

/// [stages]: the how many-th of the device's stages each is, from 0; meaningless for the others.
std::vector<int> chunks_on(const Program& program, int device);

}  // namespace pipetrain
