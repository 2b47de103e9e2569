// One stage, compiled for one device: kernels at fixed shapes, one arena planned before the first
// step, and the operations that the runtime's instructions stand for. A stage runs several variants
// of the same network (micro-batch sizes, evaluation) on the same parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "ops/kernel.h"
#include "ops/registry.h"
#include "optim/optimizer.h"
#include "pipeline/capacity.h"
#include "pipeline/replica_group.h"
#include "pipeline/shared_work.h"
#include "pipeline/slice.h"
#include "pipeline/stage_arena.h"
#include "pipeline/stage_content.h"

namespace pipetrain {

/// A network as one of the shapes it runs at. Both pointers outlive the stage.
struct StageVariant {
  const TrainingGraph* training = nullptr;
  const Slices* slices = nullptr;
};

/// One micro-batch as a stage sees it.
struct StageUnit {
  int variant = 0;
  int slot = 0;
  int version_copy = 0;                 // which copy of the weights
  std::byte* forward_out = nullptr;     // set by the stage: where this unit's handed-on values lie
  std::byte* gradient_out = nullptr;    // and the gradients handed back
  int block = -1;                       // on a device: StageBlock of what comes from elsewhere
  bool completes = false;               // the last unit that this replica adds before an update
  std::vector<const std::byte*> table;  // inputs, label, received values: see Stage::table_size
  std::uint64_t seed = 0, step = 0;
  std::int64_t first_sample = 0;
  float loss_scale = 1;
};

/// The streams of a device that a stage puts its work into; both null: it computes in host memory.
struct StageStreams {
  Stream* compute = nullptr;
  Stream* transfer = nullptr;
};

/// What the kernels of one variant have taken.
struct KernelTimes {
  std::vector<double> seconds;  // by node of its graph, summed up
  std::int64_t units = 0;       // forwards of whole micro-batches
};

struct StageStep;
struct StageStepAddition;
struct StageBases;
class StageDevice;
class TouchedRows;
struct ExchangedPiece;

class Stage {
 public:
  Stage(int index, std::vector<StageVariant> variants, Backend backend,
        const StageCapacity& capacity, const OptimizerSettings& optimizer,
        const StageStreams& streams = {});
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  const ArenaBytes& memory() const { return memory_; }
  /// Waits until what was put into the stage's streams is done.
  void synchronize() const;
  /// Takes the unit's inputs over from the host. On a device only; the table then has its
  /// addresses.
  void begin(StageUnit& unit);
  /// After the unit's last instruction: its host memory is no longer read, and on the stage with
  /// the loss its results are there. On a device this waits for the unit's forward, not for more.
  void end(StageUnit& unit);
  /// Entries of StageUnit::table: the graph's inputs in their order, the label, then values
  /// received.
  std::size_t table_size(int variant) const;
  /// Sets the table's entries of the values received over an edge, given the sender's memory and
  /// from which point of its stream on they are there. Values on another device are copied.
  void bind_received(int variant, const ValueEdge& edge, const Stage& sender, const std::byte* base,
                     const StreamPoint* written, StageUnit& unit) const;

  /// The same by exchange: what is sent of a unit's handed-on memory, where it is received in a
  /// buffer of received_bytes(), and the table's entries there.
  std::vector<ExchangedPiece> handed_on(int variant, const ValueEdge& edge,
                                        const std::byte* base) const;
  std::size_t received_bytes(int variant, const ValueEdge& edge) const;
  std::vector<ExchangedPiece> received(int variant, const ValueEdge& edge, std::byte* buffer) const;
  void bind_buffer(int variant, const ValueEdge& edge, std::byte* buffer, StageUnit& unit) const;

