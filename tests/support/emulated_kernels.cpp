#include "support/emulated_kernels.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <stdexcept>
#include <utility>

#include "device/kernel_compiler_cuda.h"
#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/kernels_cuda_launch.h"
#include "ops/fused/fused_operands_cuda.h"
#include "ops/matmul/matmul_epilogue.h"
#include "ops/matmul/matmul_epilogue_cuda.h"
#include "ops/norm/batch_norm_launch_cuda.h"
#include "ops/registry/registry.h"
#include "optim/update_cuda.h"
#include "support/temporary_directory.h"

namespace pipetrain::test {
namespace {

/// Kernels by the host's compiler, from the sources that NVRTC compiles for GPUs.
class HostCompiler final : public KernelCompiler {
 public:
  std::shared_ptr<CompiledKernel> compile(const std::string& source, const char*,
                                          std::string_view) override {
    const auto found = kernels_.find(source);
    if (found != kernels_.end()) return found->second;
    if (is_noting) noted_.emplace(source, static_cast<int>(noted_.size()));
    return nullptr;
  }

  int build() {
    is_noting = false;
    const TemporaryDirectory folder;
    const std::string source = folder / "kernels.cpp", library = folder / "kernels.so",
                      words = folder / "words";
    {
      std::ofstream file(source);
      for (const auto& [text, number] : noted_) {
        file << "#define fused fused_" << number << "\n#define element element_" << number << "\n"
             << text << "#undef fused\n#undef element\n";
      }
    }
    const std::string root = PIPETRAIN_SOURCE_DIR;
    const std::string command =
        "'" PIPETRAIN_HOST_COMPILER
        "' -std=c++20 -O0 -fPIC -shared -ffp-contract=off -Wall -Wextra -Werror "
        "-Wno-unknown-pragmas -Wno-unused-parameter -Wno-unused-variable"
#ifdef __SANITIZE_ADDRESS__
        " -fsanitize=address"
#endif
        " -I'" +
        root + "/tests/emulator' -I'" + root + "/src' -I'" + root + "/tests' '" + source +
        "' -o '" + library + "' > '" + words + "' 2>&1";
    const int status = std::system(command.c_str());
    void* const handle = status == 0 ? dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    std::ifstream said(words);
    std::string text((std::istreambuf_iterator<char>(said)), {});
    if (status == 0 && !handle) text = dlerror();
    if (!handle) throw std::runtime_error(text);
    for (const auto& [key, number] : noted_) {
      const auto kernel = reinterpret_cast<HostKernel::Function>(
          dlsym(handle, ("fused_" + std::to_string(number)).c_str()));
      if (!kernel) throw std::runtime_error("a generated kernel is missing");
      kernels_[key] = std::make_shared<HostKernel>(kernel);
    }
    return static_cast<int>(std::exchange(noted_, {}).size());
  }
  void forget() { kernels_.clear(); }

  bool is_noting = false;

 private:
  class HostKernel final : public CompiledKernel {
   public:
    using Function = void (*)(const FusedOperands&);
    explicit HostKernel(Function function) : function_(function) {}
    void launch(unsigned blocks, unsigned threads, const void* parameter,
                const CudaQueue& queue) override {
      const auto& operands = *static_cast<const FusedOperands*>(parameter);
      PT_LAUNCH(function_, blocks, threads, queue.stream, operands);
    }

   private:
    Function function_;
  };

