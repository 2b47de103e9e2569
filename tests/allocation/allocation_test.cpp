// Counts what CPU stages allocate in steady state: nothing, but for what oneDNN does inside itself.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "passes/linearise.h"
#include "pipeline/program/check.h"
#include "pipeline/runtime/runtime.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "support/small_networks.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

/// Counts what the threads of devices ask for, except oneDNN inside itself.
void count_allocation(const void* caller) {
  if (!counting.load(std::memory_order_relaxed)) return;
  char name[16] = {};
  prctl(PR_GET_NAME, name);
  if (std::strncmp(name, "device ", 7) != 0) return;
  Dl_info library{};
  const bool known = dladdr(caller, &library) != 0 && library.dli_fname;
  if (!known || !std::strstr(library.dli_fname, "libdnnl")) ++allocations;
}

}  // namespace

void* operator new(std::size_t bytes) {
  count_allocation(__builtin_return_address(0));
  if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  count_allocation(__builtin_return_address(0));
  const auto align = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace pipetrain {
namespace {

TEST(Runtime, StagesAllocateNothingInSteadyState) {
  for (const std::string schedule : {"gpipe", "1f1b", "pipedream"}) {
    const OnnxModel model = test::difficult_network(/*tied=*/false);
    const auto graph = test::training_graph(model, 4);
    const Chain chain = linearise(*graph);
    const std::vector<int> stage_of =
        stages_of_chain(*graph, chain, {0, static_cast<int>(chain.order.size()) / 2});
    const Slices slices = slice_stages(*graph, stage_of, 2);
    std::vector<Edge> edges;
    for (const ValueEdge& edge : slices.edges)
      edges.push_back({edge.from, edge.to, static_cast<std::int64_t>(edge.bytes), edge.gradient});
    ScheduleOptions options;
    options.name = schedule;
    options.stages = 2;
    options.micro_batches = 3;
    const Program program = lower(generate(options), edges);
    check(program);
    RuntimeOptions runtime_options;
    runtime_options.backend = Backend::kCpu;
    Runtime runtime({{graph.get(), stage_of}}, {&program}, runtime_options);
    test::FixedData data(12, 5);
    for (int step = 0; step < 4; ++step) {
      if (schedule == "pipedream")
        data.set_stream(3, 4, 0);
      else
        data.set_mini_batch(0, 12, 4, step, {4});
      counting = step == 3;
      allocations = 0;
      runtime.run(program, data);
      counting = false;
    }
    EXPECT_EQ(allocations.load(), 0) << schedule;
  }
}

}  // namespace
}  // namespace pipetrain
