// Which loss fits a model, and attaching it. ONNX files for inference have none.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "passes/training_graph.h"

namespace pipetrain {

/// What is known about the labels before the loss is chosen.
/// kBinary: only 0 and 1, and not one 1 in each row. kNone: the data have one array, which is no
/// labels. kGenerated: made to fit the loss.
enum class LabelHint : std::uint8_t { kUnknown, kBinary, kInteger, kFloat, kNone, kGenerated };

struct LossOptions {
  std::string loss = "auto";  // or cross-entropy, bce, mse, l1, causal-lm, output
  std::string output;         // name of the model output to look at; empty: by rule
  LabelHint labels = LabelHint::kUnknown;
  bool has_data = false;            // real ones, also where their labels are not known
  bool labels_are_input = false;    // the model has an input for them
  bool of_one_sample = false;       // the model takes one sample at a time
  std::int64_t label_elements = 0;  // of a sample; 0: unknown
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;         // of cross-entropies
  std::vector<double> class_weights;  // of cross-entropies; empty: all 1
  bool balanced_classes = false;      // class_weights follow from the training data
  bool mixed_labels = false;  // cross-entropy with probabilities of classes, smoothed already
};

/// Where the classes of an output are: last in (N, C) and (N, T, C), second in (N, C, H, W), unless
/// its last nodes tell otherwise. With three axes, a LogSoftmax over the second one does. With
/// more, they are last, as in Keras, behind a Softmax or LogSoftmax over the last axis, or a
/// Transpose of (N, C, H, W) to (N, H, W, C), which a Sigmoid may follow.
std::size_t class_axis(const Graph& graph, ValueId output);

/// The Sigmoid that computes an output, or the Softmax or LogSoftmax over its classes. Reshape and
/// Transpose nodes may follow it.
struct FinalActivation {
  NodeId node;
  std::vector<NodeId> moves;  // the nodes that follow, from the output back
};
std::optional<FinalActivation> final_activation(const Graph& graph, ValueId output);

/// The output that the loss reads: the one that `options` name, else by its name and type. Error
/// (kUsage) for one that the model does not have, (kModel) where none has floats.
std::size_t output_of_loss(const TrainingGraph& training, const LossOptions& options);

/// Chooses the loss by the rules of task inference (shape of the output, last operator, type of the
/// labels), strips the final activation in favor of the fused loss, and adds label, loss and loss
/// scale. Error (kUsage) names the option to use where the rules are ambiguous.
void attach_loss(TrainingGraph& training, const LossOptions& options);

}  // namespace pipetrain