  std::map<std::string, int> noted_;
  std::map<std::string, std::shared_ptr<CompiledKernel>> kernels_;
};

HostCompiler& host_compiler() {
  static HostCompiler compiler;
  return compiler;
}

/// As narrow as a device can be, so that threads walk over many elements.
const CudaQueue kQueue = {
    .stream = nullptr, .multiprocessors = 1, .libraries = nullptr, .compiler = &host_compiler()};

__global__ void returns_early(float* out) {
  if (threadIdx.x < 3) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

__global__ void exchanges_early(float* out) {
  if (threadIdx.x < 3) return;
  out[threadIdx.x] = __shfl_xor_sync(PT_FULL_WARP, 1.0F, 1);
}

__global__ void waits_elsewhere(float* out) {
  if (threadIdx.x < 3) {
    __syncthreads();
  } else {
    out[threadIdx.x] = __shfl_xor_sync(PT_FULL_WARP, 1.0F, 1);
  }
}

__global__ void lacks_a_barrier(float* out) {
  __shared__ float shared[64];
  shared[threadIdx.x] = static_cast<float>(threadIdx.x + 100 * blockIdx.x);
  out[64 * blockIdx.x + threadIdx.x] = shared[(threadIdx.x + 1) % 64];
}

__global__ void reads_behind(float* out) { out[threadIdx.x] = out[threadIdx.x + 64]; }

std::string words_of(void (*kernel)(float*)) {
  std::vector<float> out(64);
  try {
    PT_LAUNCH(kernel, 1, 32, nullptr, out.data());
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace

#ifdef __SANITIZE_ADDRESS__
namespace {

/// Gives a kernel memory that ends where its tensors end, so that the sanitizer sees whoever reads
/// or writes behind them.
class KernelInExactMemory final : public Kernel {
 public:
  explicit KernelInExactMemory(std::unique_ptr<Kernel> kernel) : kernel_(std::move(kernel)) {}
  void run(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
           const RunContext& context) override {
    std::vector<std::unique_ptr<std::byte[]>> blocks;
    // A result may lie over an input that is as large.
    std::map<std::pair<const void*, std::size_t>, std::byte*> known;
    const auto block = [&](const void* from, std::size_t bytes) {
      std::byte*& at = known[{from, bytes}];
      if (at) return at;
      blocks.emplace_back(new std::byte[bytes]);
      at = blocks.back().get();
      std::memcpy(blocks.back().get(), from, bytes);
      return blocks.back().get();
    };
    std::vector<Tensor> in(inputs.begin(), inputs.end()), out(outputs.begin(), outputs.end());
    for (auto* tensors : {&in, &out}) {
      for (Tensor& tensor : *tensors) {
        if (tensor) tensor.data = block(tensor.data, tensor.bytes());
      }
    }
    RunContext there = context;
    if (kernel_->workspace_bytes() > 0)
      there.workspace = block(context.workspace, kernel_->workspace_bytes());
    kernel_->run(in, out, there);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i]) std::memcpy(outputs[i].data, out[i].data, out[i].bytes());
    }
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (in[i]) std::memcpy(inputs[i].data, in[i].data, in[i].bytes());
    }
  }
  std::size_t workspace_bytes() const override { return kernel_->workspace_bytes(); }

 private:
  std::unique_ptr<Kernel> kernel_;
};

}  // namespace

std::unique_ptr<Kernel> make_emulated_kernel(const KernelRequest& request) {
  std::unique_ptr<Kernel> kernel = make_cuda_kernel(request, kQueue);
  if (!kernel) return nullptr;
  return std::make_unique<KernelInExactMemory>(std::move(kernel));
}
#else
std::unique_ptr<Kernel> make_emulated_kernel(const KernelRequest& request) {
  return make_cuda_kernel(request, kQueue);
}
#endif

void note_generated_kernels() { host_compiler().is_noting = true; }
int compile_generated_kernels() { return host_compiler().build(); }
void forget_generated_kernels() { host_compiler().forget(); }

int emulated_orders() {
#ifdef __SANITIZE_ADDRESS__
  return 1;
#else
  return 3;
#endif
}
void set_emulated_order(int order) { emulator::set_order(static_cast<emulator::Order>(order)); }

std::vector<std::string_view> emulated_operators() {
  std::vector<std::string_view> out;
  for (const auto& [op, make] : handwritten_cuda_kernels()) out.push_back(op);
  return out;
}

namespace {

class ProductInParts final : public Kernel {
 public:
  ProductInParts(const KernelRequest& request, bool own_bias)
      : epilogue_(product_epilogue(request)),
        operands_(own_bias ? 2 : std::ssize(request.inputs)),
        adds_bias_(own_bias && epilogue_.bias),
        finish_bytes_((finish_bytes(epilogue_) + 63) / 64 * 64) {
    const Node product = product_of(request.node);
    const std::vector<TensorType> operands(request.inputs.begin(),
                                           request.inputs.begin() + operands_);
    product_ = make_kernel(Backend::kReference, {product, operands, {request.outputs[0]}});
  }
  void run(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
           const RunContext& context) override {
    RunContext behind = context;
    behind.workspace += finish_bytes_;
    const Tensor& product = product_place(epilogue_, outputs);
    product_->run(inputs.first(static_cast<std::size_t>(operands_)), {&product, 1}, behind);
    if (adds_bias_) add_bias(product, inputs, kQueue);
    finish_product(epilogue_, inputs, outputs, context.workspace, kQueue);
  }
  std::size_t workspace_bytes() const override {
    return finish_bytes_ + product_->workspace_bytes();
  }

