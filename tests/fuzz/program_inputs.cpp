// Documents whose readers need operators or options, and so most of the program.
#include "cli/options/config_file.h"
#include "fuzz/inputs.h"
#include "fuzz/refusing.h"
#include "passes/linearise.h"
#include "profile/profile.h"
#include "support/small_networks.h"

namespace pipetrain::fuzz {
namespace {

/// The graph that profiles are of, and its own profile.
const TrainingGraph& profiled() {
  static const auto graph = test::training_graph(test::table_network(), 2);
  return *graph;
}

std::vector<std::string> profiles() {
  Profile profile;
  profile.node_seconds.assign(profiled().graph.nodes.size(), 1e-4);
  profile.workspace_bytes.assign(profiled().graph.nodes.size(), 64);
  profile.accumulate_seconds_per_byte = profile.update_seconds_per_byte = 1e-10;
  profile.device = "a CPU";
  profile.backend = "cpu";
  return {profile_text(profile, profiled(), "table.onnx")};
}

void read_a_profile(std::string_view text) {
  refusing(ErrorKind::kUsage, [&] {
    const Profile profile = parse_profile(text, "profile.json", profiled());
    expect(profile.node_seconds.size() == profiled().graph.nodes.size(), "nodes without a time");
    for (const double seconds : profile.node_seconds) expect(seconds >= 0, "a negative time");
    const Chain chain = linearise(profiled());
    chain_costs(profiled(), chain, profile);
  });
}

std::vector<std::string> configurations() {
  return {
      "# how we train\nlr = 1e-3\noptimizer = \"sgd:momentum=0.9\"\nfreeze = [\"conv*\", \"bn*\"]\n"
      "shuffle = false\n[eval]\nbatch_size = 256\n[train]\nepochs = 3\nbatch-size = 32\n",
      "model = 'net.onnx'\ndata = \"a\\u00e9\\n.npz\"\nval_split = 0.1 # a part\nmomentum = 0.5\n"};
}

void read_a_configuration(std::string_view text) {
  static Options options;
  static const std::vector<OptionSpec> specs = describe_options(options);
  refusing(ErrorKind::kUsage,
           [&] { parse_config(std::string(text), "config.toml", "train", specs); });
}

}  // namespace

std::vector<Input> program_inputs() {
  return {{"profile", profiles, mutate_json, read_a_profile},
          {"configuration", configurations, mutate_text, read_a_configuration}};
}

}  // namespace pipetrain::fuzz
