// Computes the gradient of a part from given weights, on a runtime of its own.
#pragma once

#include <memory>

#include "data/loading/batch_reader.h"
#include "data/loading/sampler.h"
#include "train/batch_source.h"
#include "train/pipeline_run.h"
#include "train/replica_weights.h"

namespace pipetrain {

class PartWorker {
 public:
  /// Computes on the run's runtime.
  explicit PartWorker(PipelineRun& run);
  /// Makes another runtime, for a replica that is the `place`-th of `places` which share the cores
  /// of this machine.
  PartWorker(const PipelineRun& run, int replica, int place, int places);
  ~PartWorker();
  PartWorker(const PartWorker&) = delete;
  PartWorker& operator=(const PartWorker&) = delete;

  /// Sets the weights of the next parts; those that are left out stay as they are.
  void set_weights(const NamedTensors& weights);
  /// Reads the samples of a part and computes its gradient. Masks and augmentation depend on the
  /// number of the part, as otherwise on that of the step.
  PartGradient compute(const DataPart& part);
  /// Of its runtime, whose only stage has the whole model.
  const ArenaBytes& memory() const { return runtime_.memory(0); }

 private:
  PartWorker(const PipelineRun& run, Runtime* runtime, std::unique_ptr<Runtime> own);

  const PipelineRun& run_;
  const Network& network_;
  const std::unique_ptr<Runtime> own_;
  Runtime& runtime_;
  BatchReader reader_;
  const Sampler sampler_;
  BatchUnits units_;
};

}  // namespace pipetrain
