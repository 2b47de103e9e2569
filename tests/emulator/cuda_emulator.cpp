#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpu/launch.h"

namespace pipetrain::emulator {
namespace {

enum class State { kReady, kBarrier, kWarp, kDone };

constexpr std::size_t kStackBytes = 64 << 10;

/// The resume points of a fiber or the scheduler, by the compiler's setjmp builtins, which
/// sanitizers do not mistake for the end of a stack. No other registers of a fiber are live across
/// a jump.
using JumpPlace = void* [5];
[[gnu::noinline, gnu::noipa, noreturn]] void jump_to(void** place) { __builtin_longjmp(place, 1); }

/// A fiber is reused for all blocks; only its first switch needs a context, later ones are jumps
/// without a system call.
struct Fiber {
  ucontext_t context;
  JumpPlace jump;
  bool begun = false;
  State state = State::kReady;
  Place place;
  unsigned number = 0;
  std::uint64_t given = 0;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
};

Order the_order = Order::kForward;
std::uint64_t launch_count = 0;
Fiber* current = nullptr;
std::vector<std::unique_ptr<Fiber>> fibers;
std::size_t block_threads = 0;
JumpPlace scheduler;
const std::function<void()>* body_of_kernel = nullptr;

[[gnu::noinline, gnu::noipa]] void yield(State state) {
  current->state = state;
  if (__builtin_setjmp(current->jump) == 0) jump_to(scheduler);
}

/// Switches to a fiber.
[[gnu::noinline, gnu::noipa]] void resume(Fiber& fiber) {
  current = &fiber;
  if (__builtin_setjmp(scheduler) != 0) return;
  if (fiber.begun) jump_to(fiber.jump);
  fiber.begun = true;
  setcontext(&fiber.context);
}

/// Fibers in the middle of a kernel cannot be reused.
[[noreturn]] void fail(const std::string& what) {
  fibers.clear();
  throw std::runtime_error(what);
}

void enter() {
  for (;;) {
    (*body_of_kernel)();
    yield(State::kDone);
  }
}

/// Resumes warps whose threads have all arrived. Returns whether there was one.
bool release_warps() {
  bool released = false;
  for (std::size_t first = 0; first < block_threads; first += 32) {
    const std::size_t last = std::min(first + 32, block_threads);
    std::size_t waiting = 0, done = 0;
    for (std::size_t i = first; i < last; ++i) {
      waiting += fibers[i]->state == State::kWarp;
      done += fibers[i]->state == State::kDone;
    }
    if (waiting == 0) continue;
    if (done > 0)
      fail("a warp exchanges values, but " + std::to_string(done) +
           " of its threads have returned");
    if (waiting < last - first) continue;
    for (std::size_t i = first; i < last; ++i) fibers[i]->state = State::kReady;
    released = true;
  }
  return released;
}

bool release_block() {
  std::size_t waiting = 0, done = 0;
  for (std::size_t i = 0; i < block_threads; ++i) {
    waiting += fibers[i]->state == State::kBarrier;
    done += fibers[i]->state == State::kDone;
  }
  if (waiting == 0 || waiting + done < block_threads) return false;
  if (done > 0)
    fail("__syncthreads is reached by " + std::to_string(waiting) + " of " +
         std::to_string(block_threads) + " threads");
  for (std::size_t i = 0; i < block_threads; ++i) fibers[i]->state = State::kReady;
  return true;
}

bool all_done() {
  for (std::size_t i = 0; i < block_threads; ++i) {
    if (fibers[i]->state != State::kDone) return false;
  }
  return true;
}

void run_block(dim3 block, const Place& common, const std::vector<std::size_t>& order) {
  for (unsigned i = 0; i < block_threads; ++i) {
    Fiber& fiber = *fibers[i];
    fiber.number = i;
    fiber.place = common;
    fiber.place.thread = dim3(i % block.x, i / block.x % block.y, i / (block.x * block.y));
    fiber.state = State::kReady;
    if (fiber.begun) continue;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
  }
  while (!all_done()) {
    bool ran = false;
    for (const std::size_t i : order) {
      if (fibers[i]->state != State::kReady) continue;
      resume(*fibers[i]);
      ran = true;
    }
    if (all_done()) return;
    if (!release_warps() && !release_block() && !ran)
      fail("threads of a block wait at different places");
  }
}

}  // namespace

void set_order(Order order) { the_order = order; }
std::uint64_t launches() { return launch_count; }
const Place& here() { return current->place; }
void barrier() { yield(State::kBarrier); }
int lane() { return static_cast<int>(current->number & 31U); }

std::uint64_t exchange(std::uint64_t mine, int source) {
  current->given = mine;
  yield(State::kWarp);
  const std::size_t at = (current->number & ~std::size_t{31}) + static_cast<std::size_t>(source);
  const std::uint64_t got =
      source >= 0 && source < 32 && at < block_threads ? fibers[at]->given : mine;
  yield(State::kWarp);
  return got;
}

void launch(dim3 grid, dim3 block, const std::function<void()>& body) {
  ++launch_count;
  block_threads = std::size_t{block.x} * block.y * block.z;
  if (block_threads == 0 || block_threads > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.y > 65535 || grid.z > 65535)
    throw std::runtime_error("a kernel cannot be started with this grid");
  while (fibers.size() < block_threads) fibers.push_back(std::make_unique<Fiber>());
  body_of_kernel = &body;
  std::vector<std::size_t> order(block_threads);
  std::iota(order.begin(), order.end(), 0);
  if (the_order == Order::kBackward) std::reverse(order.begin(), order.end());
  std::uint64_t random = 0x9E3779B97F4A7C15U;
  for (std::size_t i = block_threads; the_order == Order::kShuffled && i > 1; --i) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    std::swap(order[i - 1], order[(random >> 33) % i]);
  }
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x)
        run_block(block, {{}, dim3(x, y, z), block, grid}, order);
    }
  }
}

}  // namespace pipetrain::emulator
