#include "train/data_shards.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "base/checksum.h"
#include "base/error.h"
#include "base/setting.h"
#include "data/loading/shards.h"
#include "processes/process_group.h"
#include "train/batch_source.h"
#include "train/fingerprint.h"
#include "train/process_agreement.h"

namespace pipetrain {
namespace {

/// What a shard's data decide for the whole run.
std::string decided_by(const OpenedData& data) {
  std::string text = data.format;
  for (const Column& column : data.train->columns()) text += "\n" + column.text();
  text += "\n\n" + data.encoding + "\n" + data.texts + "\n";
  if (data.first_index) text += fmt::format("{}\n", *data.first_index);
  for (const double divisor : data.divisors) text += fmt::format("{} ", divisor);
  for (const std::string& name : data.class_names) text += "\n" + name;
  return text;
}

void check_same(const std::string& one, const std::string& other, const std::string& file) {
  const auto rows_in = [](const std::string& text) { return text.substr(0, text.find("\n\n")); };
  PT_CHECK(rows_in(one) == rows_in(other), kData,
           "{} files: {} has another format or samples of another shape than the first file ({} N "
           "gives rows of tokens one length)",
           setting("data-sharding"), printable(file), setting("text-length"));
  PT_CHECK(one == other, kData,
           "{} files: {} has other classes, columns or largest values than the first file, which "
           "all replicas must share; number the classes, and give {}",
           setting("data-sharding"), printable(file), setting("normalize"));
}

/// Adds the warnings of a file that those before it do not have.
void add_warnings(const OpenedData& one, const std::string& file, OpenedData& out) {
  for (const std::string& warning : one.warnings) {
    if (std::ranges::count(out.warnings, warning) > 0) continue;
    out.warnings.push_back(fmt::format("of {}: {}", printable(file), warning));
    out.description += "\n  " + out.warnings.back();
  }
}

/// The device of a replica, where each stage has as many.
int device_of(const RunSchedule& schedule, int stage, int replica, int replicas) {
  int place = 0;
  while (schedule.replica_at(place, replicas) != replica) ++place;
  return stage * replicas + place;
}

/// What a process that has read a file knows of it.
struct ReadFile {
  std::uint64_t samples = 0;
  std::string fingerprint;  // empty: none has read it
};

}  // namespace

std::vector<std::vector<std::string>> files_of_replicas(const RunConfig& config,
                                                        const RunSchedule& schedule,
                                                        std::int64_t micro_batch,
                                                        ProcessGroup* processes) {
  const std::string name = setting("data-sharding");
  const std::vector<int>& replicas = config.pipeline.replicas;
  PT_CHECK(!replicas.empty() && std::ranges::count(replicas, replicas[0]) == std::ssize(replicas),
           kUsage, "{} files needs the same number of {} for each stage, such as {} 4", name,
           setting("replicas"), setting("replicas"));
  PT_CHECK(!is_asynchronous(schedule.rule()), kUsage, "{} files needs a synchronous {}", name,
           setting("schedule"));
  const OptimizationConfig& optimization = config.optimization;
  const DataOptions& data = config.data;
  const std::pair<bool, const char*> refused[] = {
      {data.validation_split > 0 || data.validation_rows > 0, "val-split"},
      {data.limit > 0, "limit"},
      {data.bind.image.augmentation.mixing().any(), "augment"},
      {config.model.loss.balanced_classes, "class-weights"},
      {!optimization.sample_weights.empty(), "sample-weights"}};
  for (const auto& [is_given, other] : refused) {
    PT_CHECK(!is_given, kUsage, "{} files and {} exclude each other: no process sees all samples{}",
             name, setting(other),
             std::string_view(other) == "val-split" ? "; give " + setting("val-data") : "");
  }
  const std::int64_t together = micro_batch * replicas[0];
  PT_CHECK(optimization.batch_size % together == 0, kUsage,
           "{} files: {} {} cannot be divided evenly among {} replicas in micro-batches of {}; "
           "make it a multiple of {}",
           name, setting("batch-size"), optimization.batch_size, replicas[0], micro_batch,
           together);
  auto files = divide_files(data.path, replicas[0]);
  if (!processes) return files;
  std::string mine;
  for (const auto& of_replica : files) mine += fmt::format("{}\n", fmt::join(of_replica, "\n"));
  const std::string first = processes->broadcast(mine);
  PT_CHECK(mine == first, kUsage,
           "{} files: {} sees other files named {} than process 0; all must see the same names, of "
           "which each opens its own",
           name, processes->name_of(processes->rank()), printable(data.path));
  return files;
}

bool has_replica(int replica, int replicas, const RunSchedule& schedule,
                 const ProcessGroup* processes) {
  if (!processes) return true;
  for (int device = 0; device < schedule.devices(); ++device) {
    if (schedule.replica_at(device % replicas, replicas) == replica &&
        process_of(device, schedule.devices(), processes) == processes->rank())
      return true;
  }
  return false;
}

OpenedData open_shards(const RunConfig& config, const DataSpec& spec, const RawData& first,
                       const std::vector<std::vector<std::string>>& files,
                       const RunSchedule& schedule, ProcessGroup* processes) {
  const int replicas = static_cast<int>(files.size());
  const auto replica_of = [&](std::size_t f) { return f % files.size(); };
  const auto name_of_file = [&](std::size_t f) { return files[replica_of(f)][f / files.size()]; };
  std::size_t count = 0;
  for (const auto& of_replica : files) count += of_replica.size();
  OpenedData out;
  std::vector<Shard> shards(files.size());
  std::vector<ReadFile> read(count);  // in the order of their names
  std::string decided;
  for (std::size_t f = 0; f < count; ++f) {
    if (!has_replica(static_cast<int>(replica_of(f)), replicas, schedule, processes)) continue;
    DataOptions options = config.data;
    options.path = name_of_file(f);
    const bool is_first = decided.empty();
    if (!is_first) {
      options.validation_path.clear();
      options.text.training_rows = out.row_lengths.tokens;
      options.text.other_rows = out.row_lengths.others;
    }
    OpenedData one = open_data(options, spec, is_first ? &first : nullptr);
    read[f] = {one.train->size(), content_fingerprint(*one.train)};
    shards[replica_of(f)].files.push_back(one.train);
    if (is_first) decided = decided_by(one);
    check_same(decided_by(one), decided, options.path);
    const bool has_large_values = out.has_large_values || one.has_large_values;
    if (is_first) {
      out = std::move(one);
    } else {
      add_warnings(one, options.path, out);
    }
    out.has_large_values = has_large_values;
  }
  if (processes) {
    ByteWriter mine;
    mine.put_text(decided);
    mine.put(static_cast<std::uint8_t>(out.has_large_values));
    for (const ReadFile& file : read) {
      mine.put(file.samples);
      mine.put_text(file.fingerprint);
    }
    for (const std::string& bytes : processes->all_gather(mine.take())) {
      ByteReader reader(bytes);
      check_same(decided, std::string(reader.get_text()), files[0].front());
      out.has_large_values |= reader.get<std::uint8_t>() != 0;
      for (std::size_t f = 0; f < count; ++f) {
        const auto samples = reader.get<std::uint64_t>();
        const std::string fingerprint(reader.get_text());
        if (fingerprint.empty()) continue;
        PT_CHECK(read[f].fingerprint.empty() || fingerprint == read[f].fingerprint, kUsage,
                 "{} files: two processes of replica {} read other samples from {}",
                 setting("data-sharding"), replica_of(f), printable(name_of_file(f)));
        read[f] = {samples, fingerprint};
      }
    }
  }
  std::string fingerprints;  // another number of replicas has the same data
  for (std::size_t f = 0; f < count; ++f) {
    shards[replica_of(f)].samples += read[f].samples;
    fingerprints += read[f].fingerprint + "; ";
  }
  for (const Shard& shard : shards) out.shard_samples.push_back(shard.samples);
  const auto [least, most] = std::ranges::minmax(out.shard_samples);
  out.shard_fingerprint = fmt::format("{} files, {}", count, sha256(fingerprints));
  out.headline = fmt::format(
      "data     {}: {} · {} files for {} replica{} · {}", printable(config.data.path), out.format,
      count, replicas, replicas == 1 ? "" : "s",
      least == most
          ? fmt::format("{} samples each", least)
          : fmt::format("{} to {} samples each, of which an epoch takes {}", least, most, least));
  out.train = std::make_shared<ShardedDataset>(std::move(shards));
  return out;
}

/// Each process counts the micro-batches whose last stage it has.
CountedLabels count_together(const Network& network, const Tensor& labels, std::int64_t samples) {
  const Loss& loss = network.graph().loss;
  const auto replicas = static_cast<std::int64_t>(network.data().shard_samples.size());
  const int last_stage = network.schedule().devices() / static_cast<int>(replicas) - 1;
  const std::int64_t micro = network.micro_batch();
  CountedLabels here{0, 0};
  for (std::int64_t first = 0; first < samples; first += micro) {
    const auto replica = static_cast<int>(first / micro % replicas);
    if (!network.is_here(
            device_of(network.schedule(), last_stage, replica, static_cast<int>(replicas))))
      continue;
    Tensor part = labels;
    std::vector<std::int64_t> dims = labels.type.shape.dims();
    const std::size_t sample_bytes = labels.bytes() / static_cast<std::size_t>(dims[0]);
    dims[0] = micro;
    part.type.shape = Shape(std::move(dims));
    part.data =
        static_cast<std::byte*>(labels.data) + static_cast<std::size_t>(first) * sample_bytes;
    const std::int64_t counted = count_labels(loss, part, micro);
    here.elements += counted;
    here.weight += sum_of_weights(network, part, counted);
  }
  if (network.processes()) {
    ByteWriter mine;
    mine.put(here);
    here = {0, 0};
    for (const std::string& bytes : network.processes()->all_gather(mine.take())) {
      const auto there = ByteReader(bytes).get<CountedLabels>();
      here.elements += there.elements;
      here.weight += there.weight;
    }
  }
  return {std::max<std::int64_t>(here.elements, 1), here.weight > 0 ? here.weight : 1};
}

}  // namespace pipetrain
