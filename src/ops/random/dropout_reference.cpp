// Dropout, one element at a time.
#include "ops/kernel/element_types.h"
#include "ops/random/dropout.h"

namespace pipetrain {
namespace {

bool is_kept(const DropoutParameters& parameters, PhiloxKey key, std::uint64_t sample,
             std::int64_t element) {
  const auto group = static_cast<std::uint64_t>(element / kDropoutGroup);
  const auto within = static_cast<std::uint32_t>(element % kDropoutGroup);
  const PhiloxBlock numbers = philox(key, dropout_counter(sample, group, within % 8));
  return numbers.word[within / 8] >= parameters.threshold;
}

std::unique_ptr<Kernel> make_dropout(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  return for_element_type<float, double>(request.inputs[0].dtype, [&]<class T>() {
    return make_kernel(
        [parameters = dropout_parameters(request.node.attributes)](
            std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
          const PhiloxKey key = dropout_key(context, parameters.node_key);
          const std::int64_t per_sample = elements_per_sample(in[0].count(), context);
          const auto scale = static_cast<T>(parameters.scale);
          for (std::int64_t i = 0; i < in[0].count(); ++i) {
            const auto sample = static_cast<std::uint64_t>(context.first_sample + i / per_sample);
            const bool kept = is_kept(parameters, key, sample, i % per_sample);
            out[0].as<T>()[i] = kept ? in[0].as<T>()[i] * scale : T{0};
          }
        });
  });
}

constexpr KernelEntry kDropoutReferenceKernels[] = {{"Dropout", make_dropout}};

}  // namespace

std::span<const KernelEntry> dropout_reference_kernels() { return kDropoutReferenceKernels; }

}  // namespace pipetrain
