// What a person sees while a run goes on: a live line on a terminal, plain lines elsewhere.
#pragma once

#include <string>
#include <vector>

#include "train/trainer.h"

namespace pipetrain {

/// Whether what is written to a descriptor may be coloured: a terminal that can, and nobody who
/// said no (NO_COLOR).
bool colours_suit(int descriptor);

class Progress {
 public:
  /// `seconds`: after which the run ends in any case; 0: never.
  Progress(int log_every, bool quiet, double seconds);
  void step(const StepReport& report);
  /// What the devices did in a round without a drain, which no step of it can tell.
  void utilisation(const std::vector<double>& busy) { busy_ = busy; }
  void evaluation(const EvaluationReport& report);
  /// A line of status that was asked for, whatever the cadence.
  void status(const StepReport& report);
  /// Takes the live lines away: something else is going to be written.
  void clear();
  /// Ends live lines.
  void finish();

 private:
  void lasting(const std::string& text);
  void live(const std::string& text);
  double remaining_seconds(const StepReport& report) const;
  void average(const StepReport& report);

  int log_every_;
  bool quiet_;
  bool terminal_, color_;
  double seconds_, start_;
  int lines_ = 0;  // live ones on the screen
  double last_line_ = 0;
  double second_step_ = 0;    // when the first step was done
  std::int64_t first_ = 0;    // that step
  std::vector<double> busy_;  // of the devices, an average over the last steps
};

/// The table of stages with what is predicted: for `plan` and the start of a run.
std::string plan_table(const PlannedNetwork& network);

}  // namespace pipetrain
