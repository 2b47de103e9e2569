// Messages of any size between process 0 and the others while a round runs. Senders do not wait for
// a letter to be received, and receivers poll:
//
//   process 1: post(0, "loss of micro-batch 7")   …   process 0: next() → {1, "loss of …"}
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "processes/process_group.h"

namespace pipetrain {

struct Letter {
  int from = 0;
  std::string bytes;
};

/// One of its kind at a time, made and closed by all processes. Calls may come from several
/// threads.
class Letters {
 public:
  explicit Letters(ProcessGroup& group);
  /// Without close(), what is on its way is kept for as long as the group lives.
  ~Letters();
  Letters(const Letters&) = delete;
  Letters& operator=(const Letters&) = delete;

  /// Letters between two processes arrive in the order of posting. One of them is process 0.
  void post(int peer, std::string bytes);
  /// A letter that has come; never blocks. Error when another process has failed or the group was
  /// interrupted.
  std::optional<Letter> next();
  /// Tells every peer that no more letters follow, and waits until all letters have arrived and all
  /// peers have done the same. Returns the letters that next() has not returned.
  std::vector<Letter> close();

 private:
  /// A message and how much of it has come or left.
  struct Message {
    std::uint64_t size = 0;
    std::string bytes;
    std::vector<Processes::Request> requests;
  };
  struct Peer {
    int rank = 0;
    Message incoming = {};
    bool has_size = false;  // the bytes are on their way
    bool closed = false;
  };
  struct State {
    std::list<Message> outgoing;
    std::vector<Peer> peers;
    std::deque<Letter> arrived;
  };
  static constexpr std::uint64_t kEnd = ~std::uint64_t{0};

  void expect(Peer& peer);
  void take_in();
  bool is_done(Message& message);
  void send(int peer, std::uint64_t size, std::string bytes);
  bool is_closed();

  ProcessGroup& group_;
  std::mutex mutex_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace pipetrain
