#include "ops/kernel/logged_kernel.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "base/output_file.h"
#include "graph/op.h"
#include "tensor/dtype.h"

namespace pipetrain {
namespace {

const char* log_file() {
  static const char* const file = std::getenv("PIPETRAIN_KERNEL_LOG");
  return file;
}

class LoggedKernel final : public Kernel {
 public:
  LoggedKernel(std::unique_ptr<Kernel> kernel, std::string line)
      : kernel_(std::move(kernel)), line_(std::move(line)) {}
  void run(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
           const RunContext& context) override {
    kernel_->run(inputs, outputs, context);
    if (!line_.empty()) log_kernel(std::exchange(line_, {}));
  }
  std::size_t workspace_bytes() const override { return kernel_->workspace_bytes(); }

 private:
  std::unique_ptr<Kernel> kernel_;
  std::string line_;
};

}  // namespace

void log_kernel(std::string_view line) {
  if (!log_file()) return;
  // A single write, so that lines of several threads and processes do not mix.
  write_text(log_file(), OutputMode::kAppend, fmt::format("{}\n", line));
}

std::unique_ptr<Kernel> logged(std::unique_ptr<Kernel> kernel, const KernelRequest& request,
                               std::string_view by) {
  if (!kernel || !log_file()) return kernel;
  const std::string_view type =
      request.inputs.empty() ? std::string_view("none") : name_of(request.inputs[0].dtype);
  return std::make_unique<LoggedKernel>(std::move(kernel),
                                        fmt::format("{} {} {}", by, request.node.op->name, type));
}

}  // namespace pipetrain
