// Small networks as ONNX models, and sources of fixed data for them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "passes/build.h"
#include "passes/parameters.h"
#include "pipeline/runtime/runtime.h"

namespace pipetrain::test {

/// Convolutions with BatchNorm, dropout, a skip over most of the network and, if asked for, one
/// weight used twice. Input x (batch, 2, 6, 6), output logits (batch, 5).
OnnxModel difficult_network(bool tied);

/// The same input and output with two layers of 512 in between: their products are large enough to
/// be the CPU's own.
OnnxModel wide_network();

/// The same input and output with a table of 5000 rows, looked up at a few numbers made from the
/// input.
OnnxModel table_network();

/// The same input and output with wide convolutions of which two have stride 2 down the picture:
/// the library's kernels for their weight gradients do not add to an accumulator.
OnnxModel strided_network();

/// The same input and output with a codebook, as vector quantization has it: the result of a layer
/// plus the row of the codebook that is chosen for it. The node that compares them takes no
/// gradient of the codebook.
OnnxModel codebook_network();

/// The same input and output with a parameter (1, 2, 128) that is added to the result of a layer:
/// with one sample their gradients are one value.
OnnxModel position_network();

/// A graph of the network for micro-batches of `samples`.
std::unique_ptr<TrainingGraph> training_graph(const OnnxModel& model, std::int64_t samples,
                                              bool training = true,
                                              DType precision = DType::kFloat32,
                                              const ParameterOptions& parameters = {});
/// The same as GPUs train it.
std::unique_ptr<TrainingGraph> graph_for_gpus(const OnnxModel& model, std::int64_t samples,
                                              DType precision);

/// Random samples for difficult_network(), cut into micro-batches of at most `micro_batch`;
/// mini-batches of `batch`.
class FixedData final : public MicroBatchSource {
 public:
  FixedData(std::int64_t samples, std::uint64_t seed);
  /// Prepares a round: micro-batches of one mini-batch starting at sample `first`. variant_of[k] is
  /// the variant of k samples.
  void set_mini_batch(std::int64_t first, std::int64_t samples, std::int64_t micro_batch,
                      std::int64_t step, const std::vector<std::int64_t>& variant_sizes);
  /// Prepares a round of `micro_batches` mini-batches of `batch` samples, one micro-batch each.
  void set_stream(int micro_batches, std::int64_t batch, std::int64_t first_step);

  MicroBatch& acquire(int micro_batch) override {
    return micro_batches_[static_cast<std::size_t>(micro_batch)];
  }
  void release(int) override {}
  double learning_rate(int) const override { return 0.05; }
  std::int64_t updates_before() const override { return first_step_; }
  const std::vector<MicroBatch>& micro_batches() const { return micro_batches_; }

 private:
  MicroBatch make(std::int64_t first, std::int64_t offset, int variant, std::int64_t counted,
                  std::int64_t step) const;

  std::vector<float> x_;
  std::vector<std::int64_t> y_;
  std::vector<MicroBatch> micro_batches_;
  std::int64_t first_step_ = 0;
  bool stream_ = false;
};

}  // namespace pipetrain::test
