#include "profile/link_measure.h"

#include <dnnl.h>
#include <sched.h>

#include <algorithm>
#include <barrier>
#include <condition_variable>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/cache_directory.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/index.h"
#include "base/statistics.h"
#include "base/vectors.h"
#include "profile/cost_cache.h"
#include "profile/machine.h"
#include "profile/measure.h"
#include "profile/work.h"

namespace pipetrain {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{32} << 20;  // more than the caches of a core
constexpr int kMatrix = 384;                               // three of them: 1.7 MiB
constexpr int kRoundTrips = 200, kBatches = 15;
constexpr int kBlocks = 8, kRounds = 6;
constexpr int kReductions = 9;

class MemoryCopy final : public Work {
 public:
  void prepare() override {}
  void run() override { std::memcpy(to_.data(), from_.data(), kCopyBytes); }

 private:
  std::vector<std::byte> from_ = std::vector<std::byte>(kCopyBytes, std::byte{1});
  std::vector<std::byte> to_ = std::vector<std::byte>(kCopyBytes, std::byte{2});
};

class MatrixProduct final : public Work {
 public:
  void prepare() override {}
  void run() override {
    const dnnl_status_t status = dnnl_sgemm('N', 'N', kMatrix, kMatrix, kMatrix, 1.0F, a_.data(),
                                            kMatrix, b_.data(), kMatrix, 0.0F, c_.data(), kMatrix);
    PT_CHECK(status == dnnl_success, kInternal, "oneDNN refuses a plain matrix product");
  }

 private:
  std::vector<float> a_ = std::vector<float>(kMatrix * kMatrix, 0.5F);
  std::vector<float> b_ = std::vector<float>(kMatrix * kMatrix, 0.25F);
  std::vector<float> c_ = std::vector<float>(kMatrix * kMatrix, 0.0F);
};

TimingOptions timing(int threads) {
  TimingOptions options;
  options.copies = threads;
  options.sample_seconds = 2e-2;
  options.repeats = 7;
  return options;
}

CostCache cache_of_machine(bool cache) {
  return {cache ? default_cache_directory() : std::filesystem::path(),
          fmt::format("{} ({}) · {}{}", processor_name(), vector_instructions(), build_name(),
                      available_cores() > 1 ? "" : " · one core")};
}

/// What is measured together.
constexpr const char* kWakeKeys[] = {"waking a thread on an idle core, which works in turns",
                                     "notifying a thread on an idle core",
                                     "waking a thread on the same core"};
constexpr int kWakes = 60;
constexpr double kTurn = 1e-4;  // as long as a small stage may compute; an idle core falls asleep

/// Two threads that wake each other in turn, as the stages of a pipeline do.
class Turns {
 public:
  /// Returns the seconds since the other one began to hand over.
  double take(bool mine) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return turn_ == mine; });
    return steady_seconds() - given_at_;
  }
  /// Returns the seconds that it takes.
  double give(bool mine) {
    const double start = steady_seconds();
    {
      const std::lock_guard lock(mutex_);
      turn_ = !mine;
      given_at_ = start;
    }
    changed_.notify_one();
    return steady_seconds() - start;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool turn_ = false;
  double given_at_ = 0;
};

/// The cores that this process may use, at most two.
std::vector<int> two_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE && cores.size() < 2; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  return cores;
}

void run_on(int core) {
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  CPU_SET(core, &chosen);
  sched_setaffinity(0, sizeof chosen, &chosen);
}

struct TurnSeconds {
  double take = 0, give = 0;
};

/// Of two threads on these cores that compute for `turn` seconds in turn.
TurnSeconds time_turns(int core, int other_core, double turn) {
  Turns turns;
  std::vector<double> takes, gives;  // of one of them
  const auto run = [&](int here, bool mine) {
    run_on(here);
    for (int i = 0; i < kWakes; ++i) {
      const double take = turns.take(mine);
      for (const double end = steady_seconds() + turn; steady_seconds() < end;) {
      }
      const double give = turns.give(mine);
      if (!mine || i == 0) continue;
      takes.push_back(take);
      gives.push_back(give);
    }
  };
  std::thread one(run, core, false), other(run, other_core, true);
  one.join();
  other.join();
  return {median(takes), median(gives)};
}

// One thread's part of a sum over all buffers, and then of its distribution.
class AllReduce {
 public:
  AllReduce(int threads, std::size_t bytes)
      : threads_(threads), count_(std::max<std::size_t>(bytes / sizeof(float), 1)) {
    for (int i = 0; i < threads; ++i) buffers_.emplace_back(count_, 1.0F / (1 + i));
  }

  void sum(int thread) {
    const auto place = part(thread);
    const std::size_t begin = place.first, end = place.second;  // OpenMP takes no bindings
    float* __restrict own = buffers_[at(thread)].data();
    for (int other = 0; other < threads_; ++other) {
      if (other == thread) continue;
      const float* __restrict term = buffers_[at(other)].data();
#pragma omp simd
      for (std::size_t i = begin; i < end; ++i) own[i] += term[i];
    }
  }
  void distribute(int thread) {
    for (int other = 0; other < threads_; ++other) {
      if (other == thread) continue;
      const auto [begin, end] = part(other);
      std::copy(buffers_[at(other)].begin() + static_cast<std::ptrdiff_t>(begin),
                buffers_[at(other)].begin() + static_cast<std::ptrdiff_t>(end),
                buffers_[at(thread)].begin() + static_cast<std::ptrdiff_t>(begin));
    }
  }

