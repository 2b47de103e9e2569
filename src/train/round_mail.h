// What the processes of an asynchronous round tell each other while it runs:
//
//   others → process 0   the losses of their micro-batches, requests, the contents of their stages
//   process 0 → others   what is done after a boundary (round_saves.h)
#pragma once

#include <functional>
#include <mutex>
#include <string>

#include "pipeline/stage/stage_content.h"
#include "processes/letters.h"
#include "train/run_requests.h"

namespace pipetrain {

class RoundMail {
 public:
  struct Loss {
    int unit = 0;
    double sum = 0, correct = 0;
  };
  struct Decision {
    int units = 0;  // of the boundary
    bool saves = false;
    RunEnd end = RunEnd::kDone;
  };
  struct Content {
    int stage = 0, units = 0;
    double copy_seconds = 0;
    StageContent content;
  };
  /// Called one at a time, by a thread that polls.
  struct Receivers {
    std::function<void(const Loss&)> loss;
    std::function<void(const RunRequests&)> requests;
    std::function<void(Content)> content;
    std::function<void(const Decision&)> decision;
  };

  RoundMail(ProcessGroup& group, Receivers receivers)
      : group_(group), receivers_(std::move(receivers)), letters_(group) {}

  bool leads() const { return group_.leads(); }
  void send(const Loss& loss);
  void send(const RunRequests& requests);
  void send(const Content& content);
  void send(const Decision& decision);

  /// Hands on what has come.
  void poll();
  /// Polls until `ready`. Error when another process fails.
  void wait_until(const std::function<bool()>& ready);
  /// At the end of the round: hands on all that was sent, from all processes.
  void close();

 private:
  void hand_on(const Letter& letter);

  ProcessGroup& group_;
  Receivers receivers_;
  std::mutex mutex_;
  Letters letters_;
};

}  // namespace pipetrain
