// The plugin's devices and NCCL, driven through a schedule's exchanges on fake GPUs
// (fake_gpus.cpp): every byte arrives, sums are correct, and an NCCL failure ends the run on all
// devices with its message, without affecting the next run.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/index.h"
#include "device/plugin.h"
#include "gate_check.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/transport/channel.h"
#include "pipeline/transport/exchange.h"

namespace pipetrain {
namespace {

float payload(const Transfer& moved) {
  return static_cast<float>(1000 * moved.edge + moved.micro_batch + 1);
}

/// One rank per device, in order of arrival.
std::vector<int> ranks_of(const std::vector<Device*>& devices) {
  std::vector<Device*> known;
  std::vector<int> ranks;
  for (Device* device : devices) {
    const auto place = std::find(known.begin(), known.end(), device);
    ranks.push_back(static_cast<int>(place - known.begin()));
    if (place == known.end()) known.push_back(device);
  }
  return ranks;
}

/// Runs a program's exchanges: each message has a distinct value; summands are 1, 2, ….
class Run {
 public:
  Run(const Program& program, std::vector<Device*> devices, Collectives& collectives)
      : program_(program),
        devices_(std::move(devices)),
        exchange_(collectives, devices_, ranks_of(devices_), program.placement,
                  /*timeout_seconds=*/20, [this](std::exception_ptr error) {
                    error_ = error;
                    exchange_.abort();
                  }) {}

  void round() {
    error_ = nullptr;
    wrong_ = 0;  // a failed run may have counted missing messages
    exchange_.start_round(program_, /*keep=*/true);
    std::vector<std::thread> threads;
    for (int d = 0; d < program_.devices; ++d) threads.emplace_back([this, d] { work(d); });
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
    check(wrong_ == 0, std::to_string(wrong_) + " values are wrong");
  }

 private:
  void work(int device) {
    const auto stream = devices_[at(device)]->make_stream();
    std::vector<DeviceMemory> memory;
    std::vector<std::pair<float*, float>> expected;
    const auto place = [&](float value) {
      memory.push_back(stream->device().allocate(8));
      auto* data = reinterpret_cast<float*>(memory.back().data());
      const float both[2] = {value, value};
      stream->copy(data, both, 8);
      return data;
    };
    try {
      std::vector<int> received;
      const auto& list = program_.device[at(device)];
      for (std::size_t i = 0; i < list.size(); ++i) {
        const int operation = exchange_.operation_at(device, static_cast<int>(i));
        if (operation < 0) {
          // Waits for all received data.
          for (const int one : received) stream->wait(*exchange_.wait(one, device));
          received.clear();
          continue;
        }
        float* data = nullptr;
        if (list[i].kind == Kind::kReduce) {
          const auto replicas = static_cast<float>(program_.replicas(list[i].stage));
          data = place(static_cast<float>(program_.replica_on(list[i].stage, device) + 1));
          expected.emplace_back(data, replicas * (replicas + 1) / 2);
        } else {
          const Transfer& moved = program_.transfers[at(list[i].transfer)];
          const bool sends = list[i].kind == Kind::kSend;
          data = place(sends ? payload(moved) : -1.0F);
          expected.emplace_back(data, payload(moved));
        }
        exchange_.offer(operation, device, {{reinterpret_cast<std::byte*>(data), 8}}, nullptr);
        received.push_back(operation);
      }
      for (const int one : received) exchange_.wait(one, device);
    } catch (const ChannelAborted&) {
      // The error ends the run.
    }
    exchange_.finish(device);
    if (error_) return;
    for (const auto& [data, value] : expected) wrong_ += data[0] != value || data[1] != value;
  }

  const Program& program_;
  std::vector<Device*> devices_;
  std::atomic<int> wrong_ = 0;
  std::exception_ptr error_;
  Exchange exchange_;
};

std::string failure_of(Run& run) {
  try {
    run.round();
  } catch (const Error& error) {
    return error.message();
  }
  return "nothing";
}

void run_all() {
  DevicePlugin& plugin = cuda_plugin();
  check(plugin.devices() == std::vector<std::string>{"fake A", "fake B"}, "names of devices");
  check(!plugin.reaches(0, 1), "GPUs reach each other");
  Collectives& collectives = plugin.collectives();
  check(collectives.name().rfind("NCCL 2.", 0) == 0, collectives.name());
  check(collectives.make_id() != collectives.make_id(), "ids are the same");

  ScheduleOptions options;
  options.name = "1f1b";
  options.stages = 2;
  options.micro_batches = 8;
  const Program chain = lower(generate(options), chain_edges(2, 8));
  options.stages = 1;
  options.replicas = {2};
  const Program replicas = lower(generate(options), {});
  options.stages = 4;
  options.replicas = {};
  const Program shared = lower(generate(options), chain_edges(4, 8));
  Device& a = plugin.open(0);
  Device& b = plugin.open(1);
  Run(chain, {&a, &b}, collectives).round();
  Run(shared, {&a, &a, &b, &b}, collectives).round();
  Run(shared, {&a, &b, &a, &b}, collectives).round();
  Run summing(replicas, {&a, &b}, collectives);
  summing.round();
  summing.round();

  // Switches of the fakes, to inject failures.
  const auto fail = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "fake_failure"));
  const auto aborts = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "fake_aborts"));
  check(fail && aborts, "the fakes are not loaded");
  check(aborts() == 0, "a communicator was aborted");
  Run run(chain, {&a, &b}, collectives);
  run.round();
  fail(1);
  const std::string words = failure_of(run);
  check(words.find(
            "NCCL failed while it exchanged on cuda:1 (fake B): remote process exited; a cable "
            "was pulled") != std::string::npos,
        words);
  check(aborts() == 2, std::to_string(aborts()) + " communicators were aborted");
  fail(0);
  run.round();

  // A group that fails is ended first; otherwise the abort would wait for it.
  const auto refuse =
      reinterpret_cast<void (*)(const char*)>(dlsym(RTLD_DEFAULT, "fake_failing_call"));
  check(refuse != nullptr, "the fakes are not loaded");
  refuse("exchange");
  const std::string refused = failure_of(run);
  check(refused.find("NCCL failed to ") != std::string::npos, refused);
  check(aborts() == 4, std::to_string(aborts()) + " communicators were aborted");
  refuse("");
  run.round();
}

}  // namespace
}  // namespace pipetrain

int main(int count, char** arguments) {
  try {
    if (count > 1 && std::string(arguments[1]) == "absent") {
      // The errors when NCCL is missing or too old.
      try {
        std::printf("%s\n", pipetrain::cuda_plugin().collectives().name().c_str());
      } catch (const pipetrain::Error& error) {
        std::printf("%s\n", error.message().c_str());
        return static_cast<int>(error.kind());
      }
      return 0;
    }
    pipetrain::run_all();
    std::printf("exchanges through the plugin: %d checks\n", pipetrain::checks);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "check %d: %s\n", pipetrain::checks, error.what());
    return 1;
  }
  return 0;
}
