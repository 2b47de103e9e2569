// What a person sees while a run goes on: a live line on a terminal, plain lines elsewhere.
#pragma once

#include <string>

#include "train/trainer.h"

namespace pipetrain {

class Progress {
 public:
  Progress(int log_every, bool quiet);
  void step(const StepReport& report);
  void evaluation(const EvaluationReport& report);
  /// A line of status that was asked for, whatever the cadence.
  void status(const StepReport& report);
  /// Ends a live line.
  void finish();

 private:
  void line(const std::string& text, bool lasting);
  std::string text_of(const StepReport& report) const;

  int log_every_;
  bool quiet_;
  bool terminal_;
  bool open_ = false;
  double last_line_ = 0;
  double average_seconds_ = 0;
};

/// The table of stages with what is predicted: for `plan` and the start of a run.
std::string plan_table(const Session& session);

}  // namespace pipetrain
