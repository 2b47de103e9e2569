// A network whose kernels are measured in a moment.
#pragma once

#include <string>
#include <utility>

#include "graph/builder.h"
#include "passes/differentiate.h"
#include "profile/measure.h"

namespace pipetrain::test {

/// x (batch, width) → [MatMul → LayerNorm] × layers → MatMul → cross-entropy over 10 classes.
inline TrainingGraph perceptron(std::int64_t batch, std::int64_t width, int layers) {
  TrainingGraph training;
  training.micro_batch = batch;
  GraphBuilder builder = make_builder(training.graph);
  const auto input = [&](const char* name, TensorType type, Role role) {
    Value value;
    value.name = name;
    value.type = std::move(type);
    value.role = role;
    return builder.add_value(value);
  };
  const auto parameter = [&](const std::string& name, Shape shape) {
    Value value;
    value.name = name;
    value.type = {DType::kFloat32, shape};
    value.role = Role::kParameter;
    value.data = HostTensor(value.type);
    for (float& x : value.data.span<float>()) x = 0.01F;
    const ValueId id = builder.add_value(value);
    training.parameters.push_back({name, id, {}});
    return id;
  };
  ValueId h = input("x", {DType::kFloat32, Shape{batch, width}}, Role::kInput);
  training.inputs = {{"x", h, -1}};
  for (int layer = 0; layer < layers; ++layer) {
    const std::string name = "layer" + std::to_string(layer);
    builder.set_origin(name, Part::kForward);
    h = builder.add("MatMul", {h, parameter(name + ".weight", {width, width})});
    h = builder.add("LayerNorm", {h, parameter(name + ".scale", {width})},
                    {{"axis", std::int64_t{1}}, {"epsilon", 1e-5}});
  }
  builder.set_origin("head", Part::kForward);
  h = builder.add("MatMul", {h, parameter("head.weight", {width, 10})});
  training.outputs = {h};
  training.output_names = {"logits"};
  training.loss.label = input("label", {DType::kInt64, Shape{batch}}, Role::kLabel);
  training.loss.loss_scale = input("scale", {DType::kFloat32, Shape{}}, Role::kLossScale);
  training.loss.classes = 10;
  builder.set_origin("loss", Part::kForward);
  const auto loss = builder.add_all("SoftmaxCrossEntropy", {h, training.loss.label},
                                    {{"ignore_index", std::int64_t{-100}}});
  training.loss.loss_sum = loss[0];
  training.loss.correct = loss[1];
  differentiate(training);
  return training;
}

/// Measures few times, without the cache of earlier measurements.
inline ProfileOptions quick() {
  ProfileOptions options;
  options.repeats = 3;
  options.seconds = 1e-3;
  options.use_cache = false;
  return options;
}

}  // namespace pipetrain::test
