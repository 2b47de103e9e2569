// A run in MLflow's file store: DIR/0/RUN with meta.yaml, and a file per parameter and metric.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/output/scalars.h"

namespace pipetrain {

class MlflowRun {
 public:
  /// A run in the experiment "Default" of `store`, which is made; an empty path: writes nothing.
  /// `id_file`: keeps the run's id, by which a resumed run `goes_on` in its place. Error
  /// (kResource) when it cannot be written; later the first such error is a warning.
  MlflowRun(const std::filesystem::path& store, const std::filesystem::path& id_file, bool goes_on,
            std::string name, const std::vector<std::pair<std::string, std::string>>& parameters);

  void step(const StepReport& report) { write(report.step, scalars_of(report)); }
  void evaluation(const EvaluationReport& report) { write(report.step, scalars_of(report)); }
  /// Writes down how the run has ended.
  void end(bool success);

 private:
  enum class Status : std::uint8_t { kRunning = 1, kFinished = 3, kFailed = 4 };

  void write(std::int64_t step, const Scalars& scalars);
  void write_meta(Status status) const;
  void warning_on_error(const std::function<void()>& write);

  std::filesystem::path folder_;  // empty: writes nothing
  std::string id_, name_;
  std::int64_t start_ = 0;  // milliseconds
  bool has_warned_ = false;
};

}  // namespace pipetrain
