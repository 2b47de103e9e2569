// TensorBoard's event files: records of protobuf messages, each with its length and two masked
// CRC-32C sums, as TFRecord has them. Written by hand: two messages with a handful of fields.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/output/scalars.h"

namespace pipetrain {

/// One record: u64 length, masked CRC of it, the data, masked CRC of them. Little-endian.
std::string tensorboard_record(std::string_view data);
/// An Event with scalars by tag.
std::string tensorboard_event(double wall_time, std::int64_t step,
                              const std::vector<std::pair<std::string, double>>& scalars);

class TensorBoard {
 public:
  /// Makes events.out.tfevents.SECONDS.HOST.PID in a folder, which is made; an empty folder: writes
  /// nothing. Error (kResource) when it cannot be made.
  explicit TensorBoard(const std::filesystem::path& folder);
  ~TensorBoard();
  TensorBoard(const TensorBoard&) = delete;
  TensorBoard& operator=(const TensorBoard&) = delete;

  void step(const StepReport& report) { write(report.step, scalars_of(report)); }
  void evaluation(const EvaluationReport& report) { write(report.step, scalars_of(report)); }

 private:
  void write(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
  void write(const std::string& record);

  std::string path_;
  int file_ = -1;
  bool has_warned_ = false;
};

}  // namespace pipetrain
