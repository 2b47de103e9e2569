// Letters between process 0, which has the weights, and the processes of other replicas:
//
//   process 0 → others   a part with the weights to compute it from; a copy to keep; the end
//   others → process 0   its gradient; requests; that the copy is kept
//
// A thread of each process says meanwhile that it is alive.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "pipeline/transport/message_thread.h"
#include "processes/letters.h"
#include "train/replica_weights.h"
#include "train/run_requests.h"

namespace pipetrain {

class ReplicaMail {
 public:
  struct Receivers {
    // In process 0.
    std::function<void(int replica, PartGradient)> gradient;
    std::function<void(const RunRequests&)> requests;
    std::function<void(const std::string& failure)> copy_is_kept;
    // In the others.
    std::function<void(int replica, const DataPart&, const NamedTensors& weights)> part;
    std::function<void(std::string_view piece)> copy;  // train/commits.h
    std::function<void(RunEnd)> end;
  };
  /// Made by all processes at the same time. `timeout_seconds`: how long one may be silent.
  ReplicaMail(ProcessGroup& group, double timeout_seconds, Receivers receivers);

  void send_part(int process, int replica, const DataPart& part, const NamedTensors& weights);
  void send_copy(int process, const std::string& piece);
  void send_end(RunEnd end);
  void send_gradient(int replica, const PartGradient& gradient);
  void send_requests(const RunRequests& requests);
  void send_copy_is_kept(const std::string& failure);
  /// Hands on what has come; false: nothing. Error when another process has failed or is silent.
  bool poll();
  /// At the end of the run, by all processes: waits until everything that was sent has come.
  void close() { letters_.close(); }

 private:
  ProcessGroup& group_;
  Receivers receivers_;
  Letters letters_;
  MessageThread thread_;
};

}  // namespace pipetrain
