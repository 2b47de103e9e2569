#include "simulation/recorded_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <set>

namespace pipetrain::simulation {
namespace {

RecordedFiles* the_recording = nullptr;

}  // namespace

RecordedFiles* RecordedFiles::recording() { return the_recording; }

RecordedFiles::RecordedFiles(std::filesystem::path folder, bool exchanges)
    : folder_(std::move(folder)), exchanges_(exchanges) {
  nodes_.push_back({.is_directory = true});
  the_recording = this;
}

RecordedFiles::~RecordedFiles() { stop(); }

void RecordedFiles::stop() {
  if (the_recording == this) the_recording = nullptr;
}

bool RecordedFiles::is_below(const std::string& path) const {
  return path == folder_.string() || path.starts_with(folder_.string() + "/");
}

/// The directory of a path, and the name in it.
std::pair<RecordedFiles::Node, std::string> RecordedFiles::place_of(const std::string& path) const {
  Node node = 0;
  std::string name;
  for (const auto& part : std::filesystem::path(path).lexically_relative(folder_)) {
    if (part == "." || part.empty()) continue;
    if (!name.empty()) node = nodes_[static_cast<std::size_t>(node)].entries.at(name);
    name = part.string();
  }
  return {node, name};
}

RecordedFiles::Node RecordedFiles::node_of(const std::string& path) const {
  const auto [directory, name] = place_of(path);
  return name.empty() ? 0 : nodes_[static_cast<std::size_t>(directory)].entries.at(name);
}

void RecordedFiles::add(Operation operation) {
  apply(operation, /*cut=*/false, nodes_);
  operations_.push_back(std::move(operation));
}

void RecordedFiles::opened(int descriptor, const std::string& path, int flags, bool existed) {
  if ((flags & O_CREAT) != 0 && !existed) {
    const auto [directory, name] = place_of(path);
    nodes_.emplace_back();
    add({.kind = Kind::kEnter,
         .node = directory,
         .name = name,
         .entry = static_cast<Node>(nodes_.size()) - 1});
  }
  const Node node = node_of(path);
  open_[descriptor] = {node, 0};
  if ((flags & O_TRUNC) != 0 && existed) add({.kind = Kind::kResize, .node = node});
}

void RecordedFiles::wrote(int descriptor, std::string bytes) {
  const auto found = open_.find(descriptor);
  if (found == open_.end()) return;
  const std::int64_t offset = found->second.offset;
  found->second.offset += static_cast<std::int64_t>(bytes.size());
  add({.kind = Kind::kWrite,
       .node = found->second.node,
       .offset = offset,
       .bytes = std::move(bytes)});
}

void RecordedFiles::resized(int descriptor, std::int64_t size) {
  const auto found = open_.find(descriptor);
  if (found != open_.end())
    add({.kind = Kind::kResize, .node = found->second.node, .offset = size});
}

void RecordedFiles::moved(int descriptor, std::int64_t offset) {
  const auto found = open_.find(descriptor);
  if (found != open_.end()) found->second.offset = offset;
}

void RecordedFiles::synced(int descriptor) {
  const auto found = open_.find(descriptor);
  if (found != open_.end()) add({.kind = Kind::kSync, .node = found->second.node});
}

void RecordedFiles::closed(int descriptor) { open_.erase(descriptor); }

void RecordedFiles::made_directory(const std::string& path) {
  const auto [directory, name] = place_of(path);
  nodes_.push_back({.is_directory = true});
  add({.kind = Kind::kEnter,
       .node = directory,
       .name = name,
       .entry = static_cast<Node>(nodes_.size()) - 1});
}

void RecordedFiles::renamed(const std::string& from, const std::string& to, bool exchanged) {
  const auto [directory, name] = place_of(from);
  const auto [target, other] = place_of(to);
  if (directory != target) throw std::runtime_error("a rename between directories");
  const Node entry = node_of(from), exchanged_entry = exchanged ? node_of(to) : 0;
  add({.kind = exchanged ? Kind::kExchange : Kind::kRename,
       .node = directory,
       .name = name,
       .other = other,
       .entry = entry,
       .offset = exchanged_entry});
}

void RecordedFiles::removed(const std::string& path) {
  const auto [directory, name] = place_of(path);
  add({.kind = Kind::kRemove, .node = directory, .name = name});
}

void RecordedFiles::apply(const Operation& operation, bool cut, std::vector<Content>& nodes) {
  Content& node = nodes[static_cast<std::size_t>(operation.node)];
  const auto offset = static_cast<std::size_t>(operation.offset);
  switch (operation.kind) {
    case Kind::kWrite: {
      const std::string bytes = operation.bytes.substr(0, operation.bytes.size() / (cut ? 2 : 1));
      if (node.bytes.size() < offset + bytes.size()) node.bytes.resize(offset + bytes.size());
      node.bytes.replace(offset, bytes.size(), bytes);
      break;
    }
    case Kind::kResize:
      node.bytes.resize(offset);
      break;
    case Kind::kEnter:
      node.entries[operation.name] = operation.entry;
      break;
    case Kind::kRename:
      node.entries.erase(operation.name);
      node.entries[operation.other] = operation.entry;
      break;
    case Kind::kExchange:
      node.entries[operation.name] = static_cast<Node>(operation.offset);
      node.entries[operation.other] = operation.entry;
      break;
    case Kind::kRemove:
      node.entries.erase(operation.name);
      break;
    case Kind::kSync:
      break;
  }
}

std::vector<std::size_t> RecordedFiles::unpromised(std::size_t end) const {
  std::vector<std::size_t> out;
  std::set<Node> synced;  // behind the operation that is looked at
  for (std::size_t i = end; i-- > 0;) {
    if (operations_[i].kind == Kind::kSync) {
      synced.insert(operations_[i].node);
    } else if (!synced.contains(operations_[i].node)) {
      out.insert(out.begin(), i);
    }
  }
  return out;
}

void RecordedFiles::leave(std::size_t end, const std::function<Fate(std::size_t)>& fate,
                          const std::filesystem::path& folder) const {
  const std::vector<std::size_t> open = unpromised(end);
  const std::set<std::size_t> unpromised(open.begin(), open.end());
  std::vector<Content> nodes(nodes_.size());
  for (std::size_t n = 0; n < nodes.size(); ++n) nodes[n].is_directory = nodes_[n].is_directory;
  for (std::size_t i = 0; i < end; ++i) {
    const Fate of_this = unpromised.contains(i) ? fate(i) : Fate::kKept;
    if (of_this != Fate::kLost) apply(operations_[i], of_this == Fate::kCut, nodes);
  }
  write(nodes, 0, folder);
}

void RecordedFiles::write(const std::vector<Content>& nodes, Node node,
                          const std::filesystem::path& to) {
  const Content& content = nodes[static_cast<std::size_t>(node)];
  if (!content.is_directory) {
    std::ofstream(to, std::ios::binary)
        .write(content.bytes.data(), static_cast<std::streamsize>(content.bytes.size()));
    return;
  }
  std::filesystem::create_directory(to);
  for (const auto& [name, entry] : content.entries) write(nodes, entry, to / name);
}

std::string RecordedFiles::describe(std::size_t operation) const {
  static const char* const words[] = {"write",  "resize",   "sync",  "enter",
                                      "rename", "exchange", "remove"};
  const Operation& one = operations_[operation];
  return fmt::format("{} node {} {} {}", words[static_cast<int>(one.kind)], one.node, one.name,
                     one.other);
}

}  // namespace pipetrain::simulation
