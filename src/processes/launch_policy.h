// What `launch` does next: which hosts train, when a failed host is used again, when to give up.
// The decisions depend only on the reported events and the time, and have no side effects.
//
//   found(), answered(), ended() ──→ next() = kProbe │ kStart │ kRun │ kStop │ kWait │ kEnd
//                                       └──→ carried out by run_launch()
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "processes/host_list.h"
#include "processes/restart_policy.h"

namespace pipetrain {

struct LaunchLimits {
  int least_hosts = 1;
  int most_hosts = 0;      // 0: all
  int most_processes = 0;  // that the run has devices for; 0: any number
  int most_restarts = 3;   // in a row that complete no new step
  /// That the run can go on with. Of a new run: those of its first start less `spare_processes`, if
  /// that is set.
  int least_processes = 1;
  std::optional<int> spare_processes = {};
};

/// How one start of the training processes has ended.
struct LaunchEnd {
  ProcessEnd process;
  std::string host;  // whose process failed first; empty: not known
};

struct LaunchStep {
  enum Kind {
    kProbe,  // find out whether `hosts` answer
    kStart,  // start the training processes on `hosts`
    kRun,    // look after them until `until`
    kStop,   // have them save and end: other hosts are there now
    kWait,   // none run: wait until `until`
    kEnd,    // with exit code `code`
  };
  Kind kind = kEnd;
  std::vector<LaunchHost> hosts = {};
  double until = 0;
  int code = 0;
  std::string reason = {};  // of an end that training itself has not explained; of kStop
};

class LaunchPolicy {
 public:
  explicit LaunchPolicy(const LaunchLimits& limits)
      : limits_(limits),
        restarts_(limits.most_restarts),
        least_processes_(limits.least_processes) {}

  /// The hosts that there are now, in order of preference.
  void found(std::vector<LaunchHost> hosts);
  void answered(const std::string& host, bool answers, double now);
  /// The training processes have ended. Returns what to tell the user; empty: nothing.
  std::string ended(const LaunchEnd& end, double now);
  /// They have been asked to end, as kStop or the user has said.
  void stopped(bool by_user);
  /// Training has ended with exit code 0: there is nothing left to stop.
  bool is_finished() const { return end_ && end_->code == 0; }

  LaunchStep next(double now);

  static constexpr double kFirstCoolDown = 10, kLongestCoolDown = 100;
  /// Of hosts that cannot join: each try interrupts training.
  static constexpr double kLongestWithoutJoining = 600;
  /// For enough hosts to return.
  static constexpr double kPatience = 600;
  /// Between looks at the list of hosts.
  static constexpr double kLookSeconds = 5;
  /// A run that has just begun is not stopped for another host.
  static constexpr double kSettleSeconds = 30;

 private:
  struct Health {
    double cool_down = 0;  // the last one; 0: it has not failed
    double absent_until = 0;
    bool answers = false;  // since training last ended
  };
  bool is_cool(const LaunchHost& host, double now) const;
  bool answers(const LaunchHost& host) const;
  void drop(const std::string& host, double now, double longest = kLongestCoolDown);
  std::string leave_out_added(const std::vector<LaunchHost>& ran, const LaunchEnd& end, double now);
  std::string refuse_number(const std::vector<LaunchHost>& ran, const ProcessEnd& end);
  std::vector<LaunchHost> within_limits(const std::vector<LaunchHost>& hosts) const;
  bool can_start(const std::vector<LaunchHost>& hosts) const;
  LaunchStep next_of_running(double now) const;
  LaunchStep without_enough(const std::vector<LaunchHost>& there, double now);

  LaunchLimits limits_;
  RestartPolicy restarts_;
  std::vector<LaunchHost> listed_;
  std::map<std::string, Health> health_;
  std::vector<LaunchHost> running_;  // empty: none run
  std::vector<LaunchHost> trained_;  // the last ones that completed a step; empty: none has
  int least_processes_;
  std::set<int> refused_;  // numbers of processes that the run does not take
  double started_ = 0, not_before_ = 0;
  bool has_started_ = false;
  bool stops_ = false, stops_for_user_ = false;
  std::optional<double> short_since_;  // too few hosts
  std::optional<LaunchStep> end_;
};

/// What a launch acts on; tests have hosts and processes of their own.
class LaunchWorld {
 public:
  virtual ~LaunchWorld() = default;
  virtual double now() = 0;
  virtual std::vector<LaunchHost> hosts() = 0;
  /// Of each host, whether processes can be started there. Ends early when the user asks to stop.
  virtual std::vector<bool> answer(const std::vector<LaunchHost>& hosts) = 0;
  virtual void start(const std::vector<LaunchHost>& hosts) = 0;
  /// Waits until then, or until the processes end or the user asks to stop.
  virtual std::optional<LaunchEnd> wait(double until) = 0;
  /// Has the processes save and end.
  virtual void stop() = 0;
  /// The signal by which the user has asked to stop; 0: none.
  virtual int asked_to_stop() = 0;
  virtual void say(const std::string& text) = 0;
  virtual void say_why_it_ends(const std::string& reason) = 0;
};

/// Trains to the end; returns the exit code. Error (kResource) where nothing could be started.
int run_launch(const LaunchLimits& limits, LaunchWorld& world);

}  // namespace pipetrain
