#include "ops/registry/host_kernel.h"

#include <vector>

#include "ops/kernel/logged_kernel.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

class HostKernel final : public Kernel {
 public:
  HostKernel(Stream& stream, const KernelRequest& request)
      : stream_(stream),
        kernel_(make_kernel(Backend::kCpu, request)),
        workspace_(kernel_->workspace_bytes()) {
    for (const TensorType& type : request.inputs) in_.push_back(place(type));
    for (const TensorType& type : request.outputs) out_.push_back(place(type));
  }

  void run(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
           const RunContext& context) override {
    std::vector<Tensor> in(inputs.begin(), inputs.end()), out(outputs.begin(), outputs.end());
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (!in[i]) continue;
      stream_.copy(in_[i].data(), in[i].data, in[i].bytes());
      in[i].data = in_[i].data();
    }
    stream_.synchronize();
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i]) out[i].data = out_[i].data();
    }
    RunContext here = context;
    here.workspace = workspace_.data();
    kernel_->run(in, out, here);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i]) stream_.copy(outputs[i].data, out[i].data, out[i].bytes());
    }
    stream_.synchronize();  // the next run writes these buffers
  }

 private:
  static Buffer place(const TensorType& type) {
    return Buffer(type.dtype == DType::kUndefined ? 0 : type.bytes());
  }

  Stream& stream_;
  std::unique_ptr<Kernel> kernel_;
  Buffer workspace_;
  std::vector<Buffer> in_, out_;
};

}  // namespace

std::unique_ptr<Kernel> make_host_kernel(Stream& stream, const KernelRequest& request) {
  return logged(std::make_unique<HostKernel>(stream, request), request, "host");
}

std::unique_ptr<Kernel> make_kernel(Stream& stream, const KernelRequest& request) {
  if (auto kernel = stream.device().make_kernel(stream, request)) return kernel;
  return make_host_kernel(stream, request);
}

}  // namespace pipetrain
