// pipetrain new: an ONNX file for people who have none yet.
#include "base/error.h"
#include "cli/commands.h"

namespace pipetrain {

int new_command(Options&) { PT_FAIL(kUsage, "zoo"); }

}  // namespace pipetrain
