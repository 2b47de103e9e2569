// The order of a model's nodes as plans write it down.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pipetrain {

/// An order in short: "0-17 25-30 18-24".
std::string order_text(std::span<const int> order);
/// Reads that for a model of `count` nodes. Error (kUsage) for what is no order of them.
std::vector<int> parse_order(std::string_view text, int count);

}  // namespace pipetrain
