// Small pipelines for simulations, with the bits that an oracle in one thread gives.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "pipeline/program/program.h"
#include "pipeline/runtime/runtime.h"
#include "pipeline/schedule/generate.h"
#include "simulation/scheduler.h"
#include "support/small_networks.h"

namespace pipetrain::simulation {

struct PipelineCase {
  std::string schedule = "1f1b";
  int stages = 2;
  Backend backend = Backend::kReference;
  bool difficult = false;  // convolutions, BatchNorm, dropout, a skip connection; else four layers
  bool tied = false;       // one weight is used by two layers
  bool clip = false;
  bool recompute = false;
  std::vector<int> replicas;
  int micro_batches = 3;        // the last one is smaller; asynchronous: of one mini-batch each
  bool shares_updates = false;  // replicas
};

class SimulatedPipeline {
 public:
  explicit SimulatedPipeline(const PipelineCase& what);

  const PipelineCase& what() const { return what_; }
  /// In one line, for messages.
  std::string describe() const;
  const Program& program() const { return program_; }
  const std::vector<RuntimeVariant>& variants() const { return variants_; }
  RuntimeOptions options() const;
  /// Prepares the data of a step of a runner's own source.
  void set_step(test::FixedData& data, std::int64_t step) const;
  test::FixedData data() const;
  /// Everything that training changes, as bytes, and the losses so far.
  template <class Reader>
  std::string bits(const Reader& reader, const std::vector<double>& losses) const {
    std::string out(reinterpret_cast<const char*>(losses.data()), losses.size() * sizeof(double));
    for (const std::string& name : names_) {
      const HostTensor& content = reader.read(name);
      if (content)
        out.append(static_cast<const char*>(content.view().data), content.type().bytes());
    }
    return out;
  }
  static double loss(const test::FixedData& data);
  /// The oracle's bits after that many steps.
  const std::string& expected(int steps) const {
    return expected_[static_cast<std::size_t>(steps) - 1];
  }
  static constexpr int kMostSteps = 3;

 private:
  PipelineCase what_;
  OnnxModel model_;
  std::vector<std::unique_ptr<TrainingGraph>> graphs_;
  std::vector<RuntimeVariant> variants_;
  std::vector<std::string> names_;
  Program program_;
  std::vector<std::string> expected_;
};

/// Pipelines, each made when a seed asks for it.
class Pipelines {
 public:
  explicit Pipelines(std::vector<PipelineCase> cases)
      : cases_(std::move(cases)), prepared_(cases_.size()) {}
  const SimulatedPipeline& of(std::uint64_t seed) {
    auto& chosen = prepared_[seed % cases_.size()];
    if (!chosen) chosen = std::make_unique<SimulatedPipeline>(cases_[seed % cases_.size()]);
    return *chosen;
  }

 private:
  std::vector<PipelineCase> cases_;
  std::vector<std::unique_ptr<SimulatedPipeline>> prepared_;
};

/// Data of which a micro-batch fails once.
class FailingOnce final : public MicroBatchSource {
 public:
  FailingOnce(test::FixedData& data, int at, bool at_release)
      : data_(data), left_(at), at_release_(at_release) {}
  MicroBatch& acquire(int micro_batch) override {
    if (!at_release_) count();
    return data_.acquire(micro_batch);
  }
  void release(int micro_batch) override {
    data_.release(micro_batch);
    if (at_release_) count();
  }
  double learning_rate(int micro_batch) const override { return data_.learning_rate(micro_batch); }
  std::int64_t updates_before() const override { return data_.updates_before(); }
  bool has_failed() const { return left_ < 0; }

 private:
  void count() {
    switch_point();
    PT_CHECK(left_-- != 0, kData, "a sample is damaged");
  }
  test::FixedData& data_;
  int left_;
  bool at_release_;
};

}  // namespace pipetrain::simulation
