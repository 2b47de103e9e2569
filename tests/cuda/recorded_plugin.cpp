// A plugin whose four devices are recorded (support/recorded_devices.h): with it the whole program
// runs with --device cuda on a machine without a GPU. It reports its findings at exit. The letters
// of RECORDED_GPUS are the GPUs that a process sees.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "device/build_id.h"
#include "device/plugin.h"
#include "support/recorded_devices.h"

namespace {

constexpr int kDevices = 4;
constexpr int kFoundProblems = 99;

class Recorded final : public pipetrain::DevicePlugin {
 public:
  std::vector<std::string> devices() override {
    return std::vector<std::string>(seen_.empty() ? kDevices : seen_.size(), "recorded device");
  }
  std::string identity(int index) override {
    return seen_.empty() ? DevicePlugin::identity(index)
                         : seen_.substr(static_cast<std::size_t>(index), 1);
  }
  pipetrain::Device& open(int index) override { return machine_.device(index); }
  bool reaches(int, int) override { return true; }
  pipetrain::Collectives& collectives() override { return machine_.collectives(); }

  /// Error messages.
  std::string problems() const {
    std::string text;
    for (const std::string& problem : machine_.problems()) text += problem + "\n";
    return text;
  }
  std::uint64_t operations() const { return machine_.operations(); }
  auto pageable_copies() const { return machine_.pageable_copies(); }

 private:
  const std::string seen_ = std::getenv("RECORDED_GPUS") ? std::getenv("RECORDED_GPUS") : "";
  pipetrain::test::RecordedMachine machine_{kDevices, 1};
};

Recorded& recorded() {
  static auto* const plugin = new Recorded;  // the program's runtime may outlive static objects
  return *plugin;
}

pipetrain::DevicePlugin* plugin() {
  Recorded& plugin = recorded();
  static const bool registered =
      std::atexit([] {
        const std::string problems = recorded().problems();
        const auto [copies, bytes] = recorded().pageable_copies();
        std::fputs(fmt::format("recorded devices: {} operations, {} copies from pageable memory of "
                               "{} bytes\n{}",
                               recorded().operations(), copies, bytes, problems)
                       .c_str(),
                   stderr);
        std::fflush(stderr);
        if (!problems.empty()) std::_Exit(kFoundProblems);
      }) == 0;
  return registered ? &plugin : nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const pipetrain::PluginEntry pipetrain_plugin;
const pipetrain::PluginEntry pipetrain_plugin = {pipetrain::kBuildId.data(), plugin};
