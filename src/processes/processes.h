// The processes of a distributed run, started by mpirun or srun, and messages between them. MPI is
// a plugin that is loaded only when there are several processes.
//
//   process 0:  post_send(to 1, tag) ──────────────┐        test … done: the memory may be reused
//   process 1:          post_receive(from 0, tag) ─┴→ …     test … done: it is there
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pipetrain {

/// Point-to-point messages. No call blocks; calls may come from several threads. Messages with the
/// same sender, receiver and tag arrive in the order of sending. Sender and receiver pass the same
/// number of bytes, at most kMostBytes.
class Processes {
 public:
  using Request = std::int64_t;  // too many for an int in a long run
  static constexpr std::size_t kMostBytes = std::size_t{1} << 30;
  /// Over a network, messages of at most this size are sent without waiting for the receiver.
  static constexpr std::size_t kEagerBytes = std::size_t{256} << 10;

  virtual ~Processes() = default;
  /// The library and its version.
  virtual std::string name() const = 0;
  /// The machine that this process runs on.
  virtual std::string host() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The memory must not change until test() says that the request is done.
  virtual Request post_send(const void* from, std::size_t bytes, int peer, int tag) = 0;
  virtual Request post_receive(void* to, std::size_t bytes, int peer, int tag) = 0;
  /// Whether a request is done; a finished request is released. Error (kDevice) when it failed.
  virtual bool test(Request request) = 0;
  /// Cancels a receive that has not started.
  virtual void cancel(Request receive) = 0;
  /// Whether the user allows processes on a host to read each other's memory.
  virtual bool may_read_memory() const = 0;
  /// Copies memory of another process on this host. `process`: its process ID; `from`: an address
  /// in it. Returns 0 or an error number such as ESRCH.
  virtual int read_memory(std::int64_t process, std::uint64_t from, void* to,
                          std::size_t bytes) = 0;
  /// Regular shutdown, called by all processes.
  virtual void leave() = 0;
  /// Aborts all processes.
  virtual void abort(int code) noexcept = 0;
};

/// The type of the plugin's symbol `pipetrain_processes`.
struct ProcessesEntry {
  const char* build_id;
  /// Joins the others. Error (kResource) when their number differs from what the launcher
  /// announced.
  Processes* (*join)(int expected);
};

/// What a launcher sets in the environment: the number of processes and the rank of this one.
struct Launch {
  int size = 1;
  int rank = 0;
  std::string launcher;  // "mpirun"
};
/// Reads the environment of this process. Error (kUsage) when srun started several that are not
/// connected to each other.
Launch launch_of_environment();
/// Error (kUsage), with the command that works, where torchrun, TensorFlow's launchers (TF_CONFIG)
/// or the DMLC tracker have started several processes: each would train a model of its own.
void refuse_unconnected_launchers();

/// Called before abort(): arranges that Open MPI's mpirun is ended if it still runs so many seconds
/// later, as it waits without end for a host that can no longer be reached. Does nothing where
/// another program has started this process.
void end_launcher_after(double seconds);

/// Joins the processes of the launcher through libpipetrain_mpi.so (see device/plugin.h for where
/// it is looked for); null when there is only one. Error (kResource) when there is no such plugin
/// or it belongs to another build, and (kUsage) of refuse_unconnected_launchers() if neither mpirun
/// nor srun has started this process, or torchrun runs in between.
Processes* join_processes();

}  // namespace pipetrain
