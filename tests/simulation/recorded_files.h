// Records what a program does to a folder, and says what may be left of it after a power loss: what
// fsync has promised, and any part of the rest in any order.
//
// A file's bytes last once the file has been synced, an entry of a directory once that directory
// has. Until then each write may be lost, kept or cut in half, and each change of a directory lost
// or kept, whatever came after it. (File systems that keep more are easier to live with.)
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace pipetrain::simulation {

class RecordedFiles {
 public:
  /// Records everything below a folder, which is empty, from here to stop(). `exchanges`: whether
  /// its file system can exchange directories.
  explicit RecordedFiles(std::filesystem::path folder, bool exchanges = true);
  ~RecordedFiles();
  RecordedFiles(const RecordedFiles&) = delete;
  RecordedFiles& operator=(const RecordedFiles&) = delete;
  void stop();

  /// How many operations there have been.
  std::size_t operations() const { return operations_.size(); }
  /// Which of the first `end` operations are not yet promised.
  std::vector<std::size_t> unpromised(std::size_t end) const;
  enum class Fate : std::uint8_t { kLost, kKept, kCut };
  /// Writes into an empty folder what is left where power fails after `end` operations; `fate`: of
  /// those that are not promised.
  void leave(std::size_t end, const std::function<Fate(std::size_t)>& fate,
             const std::filesystem::path& folder) const;
  /// For messages.
  std::string describe(std::size_t operation) const;

  // Called where the program calls the operating system. They do nothing elsewhere.
  static RecordedFiles* recording();
  void opened(int descriptor, const std::string& path, int flags, bool existed);
  void wrote(int descriptor, std::string bytes);
  void resized(int descriptor, std::int64_t size);
  void moved(int descriptor, std::int64_t offset);
  void synced(int descriptor);
  void closed(int descriptor);
  void made_directory(const std::string& path);
  void renamed(const std::string& from, const std::string& to, bool exchanged);
  void removed(const std::string& path);
  bool is_below(const std::string& path) const;
  bool exchanges() const { return exchanges_; }

 private:
  using Node = int;  // a file or a directory
  enum class Kind : std::uint8_t { kWrite, kResize, kSync, kEnter, kRename, kExchange, kRemove };
  struct Operation {
    Kind kind;
    Node node = 0;  // the file; the directory whose entries change
    std::string name, other;
    Node entry = 0;
    std::int64_t offset = 0;
    std::string bytes;
  };
  struct Content {
    bool is_directory = false;
    std::map<std::string, Node> entries;
    std::string bytes;
  };
  struct Open {
    Node node;
    std::int64_t offset;
  };
  std::pair<Node, std::string> place_of(const std::string& path) const;
  Node node_of(const std::string& path) const;
  void add(Operation operation);
  static void apply(const Operation& operation, bool cut, std::vector<Content>& nodes);
  static void write(const std::vector<Content>& nodes, Node node, const std::filesystem::path& to);

  std::filesystem::path folder_;
  bool exchanges_;
  std::vector<Operation> operations_;
  std::vector<Content> nodes_;  // as they are now; [0]: the folder
  std::map<int, Open> open_;
};

}  // namespace pipetrain::simulation
