#include "train/checkpoint_parts.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <system_error>
#include <utility>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/index.h"
#include "base/input_file.h"
#include "base/log.h"
#include "processes/process_group.h"
#include "train/saving.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

void put_files(ByteWriter& writer, const std::vector<FileRecord>& files) {
  writer.put(static_cast<std::uint64_t>(files.size()));
  for (const FileRecord& file : files) {
    writer.put_text(file.name);
    writer.put(file.bytes);
    writer.put_text(file.sha256);
    writer.put(static_cast<std::uint64_t>(file.tensors.size()));
    for (const TensorPlace& place : file.tensors) {
      writer.put_text(place.name);
      writer.put(place.offset);
      writer.put(place.bytes);
      writer.put(place.crc32c);
    }
  }
}

std::vector<FileRecord> get_files(ByteReader& reader) {
  std::vector<FileRecord> files(reader.get<std::uint64_t>());
  for (FileRecord& file : files) {
    file.name = reader.get_text();
    file.bytes = reader.get<std::uint64_t>();
    file.sha256 = reader.get_text();
    file.tensors.resize(reader.get<std::uint64_t>());
    for (TensorPlace& place : file.tensors) {
      place.name = reader.get_text();
      place.offset = reader.get<std::uint64_t>();
      place.bytes = reader.get<std::uint64_t>();
      place.crc32c = reader.get<std::uint32_t>();
    }
  }
  return files;
}

/// What a process tells of its part: why it failed, or else its files and the updates of its
/// stages.
std::string record_of(const std::string& failure, const std::vector<FileRecord>& files,
                      const std::vector<std::int64_t>& updates) {
  ByteWriter writer;
  writer.put_text(failure);
  put_files(writer, files);
  writer.put(static_cast<std::uint64_t>(updates.size()));
  for (const std::int64_t count : updates) writer.put(count);
  return writer.take();
}

void add_record(std::string_view record, Checkpoint& whole, std::string& failure) {
  ByteReader reader(record);
  const std::string failed(reader.get_text());
  if (failure.empty()) failure = failed;
  for (FileRecord& file : get_files(reader)) whole.files.push_back(std::move(file));
  whole.updates.resize(std::max<std::size_t>(whole.updates.size(), reader.get<std::uint64_t>()));
  for (std::int64_t& count : whole.updates)
    count = std::max(count, reader.get<std::int64_t>());  // 0 for stages of other processes
}

std::string reason_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.message();
  } catch (const std::exception& error) {
    return fmt::format("a checkpoint could not be written: {}", error.what());
  }
  return {};
}

/// Which process sends each tensor, with its type: the first that has it.
struct Sender {
  int process = 0;
  TensorType type;
};
std::map<std::string, Sender> senders_of(ProcessGroup& processes, const NamedTensors& tensors) {
  ByteWriter mine;
  for (const auto& [name, tensor] : tensors) {
    mine.put_text(name);
    mine.put(tensor.dtype());
    mine.put(static_cast<std::uint64_t>(tensor.shape().rank()));
    for (const std::int64_t dim : tensor.shape()) mine.put(dim);
  }
  std::map<std::string, Sender> out;
  int process = 0;
  for (const std::string& bytes : processes.all_gather(mine.take())) {
    for (ByteReader reader(bytes); !reader.at_end();) {
      const std::string name(reader.get_text());
      const auto dtype = reader.get<DType>();
      std::vector<std::int64_t> dims(reader.get<std::uint64_t>());
      for (std::int64_t& dim : dims) dim = reader.get<std::int64_t>();
      out.emplace(name, Sender{process, {dtype, Shape(std::move(dims)), Layout::kRowMajor}});
    }
    ++process;
  }
  return out;
}

std::span<const std::byte> bytes_in(const HostTensor& tensor) {
  return {static_cast<const std::byte*>(tensor.view().data), tensor.type().bytes()};
}

/// Process 0 writes a file of the tensors of all, one by one; the others send theirs. Returns why
/// it failed; empty: it did not.
std::string stream_file(ProcessGroup& processes, const fs::path& path, const NamedTensors& mine,
                        std::vector<FileRecord>& files) {
  const std::map<std::string, Sender> senders = senders_of(processes, mine);
  if (senders.empty()) return {};
  if (!processes.leads()) {
    for (const auto& [name, sender] : senders) {
      if (sender.process != processes.rank()) continue;
      const auto bytes = bytes_in(mine.at(name));
      processes.send({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, 0);
    }
    return {};
  }
  TensorTypes types;
  for (const auto& [name, sender] : senders) types.emplace(name, sender.type);
  std::string received;
  auto next = senders.begin();  // the writer asks in this order
  const auto take = [&](const std::string& name) -> std::span<const std::byte> {
    const Sender& sender = next->second;
    ++next;
    if (sender.process == 0) return bytes_in(mine.at(name));
    received = processes.receive(sender.process);
    PT_CHECK(received.size() == sender.type.bytes(), kInternal, "{} bytes of \"{}\" were sent",
             received.size(), printable(name));
    return std::as_bytes(std::span<const char>(received));
  };
  const std::string failure =
      reason_of([&] { files.push_back(write_safetensors(path, types, take)); });
  processes.check_failure();  // which is another one's
  // What nobody writes any more must still be received.
  for (; next != senders.end(); ++next) {
    if (next->second.process != 0) processes.receive(next->second.process);
  }
  return failure;
}

}  // namespace

CheckpointParts::CheckpointParts(ProcessGroup& processes, Saving& saving, const fs::path& folder,
                                 bool only_finite)
    : processes_(processes), saving_(saving), only_finite_(only_finite) {
  find_out(folder);
}

