// What held-out data say of a model that is being trained.
#pragma once

#include <cstdint>
#include <memory>

#include "train/metrics.h"

namespace pipetrain {

class Predictor;
class Session;

/// Evaluates the session's evaluation data once, between rounds.
EvaluationReport evaluate(Session& session, std::int64_t step, double epoch);

/// How often the label is among the k largest outputs, which the loss does not tell.
class TopK {
 public:
  explicit TopK(Session& session);
  ~TopK();

  /// Runs the network once more over the evaluation data and adds what it finds to the report.
  void add(EvaluationReport& report, int k);

 private:
  Session& session_;
  std::unique_ptr<Predictor> predictor_;  // made when it is first asked for
};

}  // namespace pipetrain
