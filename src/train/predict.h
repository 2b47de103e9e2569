// A model's outputs for samples, without a loss: on one device, batch by batch.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/rows/dataset.h"
#include "data/rows/raw_data.h"
#include "data/rows/text_options.h"
#include "train/config.h"
#include "train/loaded_model.h"

namespace pipetrain {

/// Whether a column says that it is the labels, or has one of their usual names.
bool holds_labels(const RawColumn& column);
/// Shapes of the samples by the names of the inputs that the outputs, or the one of `output_node`,
/// depend on: of the arrays that `bindings` give them, else by the arrays' names, else by position
/// among the inputs and arrays that are left. `of_images`: those that images are brought to; others
/// have the size of the first image.
std::map<std::string, Shape> shapes_of_samples(
    const OnnxModel& model, const RawData& raw, const std::string& output_node = {},
    const std::map<std::string, Shape>& of_images = {},
    std::span<const std::pair<std::string, std::string>> bindings = {});

/// Tokens of a sample, as the file or the configuration fixes it; 0: any number, or no tokens.
std::size_t token_length(const OnnxModel& model, const ModelConfig& config);
/// Tells the reader of the data these, of all inputs of tokens.
void take_token_lengths(const OnnxModel& model, const ModelConfig& config, TextOptions& text);

class Predictor {
 public:
  /// `sample_shapes`: of inputs that the file leaves open. A model with a fixed batch keeps it.
  Predictor(const ModelConfig& model, Backend backend, std::int64_t batch,
            const std::map<std::string, Shape>& sample_shapes);

  /// Inputs and outputs as they are computed, forward only.
  const TrainingGraph& graph() const { return graph_; }
  std::int64_t batch() const { return graph_.micro_batch; }
  /// What the data are bound to.
  DataSpec data_spec() const;
  /// Replaces parameters and running statistics by name; others stay.
  void set_weights(const std::map<std::string, HostTensor>& weights);
  /// Outputs for samples `first` to `first + samples` (at most a batch) of a data set, whose first
  /// columns are the model's inputs. Each is (samples, …), unless its first axis is not the batch.
  std::vector<HostTensor> run(const Dataset& data, std::size_t first, std::size_t samples) const;

 private:
  Backend backend_;
  TrainingGraph graph_;
};

}  // namespace pipetrain
