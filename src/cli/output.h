// Results go to stdout, everything else to stderr.
#pragma once

#include <cstdio>
#include <string>

namespace pipetrain {

inline void print(const std::string& result) { std::fputs(result.c_str(), stdout); }

}  // namespace pipetrain
