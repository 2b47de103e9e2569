// What a stage sends and receives when devices exchange values instead of copying them.
#include "base/index.h"
#include "pipeline/stage/stage.h"
#include "pipeline/transport/exchange.h"

namespace pipetrain {
namespace {

/// Every value of a buffer begins where any element type may lie.
std::size_t padded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

std::vector<ExchangedSpan> Stage::handed_on(int variant, const ValueEdge& edge,
                                            const std::byte* base) const {
  const CompiledVariant& compiled = this->compiled(variant);
  std::vector<ExchangedSpan> spans;
  for (const ValueId id : edge.values) {
    const std::byte* data = base + compiled.layout.location.at(id).offset;
    spans.push_back({const_cast<std::byte*>(data), compiled.training->graph[id].type.bytes()});
  }
  return spans;
}

std::size_t Stage::received_bytes(int variant, const ValueEdge& edge) const {
  std::size_t bytes = 0;
  for (const ValueId id : edge.values)
    bytes += padded(compiled(variant).training->graph[id].type.bytes());
  return bytes;
}

std::vector<ExchangedSpan> Stage::received(int variant, const ValueEdge& edge,
                                           std::byte* buffer) const {
  std::vector<ExchangedSpan> spans;
  for (const ValueId id : edge.values) {
    const std::size_t bytes = compiled(variant).training->graph[id].type.bytes();
    spans.push_back({buffer, bytes});
    buffer += padded(bytes);
  }
  return spans;
}

void Stage::bind_buffer(int variant, const ValueEdge& edge, std::byte* buffer,
                        StageMicroBatch& micro_batch) const {
  const std::vector<ExchangedSpan> spans = received(variant, edge, buffer);
  const StageLayout& layout = compiled(variant).layout;
  for (std::size_t i = 0; i < spans.size(); ++i)
    micro_batch.table[layout.table.at(edge.values[i])] = spans[i].data;
}

}  // namespace pipetrain