  /// F. Writes handed-on values into entry `entry`; returns their memory. `count_statistics` is
  /// false on a recompute.
  std::byte* forward(StageUnit& unit, int entry, bool count_statistics);
  /// Runs the forward again into the slot; handed-on values are not touched.
  void recompute(StageUnit& unit);
  enum class Pass : std::uint8_t { kFull, kInput, kWeight };
  /// B, I or W. `first` is true for the first unit of a step: gradients are then overwritten
  /// instead of added to. `entry` is not read by W, which goes on where I was.
  std::byte* backward(StageUnit& unit, int entry, Pass pass, bool first);
  /// Computes the gradients that want several units, once those are there; after the backward of
  /// each one. Where others may help some are only put off, until settle_gradients() or until the
  /// next ones are there.
  void complete_gradients(const StageUnit& unit);
  /// After the last unit of a step: all gradients are complete then.
  void settle_gradients();

  /// Loss and count of right answers of the unit whose forward ran last (on a device: of the unit
  /// that ended last); only on the stage that has the loss.
  bool has_loss(int variant) const;
  double loss_sum() const { return loss_sum_; }
  double correct() const { return correct_; }

  /// Sizes of the gradients that replicas add up, in the order in which a backward completes them.
  std::vector<std::size_t> gradient_sizes() const;
  /// Makes this stage one of several that run different units on the same weights. The group
  /// outlives it.
  void join(ReplicaGroup& group, int replica);
  /// Lets devices that wait run steps of this stage, which is one of `device`. It is there as long
  /// as any of them runs. Its workspace, for other work, too, while no kernel of its own runs, is
  /// at least so large.
  void share(SharedWork& work, int device, std::size_t workspace_bytes);
  Workspace workspace() const { return {workspace_, workspace_memory_.bytes()}; }
  /// Adds up gradients and collected running statistics over the replicas (`all`, in their order).
  /// `contributes`: whether this one has run a unit since the last update.
  void reduce(std::span<Stage* const> all, bool contributes);

  /// Copies the accumulators that other stages computed for tied weights; null: a stage that
  /// another process has, which hands them over as bytes.
  void fetch_remote(int variant, std::span<Stage* const> stages);
  std::string read_accumulator(int accumulation) const;
  void write_accumulator(int accumulation, std::string_view bytes);
  /// Runs what is done once a step: from accumulators to gradients.
  void finish_gradients(int variant, int version_copy);
  /// Writes the squared norm of each gradient owned here (a tied one counts once) to its place, by
  /// parameter index.
  void squared_norms(int variant, std::span<double> out);
  /// The optimizer's step, from weights in copy `from` to copy `to`; runs over the gradients of
  /// finish_gradients().
  void update(int variant, int from, int to, double learning_rate, std::int64_t step,
              double gradient_scale);
  /// Applies the running statistics collected since the last call, or forgets them.
  void apply_statistics();
  void forget_statistics();

  /// Reads or writes a parameter or running statistic by name; false when this stage does not hold
  /// it.
  bool read(const std::string& name, int version_copy, HostTensor& out) const;
  bool write(const std::string& name, const HostTensor& value);
  /// All parameters of one copy of the weights by name, and back.
  std::map<std::string, HostTensor> parameters(int version_copy) const;
  void set_parameters(int version_copy, const std::map<std::string, HostTensor>& values);
  /// What the stage remembers from one step to the next, with one copy of the weights; and back,
  /// into all copies. Of what it is given the stage takes what it holds; Error (kUsage) when a
  /// weight or running statistic is missing or of another type.
  StageContent content(int version_copy) const;
  void set_content(const StageContent& content);
  /// Puts the moving averages where the weights are, and these where those were.
  void exchange_averages(int version_copy);
  /// Reads the gradient that the last update of a parameter was made with; false when there is none
  /// here.
  bool read_gradient(const std::string& name, HostTensor& out) const;
  /// Adds to `out` what the kernels of a variant have taken since the last call.
  void take_kernel_times(int variant, KernelTimes& out);
  /// Name of the first value in this stage's gradients or weights that is not finite; empty when
  /// all are.
  std::string first_nonfinite(int version_copy) const;