 private:
  std::pair<std::size_t, std::size_t> part(int thread) const {
    return {count_ * at(thread) / at(threads_), count_ * (at(thread) + 1) / at(threads_)};
  }

  int threads_;
  std::size_t count_;
  std::vector<std::vector<float>> buffers_;
};

}  // namespace

double measure_memory_copy(int threads) {
  const double seconds =
      median_seconds([] { return std::make_unique<MemoryCopy>(); }, timing(threads));
  return static_cast<double>(kCopyBytes) / seconds;
}

double measure_matrix_product(int threads) {
  const double seconds =
      median_seconds([] { return std::make_unique<MatrixProduct>(); }, timing(threads));
  return 2.0 * kMatrix * kMatrix * kMatrix / seconds;
}

double matrix_product_rate(int threads, bool cache) {
  CostCache known = cache_of_machine(cache);
  const std::string key = fmt::format("matrix product, float32, on {} threads at once", threads);
  if (const std::optional<KernelCost> cost = known.find(key); cost && cost->seconds > 0)
    return 1 / cost->seconds;
  const double rate = measure_matrix_product(threads) * threads;
  known.add(key, {1 / rate, 0});
  known.save();
  return rate;
}

double measure_hand_over(const MakeThreadLink& make) {
  const ThreadLink forth = make(), back = make();
  const std::byte memory{};
  const int trips = kRoundTrips * kBatches;
  std::thread other([&] {
    for (int unit = 0; unit < trips; ++unit) back.send(unit, forth.receive(unit));
  });
  std::vector<double> seconds;
  int unit = 0;
  for (int batch = 0; batch < kBatches; ++batch) {
    const double start = steady_seconds();
    for (int i = 0; i < kRoundTrips; ++i, ++unit) {
      forth.send(unit, &memory);
      back.receive(unit);
    }
    seconds.push_back((steady_seconds() - start) / (2 * kRoundTrips));
  }
  other.join();
  return median(seconds);
}

WakeSeconds measure_wakes(bool cache) {
  CostCache known = cache_of_machine(cache);
  WakeSeconds out;
  double* const places[] = {&out.idle_core, &out.notify, &out.same_core};
  bool all_known = true;
  for (std::size_t i = 0; i < std::size(places); ++i) {
    const std::optional<KernelCost> cost = known.find(kWakeKeys[i]);
    all_known = all_known && cost.has_value();
    if (cost) *places[i] = cost->seconds;
  }
  const std::vector<int> cores = two_cores();
  if (all_known || cores.empty()) return out;
  out = {};
  out.same_core = time_turns(cores.front(), cores.front(), 0).take;
  out.idle_core = out.same_core;
  if (cores.size() > 1) {
    const TurnSeconds apart = time_turns(cores.front(), cores.back(), kTurn);
    out.idle_core = apart.take;
    out.notify = std::min(apart.give, apart.take);
  }
  for (std::size_t i = 0; i < std::size(places); ++i) known.add(kWakeKeys[i], {*places[i], 0});
  known.save();
  return out;
}

void forget_wakes() {
  CostCache known = cache_of_machine(/*cache=*/true);
  for (const char* key : kWakeKeys) known.add(key, {-1, 0});
  known.save();
}

double measure_copy_between_threads(const MakeThreadLink& make, std::size_t block_bytes) {
  const ThreadLink forth = make(), back = make();
  std::vector<double> seconds;
  std::thread receiver([&] {
    std::vector<std::byte> own(block_bytes);
    for (int unit = 0; unit < kBlocks * kRounds; ++unit) {
      const std::byte* memory = forth.receive(unit);
      const double start = steady_seconds();
      std::memcpy(own.data(), memory, block_bytes);
      // The first round finds memory that was never used.
      if (unit >= kBlocks) seconds.push_back(steady_seconds() - start);
      back.send(unit, own.data());
    }
  });
  std::vector<std::vector<std::byte>> blocks(kBlocks, std::vector<std::byte>(block_bytes));
  for (int unit = 0; unit < kBlocks * kRounds; ++unit) {
    std::vector<std::byte>& block = blocks[static_cast<std::size_t>(unit % kBlocks)];
    std::memset(block.data(), unit % 251, block_bytes);
    forth.send(unit, block.data());
    back.receive(unit);
  }
  receiver.join();
  return static_cast<double>(block_bytes) / median(seconds);
}

double measure_all_reduce(int threads, std::size_t bytes) {
  AllReduce work(threads, bytes);
  std::barrier together(threads);
  std::vector<double> seconds;
  const auto run = [&](int thread) {
    for (int i = 0; i < kReductions; ++i) {
      together.arrive_and_wait();
      const double start = steady_seconds();
      work.sum(thread);
      together.arrive_and_wait();
      work.distribute(thread);
      together.arrive_and_wait();
      if (thread == 0 && i > 0) seconds.push_back(steady_seconds() - start);
    }
  };
  std::vector<std::thread> team;
  for (int thread = 1; thread < threads; ++thread) team.emplace_back(run, thread);
  run(0);
  for (std::thread& thread : team) thread.join();
  return median(seconds);
}

double ring_bytes_per_second(int threads, std::size_t bytes, double seconds) {
  return 2.0 * (threads - 1) / threads * static_cast<double>(bytes) / seconds;
}

}  // namespace pipetrain