 private:
  ProductEpilogue epilogue_;
  std::ptrdiff_t operands_;  // of the library's product
  bool adds_bias_;
  std::size_t finish_bytes_;
  std::unique_ptr<Kernel> product_;
};

}  // namespace

std::unique_ptr<Kernel> make_product_in_parts(const KernelRequest& request, bool own_bias) {
  return std::make_unique<ProductInParts>(request, own_bias);
}
bool library_is_asked(const KernelRequest& request) { return product_epilogue(request).by_library; }

std::array<std::vector<float>, 3> emulated_around_batch_norm(const AroundBatchNorm& given) {
  std::array<std::vector<float>, 3> out = {std::vector<float>(given.variance.size()),
                                           std::vector<float>(given.variance.size()),
                                           std::vector<float>(given.dy.size())};
  batch_norm::launch_inverse_deviations(given.channels, given.epsilon, given.variance.data(),
                                        out[1].data(), kQueue);
  batch_norm::launch_variances(given.channels, given.epsilon, out[1].data(), out[0].data(), kQueue);
  const float most = std::numeric_limits<float>::infinity();
  const batch_norm::Channels shape{given.images,
                                   given.channels,
                                   given.positions,
                                   given.epsilon,
                                   0,
                                   most,
                                   std::numeric_limits<float>::denorm_min(),
                                   true,
                                   given.channels_last};
  batch_norm::launch_batch_norm_passed(shape, given.dy.data(), given.x.data(), given.scale.data(),
                                       given.mean.data(), given.variance.data(), given.bias.data(),
                                       out[2].data(), kQueue);
  return out;
}

void emulated_update(std::int64_t step, double gradient_scale, double average_decay,
                     std::span<const DeviceUpdate> parameters) {
  update_cuda(step, gradient_scale, average_decay, parameters, kQueue);
}

bool is_emulated_update(const OptimizerSettings& settings) { return is_updated_on_gpu(settings); }

std::vector<double> emulated_sums_of_squares(std::span<const std::span<const float>> values) {
  std::vector<double> sums(values.size()), scratch(values.size() * Device::kScratch);
  sums_of_squares_cuda(values, sums.data(), scratch.data(), kQueue);
  return sums;
}

void emulated_add(std::span<float> to, std::span<const float> from) {
  launch_add(to.data(), from.data(), static_cast<std::int64_t>(to.size()), kQueue);
}

std::string emulated_divergence() {
  return words_of(returns_early) + "; " + words_of(exchanges_early) + "; " +
         words_of(waits_elsewhere);
}

void emulated_read_behind_memory() {
  std::vector<float> out(64);
  PT_LAUNCH(reads_behind, 1, 32, nullptr, out.data());
}

bool emulated_order_shows_a_missing_barrier() {
  std::vector<float> results[2];
  for (const int order : {0, 1}) {
    set_emulated_order(order);
    results[order].assign(128, 0.0F);
    PT_LAUNCH(lacks_a_barrier, 2, 64, nullptr, results[order].data());
  }
  set_emulated_order(0);
  return results[0] != results[1];
}

}  // namespace pipetrain::test
