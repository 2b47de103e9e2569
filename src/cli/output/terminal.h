// Progress output: a live line on a terminal, plain lines elsewhere.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "train/trainer.h"

namespace pipetrain {

/// Whether output to a descriptor may be colored: a capable terminal, and NO_COLOR is not set.
bool colours_suit(int descriptor);

/// The columns of the terminal behind a descriptor; COLUMNS overrides, 100 where it is unknown.
std::size_t terminal_width(int descriptor);

/// A text in lines of at most `width` columns where its words allow that. The first line begins at
/// column `begin`, the others are indented.
std::string wrapped_at_words(std::string_view text, std::size_t begin, std::size_t indent,
                             std::size_t width);

/// A message of the log, or an error, for the terminal behind stderr.
std::string message_for_terminal(std::string_view text);

class Progress {
 public:
  /// `log_every`: steps between two lasting lines; 0: by the clock, one a second at most and fewer
  /// in long runs. `seconds`: the time limit of the run; 0: none. `total_steps`: of the run.
  Progress(int log_every, bool quiet, double seconds, std::int64_t total_steps);
  void step(const StepReport& report);
  /// The busy time of the devices in an asynchronous round, which single steps do not have.
  void utilisation(const std::vector<double>& busy) { busy_ = busy; }
  void evaluation(const EvaluationReport& report);
  /// A status line on request, regardless of --log-every.
  void status(const StepReport& report);
  /// Clears the live lines before other output.
  void clear();
  /// Leaves them where they are: other output lies below them already.
  void keep_lines() { lines_ = 0; }
  /// Ends live lines, and prints the last step and validation if they were not printed yet.
  void finish();

 private:
  void lasting(const std::string& text);
  void live(const std::string& text);
  double pause(double time) const;
  double remaining_seconds(const StepReport& report) const;
  void average(const StepReport& report);

  int log_every_;
  bool quiet_;
  bool terminal_, color_;
  double seconds_, start_;
  int lines_ = 0;  // live ones on the screen
  double last_line_ = 0, last_live_ = 0, last_validation_ = 0;
  std::int64_t total_steps_;
  std::string unsaid_step_, unsaid_validation_;
  double second_step_ = 0;    // when the first step was done
  std::int64_t first_ = 0;    // that step
  std::vector<double> busy_;  // of the devices, an average over the last steps
};

/// The table of stages with what is predicted: for `plan` and the start of a run.
std::string plan_table(const PlannedNetwork& network);

}  // namespace pipetrain
