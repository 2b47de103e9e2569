// Processes that train one model together: a launcher has started them (mpirun, srun), and messages
// go between them. MPI is behind a plugin of its own, which is loaded when there are several.
//
//   process 0:  post_send(to 1, tag) ──────────────┐        test … done: the memory may be reused
//   process 1:          post_receive(from 0, tag) ─┴→ …     test … done: it is there
#pragma once

#include <cstddef>
#include <string>

namespace pipetrain {

/// One of the processes, as it sees the others. Nothing waits. Calls may come from several threads.
/// Messages from one process to another with one tag arrive in the order in which they were sent;
/// sender and receiver name the same number of bytes, at most kMostBytes.
class Processes {
 public:
  using Request = int;
  static constexpr std::size_t kMostBytes = std::size_t{1} << 30;

  virtual ~Processes() = default;
  /// The library and its version.
  virtual std::string name() const = 0;
  /// The machine that this process runs on.
  virtual std::string host() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The memory must stay as it is until test() says that the request is done.
  virtual Request post_send(const void* from, std::size_t bytes, int peer, int tag) = 0;
  virtual Request post_receive(void* to, std::size_t bytes, int peer, int tag) = 0;
  /// Whether a request is done; it is then forgotten. Error (kDevice) when it failed.
  virtual bool test(Request request) = 0;
  /// Takes a receive back that nothing has come for.
  virtual void cancel(Request receive) = 0;
  /// The last call of a process that has done its work; all of them make it.
  virtual void leave() = 0;
  /// Ends all processes at once.
  virtual void abort(int code) noexcept = 0;
};

/// What the plugin's symbol `pipetrain_processes` is.
struct ProcessesEntry {
  const char* build_id;
  /// Joins the others. Error (kResource) when they are not as many as the launcher has said.
  Processes* (*join)(int expected);
};

/// What the environment says of a launcher: how many processes it has started, and which of them
/// this is.
struct Launch {
  int size = 1;
  int rank = 0;
  std::string launcher;  // "mpirun"
};
/// Reads the environment of this process. Error (kUsage) when srun has started several that do not
/// know of each other.
Launch launch_of_environment();

/// Joins the processes that a launcher has started, through libpipetrain_mpi.so (see
/// device/plugin.h for where it is looked for); null when there is one. Error (kResource) when
/// there is no such plugin or it belongs to another build.
Processes* join_processes();

}  // namespace pipetrain
