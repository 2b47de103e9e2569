// A small network trained by several processes, which are threads of the test that only exchange
// messages: what the tests of processes share.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "pipeline/runtime/runtime.h"
#include "processes/process_group.h"
#include "support/memory_processes.h"
#include "support/small_networks.h"

namespace pipetrain::test {

inline const std::vector<std::int64_t> kMicroBatchSizes = {4, 2};
inline constexpr std::int64_t kSamples = 10, kSamplesPerMicroBatch = 4;

/// A network cut into stages, and a program for them.
struct SharedRun {
  SharedRun(const std::string& schedule, int stages, bool clip, std::vector<int> replicas = {},
            bool tied = true, int micro_batches = 3);
  RuntimeOptions of_process(ProcessGroup& group, int processes) const;

  OnnxModel model;
  std::vector<std::unique_ptr<TrainingGraph>> graphs;
  std::vector<RuntimeVariant> variants;
  Program program;
  RuntimeOptions runtime;
};

struct SharedOutcome {
  std::map<std::string, std::string> values;  // what the stages remember, as bytes
  std::vector<double> losses, norms;
};

/// Adds what the stages remember to an outcome.
void add_values(const std::vector<StageContent>& contents, SharedOutcome& outcome);

/// Trains four steps and looks at what each says of itself.
SharedOutcome four_steps(const SharedRun& run, const RuntimeOptions& options);

/// Runs `body` in every process of a world, each a thread, and returns what each said or threw.
template <class Body>
std::vector<std::string> in_processes(MemoryWorld& world, int count, const Body& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(count));
  std::vector<std::unique_ptr<ProcessGroup>> groups(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      std::unique_ptr<ProcessGroup>& group = groups[static_cast<std::size_t>(rank)];
      try {
        group = std::make_unique<ProcessGroup>(world.process(rank));
        group->find_readable_processes();
        body(*group);
        group->leave();
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] =
            fmt::format("{} {}", static_cast<int>(error.kind()), error.what());
        group->say_failed(error);
        group->wait_for_failures(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace pipetrain::test
