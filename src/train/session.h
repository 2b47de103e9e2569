// From files to something that can be trained: the model is read and differentiated, the data
// bound, the chain profiled, planned and scheduled, the stages compiled. Each product can be looked
// at before the next is made.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/loading/batch_memory.h"
#include "data/loading/open_data.h"
#include "onnx_io/model.h"
#include "partition/plan.h"
#include "passes/build.h"
#include "pipeline/program/program.h"
#include "pipeline/runtime/runtime.h"
#include "pipeline/simulate/simulate.h"
#include "profile/profile.h"
#include "train/config.h"
#include "train/program_maker.h"

namespace pipetrain {

/// A model as read: the file, the rules for its tensors, and which of them are trained apart.
struct LoadedModel {
  OnnxModel file;   // as in the file: what export writes back
  OnnxModel model;  // with merged tensors given copies of their own: what is trained
  std::map<std::string, TensorRule> rules;
  std::vector<UntiedCopy> copies;
};

LoadedModel load_model(const ModelConfig& config);

class ProcessGroup;

enum class SessionMode : std::uint8_t {
  kTrain,
  kEvaluate,  // forward only; all data are evaluated
};

class Session {
 public:
  /// `processes`: those that have the same session and train together, each some of the devices;
  /// null: this one alone. All of them then call what is below in the same order. Outlives the
  /// session.
  explicit Session(const RunConfig& config, SessionMode mode = SessionMode::kTrain,
                   ProcessGroup* processes = nullptr);
  ~Session();

  /// Reads the model, builds the graph of the full micro-batch and binds the data. What is read is
  /// taken from another session of the same model and data, if one is given.
  void open(const Session* same_data = nullptr);
  /// Measures (reads, estimates) the profile.
  void measure();
  /// Cuts the chain, after measure() if that has not been done.
  void plan();
  /// Makes and checks the programs and compiles the stages. `first_step`: where training begins;
  /// asynchronous rounds begin there, at the starts of epochs and nowhere else.
  void start(std::int64_t first_step = 0);

  /// Puts measured times into a profile that was an estimate, and predicts again. One stage only:
  /// what is cut stays as it is. `times` are of one step.
  void take_measured(const KernelTimes& times, double update_seconds);
  /// Forgets the file's weights, which the stages of a started session have. What is made from the
  /// graphs later (a replay, another runtime) would lack them.
  void release_initial_weights();

  const RunConfig& config() const { return config_; }
  ProcessGroup* processes() const { return processes_; }
  /// Whether this process writes files and speaks to people.
  bool leads() const;
  /// The process that has a device.
  int process_of(int device) const;
  const LoadedModel& model() const { return model_; }
  const OpenedData& data() const { return data_; }
  const DataSpec& data_spec() const { return data_spec_; }
  /// The graph of the full micro-batch.
  const TrainingGraph& graph() const;
  /// What is evaluated; null when nothing is.
  const Dataset* evaluation_data() const;
  const Chain& chain() const { return chain_; }
  /// Of the chain, where it is not the standard one; else empty.
  const std::vector<int>& order() const { return order_; }
  const ChainCosts& costs() const { return costs_; }
  const Plan& the_plan() const { return plan_; }
  int stages() const { return static_cast<int>(plan_.stages.size()); }
  int devices() const { return predicted_program_.devices; }
  std::int64_t micro_batch() const { return micro_batch_; }
  std::int64_t micro_batches() const { return micro_batches_; }
  /// Whether stages update while units are in flight.
  bool asynchronous() const { return is_asynchronous(programs_of_run_->rule()); }
  /// Units of one mini-batch of so many samples: one where whole mini-batches travel.
  int units_of(std::int64_t samples) const;
  /// Mini-batches of the asynchronous round that begins at a step: to the end of the epoch or run.
  std::int64_t round_batches(std::int64_t first_step) const;
  /// Units of that round.
  int round_units(std::int64_t first_step) const;
  /// Mini-batches between their first and their last use in an asynchronous round.
  int batches_in_flight() const;
  std::int64_t batches_per_epoch() const { return batches_per_epoch_; }
  std::int64_t total_steps() const { return total_steps_; }
  /// Where mini-batches are to lie: memory that GPUs copy from by themselves, if there are any.
  TakeMemory batch_memory() const;
  /// What float16 needs, and nothing else.
  LossScaling loss_scaling() const;
  int threads() const { return threads_; }
  const Profile& profile() const { return profile_; }
  /// Whether the profile comes from a topology's numbers and not from a device.
  bool estimated() const { return estimated_; }

