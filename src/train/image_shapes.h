// The shapes that a training has brought images to where its model leaves them open, by input.
#pragma once

#include <map>
#include <string>

#include "tensor/tensor.h"

namespace pipetrain {

class Network;

/// Those of the samples that a network was trained on. None where labels belong to pixels: such
/// models take images as large as they are.
std::map<std::string, Shape> open_image_shapes(const Network& network);
/// {"x":[3,224,224]}; empty: none.
std::string text_of_image_shapes(const std::map<std::string, Shape>& shapes);
/// The shapes of such a text. Error kModel.
std::map<std::string, Shape> parse_image_shapes(const std::string& text);

}  // namespace pipetrain
