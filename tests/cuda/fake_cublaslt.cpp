// A fake cuBLASLt, preloaded before the real one: it has kernels for all epilogues, or for those
// that a test selects, and records the calls.
#include <cublasLt.h>

#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace {

struct Operation {
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
};

std::set<int> epilogues = {CUBLASLT_EPILOGUE_DEFAULT,  CUBLASLT_EPILOGUE_BIAS,
                           CUBLASLT_EPILOGUE_GELU,     CUBLASLT_EPILOGUE_GELU_BIAS,
                           CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                           CUBLASLT_EPILOGUE_BGRADA,   CUBLASLT_EPILOGUE_BGRADB};
std::string events;
std::mutex mutex;

}  // namespace

extern "C" {

/// From now on there are kernels for this epilogue as well; for none at all if it is -1.
void fake_cublaslt_has(int epilogue) {
  if (epilogue < 0) epilogues.clear();
  if (epilogue >= 0) epilogues.insert(epilogue);
}
/// The products since the last call.
const char* fake_cublaslt_events() {
  static std::string told;
  const std::lock_guard lock(mutex);
  told = std::exchange(events, {});
  return told.c_str();
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int place = 0;
  *handle = reinterpret_cast<cublasLtHandle_t>(&place);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t,
                                        cudaDataType_t) {
  *operation = reinterpret_cast<cublasLtMatmulDesc_t>(new Operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete reinterpret_cast<Operation*>(operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t) {
  if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE)
    std::memcpy(&reinterpret_cast<Operation*>(operation)->epilogue, value,
                sizeof(cublasLtEpilogue_t));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  const auto epilogue = reinterpret_cast<const Operation*>(operation)->epilogue;
  *found = epilogues.count(static_cast<int>(epilogue)) > 0 ? 1 : 0;
  if (*found > 0) {
    results[0] = {};
    return CUBLAS_STATUS_SUCCESS;
  }
  // It says so in one of three ways.
  if (epilogue == CUBLASLT_EPILOGUE_BIAS) {
    *found = 1;
    results[0].state = CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
  }
  return epilogue == CUBLASLT_EPILOGUE_DEFAULT ? CUBLAS_STATUS_SUCCESS
                                               : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void*,
                              const void*, cublasLtMatrixLayout_t, const void*,
                              cublasLtMatrixLayout_t, const void*, const void*,
                              cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t) {
  const std::lock_guard lock(mutex);
  events +=
      "epilogue " + std::to_string(reinterpret_cast<const Operation*>(operation)->epilogue) + "\n";
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
