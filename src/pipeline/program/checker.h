// The implementation of check(): one method per group of rules, in check*.cpp.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/index.h"
#include "pipeline/program/check.h"
#include "pipeline/program/compute_table.h"
#include "pipeline/program/program.h"
#include "pipeline/program/replica_rows.h"

namespace pipetrain {

class Checker {
 public:
  Checker(const Program& program, ErrorKind blame) : program_(program), blame_(blame) {}

  /// Throws at the first violated rule. Later rules rely on earlier ones.
  void run() const;

 private:
  /// A number of a program as an index.
  /// True if a number is an index into `count` things.
  static bool inside(int number, std::size_t count) { return number >= 0 && at(number) < count; }

  void check_sizes() const;
  void check_replicas() const;
  bool kind_is_known(Kind kind) const;
  void check_instructions() const;
  void check_edges() const;
  void check_coverage() const;
  void check_placement(const ReplicaRows& rows) const;
  void check_local_order(const ComputeTable& table) const;
  void check_micro_batch_order(const ReplicaRows& rows) const;
  void check_updates(const ReplicaRows& rows) const;
  void check_gradient_sync() const;
  void check_collectives() const;
  void check_transfers() const;
  void check_transfer_records() const;
  bool crosses_devices(const Edge& edge, int micro_batch) const;
  void check_transfer_places(const ComputeTable& table) const;
  void check_channels() const;
  void check_progress() const;
  void check_activations(const ReplicaRows& rows) const;
  void check_receive_buffers() const;
  std::vector<int> versions_on_first_stage(const ReplicaRows& rows) const;
  void check_versions(const ReplicaRows& rows) const;

  template <class... Values>
  [[noreturn]] void fail(CheckRule rule, fmt::format_string<Values...> format,
                         Values&&... values) const {
    throw Error(blame_,
                fmt::format("schedule '{}' breaks rule {} ({}): {}", printable(program_.schedule),
                            static_cast<int>(rule), to_text(rule),
                            fmt::format(format, std::forward<Values>(values)...)));
  }

  std::string where(std::size_t device, std::size_t index) const {
    return fmt::format("device {}, instruction {} ({})", device, index,
                       to_text(program_, program_.device[device][index]));
  }
  std::string where(const Place& place) const { return where(at(place.device), at(place.index)); }

  /// Calls visit(device, index, instruction) for every instruction, device by device in list order.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (std::size_t d = 0; d < program_.device.size(); ++d) {
      for (std::size_t i = 0; i < program_.device[d].size(); ++i) {
        visit(d, i, program_.device[d][i]);
      }
    }
  }

  std::size_t micro_batch_key(int stage, int micro_batch) const {
    return at(stage) * at(program_.micro_batches) + at(micro_batch);
  }
  std::size_t micro_batch_keys() const { return at(program_.stages) * at(program_.micro_batches); }

  const Program& program_;
  const ErrorKind blame_;
};

}  // namespace pipetrain
