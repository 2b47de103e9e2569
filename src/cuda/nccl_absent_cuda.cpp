// Stands in for NCCL where its header was not found.
#include "base/error.h"
#include "cuda/nccl_cuda.h"

namespace pipetrain {

Collectives& nccl_collectives() {
  PT_FAIL(kResource,
          "this build was compiled without NCCL: nccl.h was not found "
          "(Debian: libnccl-dev, PyPI: nvidia-nccl-cu13)");
}

}  // namespace pipetrain
