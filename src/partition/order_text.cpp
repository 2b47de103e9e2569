#include "partition/order_text.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/index.h"

namespace pipetrain {

std::string order_text(std::span<const int> order) {
  std::string out;
  for (std::size_t i = 0; i < order.size();) {
    std::size_t end = i + 1;
    while (end < order.size() && order[end] == order[end - 1] + 1) ++end;
    if (!out.empty()) out += ' ';
    out +=
        end == i + 1 ? fmt::format("{}", order[i]) : fmt::format("{}-{}", order[i], order[end - 1]);
    i = end;
  }
  return out;
}

std::vector<int> parse_order(std::string_view text, int count) {
  std::vector<int> out;
  std::vector<bool> known(at(count), false);
  const auto refuse = [&](std::string_view part) {
    PT_FAIL(kUsage,
            "\"{}\" is not a range of nodes; an order lists each of the model's {} nodes once, "
            "such as \"0-{}\"",
            printable(part), count, count - 1);
  };
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    begin = end + 1;
    if (part.empty()) continue;
    int first = 0, last = 0;
    const char* stop = part.data() + part.size();
    auto read = std::from_chars(part.data(), stop, first);
    last = first;
    if (read.ec == std::errc() && read.ptr != stop && *read.ptr == '-')
      read = std::from_chars(read.ptr + 1, stop, last);
    if (read.ec != std::errc() || read.ptr != stop || first < 0 || last < first || last >= count)
      refuse(part);
    for (int node = first; node <= last; ++node) {
      if (known[at(node)]) refuse(part);
      known[at(node)] = true;
      out.push_back(node);
    }
  }
  PT_CHECK(static_cast<int>(out.size()) == count, kUsage,
           "the order has {} of the {} nodes of the model", out.size(), count);
  return out;
}

}  // namespace pipetrain