 private:
  friend class StageCompiler;
  struct Compiled;
  struct ParameterState;
  struct StatisticState;
  class ListRun;
  class UpdateRun;
  /// A list of which most need not run yet. Its unit stands for several, or for none.
  struct PutOff {
    StageUnit unit;
    std::unique_ptr<ListRun> run;
    SharedWork::Job job;
  };
  void run(Compiled& variant, std::vector<StageStep>& steps, StageUnit& unit,
           std::byte* forward_base, std::byte* gradient_base, bool first);
  StageBases bases_of(const Compiled& variant, const StageUnit& unit, std::byte* forward_base,
                      std::byte* gradient_base);
  void prepare(Compiled& variant, int version_copy);
  void put_off_prepare(Compiled& variant, int version_copy);
  void settle_prepare();
  void put_off(PutOff& what, Compiled& variant, std::vector<StageStep>& steps, bool first);
  void add(const StageStepAddition& addition, const StageBases& bases, bool first);
  void gather(const Compiled& variant, const StageUnit& unit, const StageBases& bases);
  std::byte* gathered_set() const {
    return gathered_ + static_cast<std::size_t>(gathered_set_) * gathered_bytes_;
  }
  void collect_statistics(Compiled& variant, const StageUnit& unit, std::byte* forward_base);
  void merge_moments(const Compiled& variant, const std::byte* slot, const std::byte* prepared);
  void merge_moments();
  /// Copies between the stage's memory and the host.
  void move(void* to, const void* from, std::size_t bytes) const;
  HostTensor download(const TensorType& type, const void* data) const;
  void upload_running();

  int index_;
  StageCapacity capacity_;
  OptimizerSettings optimizer_;
  std::byte* gradient_address(const Compiled& variant, std::size_t k) const;

  std::vector<std::unique_ptr<Compiled>> variants_;
  std::vector<ParameterState> parameters_;
  std::map<std::string, StatisticState> statistics_;
  std::vector<std::byte*>
      accumulators_;  // by index of TrainingGraph::accumulations; null where not needed
  std::vector<std::unique_ptr<TouchedRows>> touched_rows_;  // by accumulation; null: not by rows
  std::byte* gathered_ = nullptr;  // what the last units have computed of some values, in sets
  std::size_t gathered_bytes_ = 0;
  int gathered_set_ = 0;           // that is being filled
  std::vector<int> gathered_of_;   // the variants of those units
  bool has_batch_sums_ = false;    // of earlier units of the step
  ReplicaGroup* group_ = nullptr;  // null: the only replica
  int replica_ = 0;
  SharedWork* shared_work_ = nullptr;  // null: nobody helps
  int device_ = 0;                     // as shared_work_ counts
  SharedWork::Job list_job_;           // of the list that runs
  PutOff batch_gradients_, preparation_;
  Compiled* preparing_ = nullptr;  // what preparation_ is for; null: nothing
  std::uint64_t preparing_generation_ = 0;
  std::vector<int> completion_;                // accumulations in the order of their completion
  std::vector<std::size_t> completed_as_;      // by accumulation: place in completion_
  std::map<std::string, HostTensor> running_;  // running statistics by name
  bool running_changed_ = true;                // since the device was given them
  std::unique_ptr<StageDevice> on_device_;     // null: in host memory
  Buffer arena_;
  Buffer workspace_memory_;
  std::byte* parameter_block_ = nullptr;
  std::size_t parameter_block_bytes_ = 0;
  std::byte* slots_ = nullptr;
  std::size_t slot_bytes_ = 0;
  std::byte* forward_out_ = nullptr;
  std::size_t forward_out_bytes_ = 0;
  std::byte* gradient_out_ = nullptr;
  std::size_t gradient_out_bytes_ = 0;
  std::byte* temporary_ = nullptr;
  std::byte* workspace_ = nullptr;
  float loss_scale_ = 1;
  double loss_sum_ = 0, correct_ = 0;
  std::uint64_t weight_generation_ = 1;
  std::vector<std::uint64_t> copy_generation_;
  ArenaBytes memory_;
};

}  // namespace pipetrain