/// Process 0 writes a file, and all look for it.
void CheckpointParts::find_out(const fs::path& folder) {
  constexpr double kPatience = 1;  // network file systems may remember for a while what is missing
  ByteWriter first;
  fs::path probe;
  if (processes_.leads()) {
    tag_ = fmt::format("{}-{:x}", ::getpid(),
                       std::chrono::system_clock::now().time_since_epoch().count());
    if (!folder.empty()) {
      folder_ = fs::absolute(folder);
      probe = folder_ / (".probe-" + tag_ + ".tmp");
      const std::string failure = reason_of([&] {
        make_directories(folder_);
        write_file(probe, tag_);
      });
      if (!failure.empty()) log_debug("checkpoint", "{}", failure);
    }
  }
  first.put_text(folder_.string());
  first.put_text(tag_);
  const std::string told = processes_.broadcast(first.take());
  ByteReader reader(told);
  folder_ = fs::path(reader.get_text());
  tag_ = reader.get_text();
  if (folder_.empty()) return;
  probe = folder_ / (".probe-" + tag_ + ".tmp");
  const auto is_seen = [&] {
    std::error_code error;
    if (!fs::is_regular_file(probe, error)) return false;
    std::string text;
    const std::string failure =
        reason_of([&] { text = read_file(probe, ErrorKind::kResource, 1024); });
    return failure.empty() && text == tag_;
  };
  const double begin = steady_seconds();
  bool seen = is_seen();
  while (!seen && !processes_.leads() && steady_seconds() - begin < kPatience) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    seen = is_seen();
  }
  const std::vector<std::string> all = processes_.all_gather(seen ? "1" : "0");
  shared_ = std::ranges::count(all, "1") == std::ssize(all);
  std::error_code ignored;
  if (processes_.leads()) fs::remove(probe, ignored);
  if (processes_.leads() && !shared_)
    log_info("checkpoint", "note     not all processes see {}: process 0 writes for all",
             printable(folder_.string()));
}

void CheckpointParts::save(Checkpoint whole, Checkpoint part) {
  if (folder_.empty()) return;
  finish();
  whole_ = std::move(whole);
  unfinished_ = unfinished_folder(folder_, part.step, fmt::format("{}-{}", tag_, number_++));
  failure_.clear();
  told_.assign(at(processes_.size()), false);
  pending_ = true;
  if (shared_) return begin(std::move(part));
  stream(part);
}

void CheckpointParts::begin(Checkpoint part) {
  written_ = false;
  writer_ = std::jthread([this, part = std::move(part)] {
    std::vector<FileRecord> files;
    std::string failure = reason_of([&] {
      if (only_finite_) check_finite(part);
      files = write_part(unfinished_, part, processes_.rank());
    });
    const std::lock_guard lock(mutex_);
    record_ = record_of(failure, files, part.updates);
    written_ = true;
    changed_.notify_all();
  });
}

/// What is not finite is seen by who has it; all then know.
void CheckpointParts::stream(const Checkpoint& part) {
  std::string failure = reason_of([&] {
    if (only_finite_) check_finite(part);
    if (processes_.leads()) {
      const std::error_code error = make_directories(unfinished_);
      PT_CHECK(!error, kResource, "cannot create the folder {}: {}",
               printable(unfinished_.string()), error.message());
    }
  });
  const std::vector<std::string> all = processes_.all_gather(failure);
  const bool fails = std::ranges::any_of(all, [](const auto& text) { return !text.empty(); });
  std::vector<FileRecord> files;
  for (const auto& [name, tensors] :
       {std::pair("weights", &part.weights), std::pair("optimizer", &part.optimizer)}) {
    if (fails || !failure.empty()) break;
    const std::string failed =
        stream_file(processes_, unfinished_ / fmt::format("{}.safetensors", name), *tensors, files);
    failure = processes_.broadcast(failed);
  }
  int process = 0;
  for (const std::string& record : processes_.all_gather(record_of(failure, files, part.updates)))
    note(process++, record);
}

std::string CheckpointParts::take_record() {
  const std::lock_guard lock(mutex_);
  return std::exchange(record_, {});
}

void CheckpointParts::note(int process, std::string_view record) {
  if (processes_.leads()) add_record(record, whole_, failure_);
  told_[at(process)] = true;
  if (!std::ranges::all_of(told_, [](bool told) { return told; })) return;
  pending_ = false;
  if (processes_.leads()) complete();
}

/// Process 0 has the records of all.
void CheckpointParts::complete() {
  if (failure_.empty()) {
    whole_.written_in = unfinished_;
    saving_.save(std::exchange(whole_, {}));
    return;
  }
  saving_.note_failure(failure_);
  whole_ = {};
  std::error_code ignored;
  fs::remove_all(unfinished_, ignored);
}

void CheckpointParts::finish() {
  const double begin = steady_seconds();
  const std::chrono::duration<double> patience(saving_.patience_seconds());
  while (pending_) {
    // Whose part is written waits for the others below.
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [&] { return written_; });
    lock.unlock();
    int process = 0;
    for (const std::string& record : processes_.all_gather(take_record())) {
      if (!record.empty()) note(process, record);
      ++process;
    }
    if (pending_ && processes_.leads()) say_who_writes(steady_seconds() - begin);
  }
}

void CheckpointParts::say_who_writes(double seconds) const {
  std::string who;
  for (int process = 0; process < processes_.size(); ++process) {
    if (!told_[at(process)])
      who += fmt::format("{}{}", who.empty() ? "" : ", ", processes_.name_of(process));
  }
  log_warning("checkpoint",
              "training has waited {:.1f} s for {} to write parts of the checkpoint of step {}",
              seconds, who, whole_.step);
}

}  // namespace pipetrain
