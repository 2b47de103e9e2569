// A plugin of this build with one device that fails when opened: with a device error, or with an
// internal error (if MISTAKE is set).
#include <cstdlib>
#include <stdexcept>

#include "base/error.h"
#include "device/build_id.h"
#include "device/plugin.h"

namespace {

class Broken final : public pipetrain::DevicePlugin {
 public:
  std::vector<std::string> devices() override { return {"broken device"}; }
  pipetrain::Device& open(int) override {
    if (std::getenv("MISTAKE")) throw std::logic_error("this cannot happen");
    throw pipetrain::Error(pipetrain::ErrorKind::kDevice, "the device does not answer");
  }
  bool reaches(int, int) override { return false; }
  pipetrain::Collectives& collectives() override { throw std::logic_error("nobody gets that far"); }
};

pipetrain::DevicePlugin* plugin() {
  static Broken broken;
  return &broken;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const pipetrain::PluginEntry pipetrain_plugin;
const pipetrain::PluginEntry pipetrain_plugin = {pipetrain::kBuildId.data(), plugin};
