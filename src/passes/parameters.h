// Decides which tensors of a file are trained, and which shared tensors are really tied. ONNX
// records neither: exporters store constants and weights alike, and merge tensors that happen to
// have equal values.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "onnx_io/model.h"

namespace pipetrain {

enum class TensorUse : std::uint8_t { kTrained, kFrozen, kRunningStatistic };

struct TensorRule {
  TensorUse use = TensorUse::kFrozen;
  std::string reason;  // "weight of Conv", "scalar constant", …: printed by `inspect`
  bool decays = true;  // false: a bias, or gain or shift of a norm, which weight decay leaves alone
  // Frozen as a constant, by its name and values alone; it may be a parameter.
  bool doubtful = false;
  bool frozen_by_option = false;  // an option leaves the tensor as it is
};

/// The rule for a tensor that is not trained because an option says so.
TensorRule frozen_rule(std::string reason, bool decays);

/// What training undoes of the changes that an exporter made to parameters.
enum class Undone {
  kNothing,  // the tensors of the file are trained
  kMerging,  // tensors that were merged or expanded to the batch are trained as they were before
  kRemoval,  // and so are biases that were removed because they were zero
};

struct ParameterOptions {
  std::vector<std::string> freeze;      // globs over tensor names; matching tensors are not trained
  std::vector<std::string> train_only;  // globs; if any is given, only matching tensors are trained
  Undone undone = Undone::kMerging;
};

/// A tensor that an exporter merged with others, trained as a separate copy, at one of the places
/// where it is used.
struct UntiedCopy {
  std::string name;      // of the copy, as reported
  std::string original;  // initializer that holds the initial value
  // The place: input `slot` of `nodes[node]` of the model as it was read.
  std::size_t node = 0;
  std::size_t slot = 0;
};

/// Whether the node's input is a running statistic, which training replaces.
bool is_statistic_slot(const OnnxNode& node, std::size_t slot);

/// Rules for every floating-point initializer and Constant of a file, by name, in this order:
/// running statistics, what PyTorch's metadata call a parameter, scalars (but not a module's gain)
/// and other single elements (but not the biases of layers with one output),
/// the rest of these metadata, parameter slots of operators, operands of arithmetic (but not means
/// and deviations of inputs). A tensor counts for a slot or an operand if only what
/// moves its elements lies between; through differentiable arithmetic on weights, such as weight
/// normalization or W + B A, if it is named like a parameter, or is a module's or a matrix and
/// neither its name nor its values are a constant's (`parameter_names.h`). What `train_only`
/// matches counts as trained. freeze_tensors() follows, after untie_copies().
std::map<std::string, TensorRule> classify_tensors(const OnnxModel& model,
                                                   const ParameterOptions& options);

/// Freezes what the options say. Error (kUsage) for a pattern without a match.
void freeze_tensors(std::map<std::string, TensorRule>& rules, const ParameterOptions& options);

/// One sentence on the doubtful tensors of the rules, and how to train them; empty if there are
/// none.
std::string note_on_uncertain_parameters(const std::map<std::string, TensorRule>& rules);

/// One sentence on weights inside If, Loop and Scan, which are not trained; empty if there are
/// none.
std::string note_on_tensors_in_subgraphs(const OnnxModel& model);

/// Replaces merged tensors by copies of their own, in the model, and returns what was done. Untied
/// are tensors that are reached through an Identity node with a name of its own, and vectors of
/// equal elements (fresh biases and norm gains) used at several places, unless the file says that
/// these are calls of one module, the layers have the same weights, or nothing was merged by value
/// (equal tensors are stored, or PyTorch's older exporter shows what it merged). Everything else
/// that is shared stays tied, and so do `restored` tensors, which are one parameter each. Rules for
/// the copies are added to `rules`.
std::vector<UntiedCopy> untie_copies(OnnxModel& model, std::map<std::string, TensorRule>& rules,
                                     const std::set<std::string_view>& restored = {});

/// Whether `text` matches a glob of `*` and `?`.
bool matches_glob(std::string_view glob, std::string_view text);

}  // namespace pipetrain
