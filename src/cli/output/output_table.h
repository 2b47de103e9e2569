// A model's outputs as a file: NumPy's npz, CSV or JSON Lines.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace pipetrain {

/// The bytes of an .npy file: numbers, or texts as NumPy's fixed-width characters.
std::string npy_text(const HostTensor& value);
std::string npy_text(const std::vector<std::string>& texts);
/// The bytes of an .npz archive (stored, not compressed) of .npy files, by the arrays' names.
std::string npz_text(const std::vector<std::pair<std::string, std::string>>& arrays);

/// A row of values as JSON: nested as its shape is; what is not finite becomes null.
std::string json_values(const Tensor& values, std::size_t row);

/// A row of all outputs as CSV without its line end; "nan" and "inf" are written as such.
std::string csv_values(const std::vector<HostTensor>& outputs, std::size_t row);
/// The names of its columns: NAME for one number, NAME_0, NAME_1, … for several.
std::string csv_header(const std::vector<std::string>& names,
                       const std::vector<HostTensor>& outputs);

}  // namespace pipetrain