  Runtime& runtime() { return *runtime_; }
  const Runtime& runtime() const { return *runtime_; }
  /// What the runtime was made from, for a replay.
  std::vector<RuntimeVariant> runtime_variants() const;
  RuntimeOptions runtime_options() const;
  /// Whether some stage runs on several devices.
  bool has_replicas() const;
  /// A program like those that start() makes; runtime() can run it if start() made one as long.
  Program make_program(int units) const { return programs_of_run_->training(units); }
  /// The program of a round of so many units: a mini-batch, or in an asynchronous run all up to
  /// the end of an epoch.
  const Program& program(int units) const;
  /// The program of the next round of an evaluation that has `remaining` samples to go.
  const Program& evaluation_program(std::int64_t remaining) const;
  /// Samples that an evaluation covers: all, unless the model's fixed batch leaves some over.
  std::int64_t evaluated_samples() const { return evaluated_samples_; }
  /// Index of the runtime variant for a (training or evaluation) micro-batch of `samples`.
  int variant(std::int64_t samples, bool evaluation) const;
  /// What the simulator says about one step of the full mini-batch.
  const Simulation& prediction() const { return prediction_; }
  /// Seconds of a step as predicted: the simulator's, but no less than the work over the cores that
  /// the stages share.
  double predicted_step_seconds() const;
  /// Whether there are fewer cores than stages times threads, or fewer GPUs than devices.
  bool shares_cores() const;
  /// Stages that can compute at once on this machine's cores, or on the GPUs of the run; 0: as many
  /// as there are, on devices that are not at hand.
  int processors() const;
  const Costs& predicted_costs() const { return simulated_costs_; }
  /// What each device of a stage will hold for the stage, as laid out for the full micro-batch.
  const ArenaBytes& predicted_memory(int stage) const {
    return predicted_memory_[static_cast<std::size_t>(stage)];
  }
  /// The program that prediction() timed.
  const Program& predicted_program() const { return predicted_program_; }
  const PlanRequest& plan_request() const { return plan_request_; }

  /// Brings the trained weights together at process 0, for export_model(). Alone there is nothing
  /// to do.
  void collect_weights();
  /// What the stages remember at the end, at process 0 after collect_weights(): of other processes'
  /// stages the weights alone.
  std::vector<StageContent> trained_contents() const;
  /// Writes the trained weights into a copy of the user's file; returns what was changed besides
  /// bytes.
  std::vector<std::string> export_model(const std::string& path, bool overwrite_input = false);

 private:
  struct Variant {
    std::int64_t samples = 0;
    bool evaluation = false;
    std::unique_ptr<TrainingGraph> graph;
  };
  void share_cores();
  void share_profile();
  void check_agreement();
  void set_parameter_rates();
  void choose_micro_batch();
  std::unique_ptr<TrainingGraph> build(std::int64_t samples, bool training, bool with_gradients,
                                       bool fuse = true) const;
  void add_variant(std::vector<Variant>& variants, std::int64_t samples, bool evaluation);
  void bind_data(const RawData* raw);
  void cut_into_stages();
  Costs planned_costs() const;
  void set_links(const Program& program, Costs& costs) const;
  void move_cuts_for_schedule();
  void choose_order();
  void add_notes();
  void take_order(std::vector<int> order);
  void plan_stages_of_chain();
  std::size_t memory_excess() const;
  void add_training_programs(std::int64_t first_step);
  void add_evaluation_programs();
  std::vector<std::int64_t> training_batch_sizes() const;
  bool has_fixed_batch() const;

  RunConfig config_;
  SessionMode mode_;
  ProcessGroup* processes_;
  int cores_;                                     // of all processes
  int devices_before_ = 0, sharing_devices_ = 0;  // of those on the cores of this process
  std::map<std::string, HostTensor> collected_;
  LoadedModel model_;
  LossOptions loss_;  // resolved: never "auto" after open()
  std::map<std::string, Shape> sample_shapes_;
  DataSpec data_spec_;
  OpenedData data_;
  std::int64_t micro_batch_ = 0, micro_batches_ = 0, batches_per_epoch_ = 0, total_steps_ = 0;
  int threads_ = 1;
  std::vector<Variant> training_;  // the full micro-batch first
  std::vector<Variant> evaluations_;
  Chain chain_;
  ChainCosts costs_;
  std::vector<int> order_;
  std::optional<Topology> topology_;
  Plan plan_;
  Profile profile_;
  bool estimated_ = false;
  std::vector<int> stage_of_forward_;
  std::unique_ptr<ProgramMaker> programs_of_run_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::vector<std::unique_ptr<Program>> evaluation_programs_;  // a whole round, the last one
  std::int64_t evaluated_samples_ = 0;
  Costs simulated_costs_;
  Simulation prediction_;
  std::vector<ArenaBytes> predicted_memory_;
  std::size_t planner_limit_ = 0;
  Program predicted_program_;
  PlanRequest plan_request_;
  std::unique_ptr<Runtime> runtime_;
};

}  // namespace pipetrain
