// Writes trained weights into a copy of the user's file, from a run in memory or from a checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "data/binding/bind.h"
#include "graph/graph.h"
#include "tensor/tensor.h"
#include "train/checkpoint.h"
#include "train/loaded_model.h"

namespace pipetrain {

class Network;

/// Writes the weights and running statistics that `read` gives by name (an empty tensor:
/// unchanged). `metadata`: entries that are added. `adapters`: a file for the adapters alone;
/// empty: none. Returns what was changed besides bytes.
std::vector<std::string> export_weights(const LoadedModel& model,
                                        const std::function<HostTensor(const std::string&)>& read,
                                        const OnnxMetadata& metadata, const std::string& path,
                                        bool overwrite_input, const std::string& adapters = {});

/// The tensors of `model.model` whose initial values export_weights() needs after a training of
/// `graph`: weights beside adapters, and copies that are not trained although their original is.
std::set<std::string> initial_values_in_export(const LoadedModel& model, const Graph& graph);

/// What the metadata of a trained file record about its training, for eval and predict.
struct TrainingDescription {
  bool synthetic = false;                // the data
  std::vector<std::string> class_names;  // in the order of their numbers
  std::string loss;                      // name of its kind
  std::string loss_output;               // the output that --logits names; empty: by rule
  std::int64_t ignore_index = -100;
  std::string label_column;   // of a table; empty: by rule
  std::string resize;         // of images, as --resize takes it
  std::string columns;        // of a table: how they were encoded (TableEncoding::text)
  std::string texts;          // how they became tokens (TextOptions::text)
  std::string first_index;    // of LibSVM's format: what its indices count from
  std::string masks;          // "numbered" (RawSplit::masks_are_numbered), or empty
  std::string normalization;  // as --normalize takes it, with what the data decided
  std::string image_shapes;   // of inputs that leave them open (text_of_image_shapes)
};
/// What "max" was in a training: its divisor, or one for each input by name where they differ.
Normalization as_measured(const std::map<std::string, double>& divisors);
/// The same of a network that has been trained.
TrainingDescription training_of(const Network& network);
/// Its metadata entries. None for an untrained file, which stays unchanged. `before`: those of the
/// file, which are replaced where they say something else.
OnnxMetadata describe_training(bool trained, const TrainingDescription& training,
                               const OnnxMetadata& before);
/// Takes the loss, the label column, how images are fitted, the encoding of columns, the tokenizer,
/// the length of texts, what indices count from, what 255 is in masks, the normalization and the
/// sizes of images that a model was trained with where the configuration leaves them open. Returns
/// a sentence that says which; empty: none.
std::string follow_training(const OnnxMetadata& metadata, RunConfig& config);
/// Weights of a checkpoint as a model is exported: the moving averages where there are some.
NamedTensors exported_weights(const Checkpoint& checkpoint);
/// Error (kUsage) where `output` is "-", a pipe or a device and the model keeps weights in other
/// files: those take one.
void check_one_file(const OnnxModel& model, const std::string& output);
/// The loss and its output that a model's metadata name; empty where they do not.
TrainingDescription described_training(const OnnxMetadata& metadata);
/// The names of the classes that a model was trained with; empty where it does not say.
std::vector<std::string> trained_classes(const OnnxModel& model);

}  // namespace pipetrain
