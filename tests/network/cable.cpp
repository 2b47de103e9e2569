// cable NAMESPACE NAMESPACE DELAY_US MBIT: joins two network namespaces by a TUN device `wire0` in
// each, with a delay and a rate in each direction, for kernels without netem. Says "up" when the
// devices are there. Stopped (SIGSTOP), the cable is cut. Counts the bytes of each direction, and
// writes the sums to stdout at SIGTERM.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kMostPacket = 9'100;  // bytes; the devices have an MTU of 9000
constexpr std::size_t kQueue = 4'096;       // packets under way
volatile std::sig_atomic_t ended = 0;

double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

int make_device(const char* name) {
  const int own = open("/proc/self/ns/net", O_RDONLY);
  const int space = open((std::string("/var/run/netns/") + name).c_str(), O_RDONLY);
  if (own < 0 || space < 0 || setns(space, CLONE_NEWNET) != 0) fail(name);
  close(space);
  const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
  if (device < 0) fail("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strcpy(request.ifr_name, "wire0");
  if (ioctl(device, TUNSETIFF, &request) != 0) fail("wire0");
  if (setns(own, CLONE_NEWNET) != 0) fail("setns");
  close(own);
  return device;
}

struct Packet {
  std::vector<char> bytes;
  double due = 0;
};

struct Direction {
  int from = 0, to = 0;
  std::deque<Packet> packets;
  double free_at = 0;
  unsigned long long bytes = 0;

  bool has_room() const { return packets.size() < kQueue; }
  void take(double delay, double bytes_per_second) {
    std::array<char, kMostPacket> buffer;
    for (int i = 0; i < 64 && has_room(); ++i) {
      const ssize_t size = read(from, buffer.data(), buffer.size());
      if (size <= 0) return;
      free_at = std::max(free_at, now()) + static_cast<double>(size) / bytes_per_second;
      packets.push_back({{buffer.data(), buffer.data() + size}, free_at + delay});
      bytes += static_cast<unsigned long long>(size);
    }
  }
  void give() {
    for (const double time = now(); !packets.empty() && packets.front().due <= time;) {
      // A packet that the other side does not take is lost, as on any cable.
      [[maybe_unused]] const ssize_t written =
          write(to, packets.front().bytes.data(), packets.front().bytes.size());
      packets.pop_front();
    }
  }
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) return 2;
  const double delay = std::atof(arguments[3]) * 1e-6, rate = std::atof(arguments[4]) * 1e6 / 8;
  const int a = make_device(arguments[1]), b = make_device(arguments[2]);
  std::array<Direction, 2> directions = {Direction{a, b, {}}, Direction{b, a, {}}};
  prctl(PR_SET_TIMERSLACK, 1UL);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  struct sigaction action {};
  action.sa_handler = [](int) { ended = 1; };
  sigaction(SIGTERM, &action, nullptr);
  std::puts("up");
  std::fflush(stdout);
  while (!ended) {
    double next = now() + 1;
    std::array<pollfd, 2> wait{};
    for (std::size_t i = 0; i < directions.size(); ++i) {
      Direction& direction = directions[i];
      direction.take(delay, rate);
      direction.give();
      if (!direction.packets.empty()) next = std::min(next, direction.packets.front().due);
      wait[i] = {direction.from, static_cast<short>(direction.has_room() ? POLLIN : 0), 0};
    }
    const double seconds = std::max(0.0, next - now());
    const timespec time = {
        static_cast<time_t>(seconds),
        static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
    ppoll(wait.data(), wait.size(), &time, nullptr);
  }
  std::printf("%llu %llu\n", directions[0].bytes, directions[1].bytes);
}
