// Initial weights, for training from scratch and for new last layers.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tensor/tensor.h"
#include "train/loaded_model.h"

namespace pipetrain {

/// Values for every trained tensor and running statistic (except those of norms that options
/// freeze), a function of the seed and the tensor's name, by PyTorch's defaults: uniform within
/// 1 / sqrt(fan in) for the weights and biases of linear and convolutional layers, within
/// 1 / sqrt(hidden size) for recurrent ones; gains 1, shifts 0, running means 0 and variances 1.
/// Embeddings and tensors without a rule get a normal distribution of standard deviation 0.02, as
/// is usual for language models; biases without a weight 0.
std::map<std::string, HostTensor> fresh_weights(const LoadedModel& model, std::uint64_t seed);

}  // namespace pipetrain
