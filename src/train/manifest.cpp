#include "train/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/document.h"
#include "base/error.h"

namespace pipetrain {
namespace {

constexpr std::string_view kSchema = "pipetrain.checkpoint/1";
// The end of the text. What is hashed stops before the digits.
constexpr std::string_view kBeforeDigest = ",\n  \"sha256\": \"";
constexpr std::string_view kAfterDigest = "\"\n}\n";
constexpr std::size_t kDigits = 64;

/// Options may come several times: a list of "--name=value".
Json list_of(const std::vector<Setting>& settings) {
  Json list = Json::array();
  for (const auto& [name, value] : settings) list.push_back(name + "=" + value);
  return list;
}

std::vector<Setting> settings_of(const DocumentField& list) {
  std::vector<Setting> settings;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string text = list.item(i).text();
    const std::size_t equal = std::min(text.find('='), text.size());
    settings.emplace_back(text.substr(0, equal), text.substr(std::min(equal + 1, text.size())));
  }
  return settings;
}

Json json_of(const FileRecord& file) {
  Json tensors = Json::array();
  for (const TensorPlace& place : file.tensors) {
    tensors.push_back({{"name", place.name},
                       {"offset", place.offset},
                       {"bytes", place.bytes},
                       {"crc32c", fmt::format("{:08x}", place.crc32c)}});
  }
  return {
      {"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}, {"tensors", tensors}};
}

FileRecord file_of(const DocumentField& field) {
  FileRecord file;
  file.name = field.at("name").text();
  if (file.name.empty() || file.name.find('/') != std::string::npos || file.name[0] == '.')
    field.at("name").fail("is not the name of a file in the checkpoint");
  file.bytes = static_cast<std::uint64_t>(field.at("bytes").integer(0));
  file.sha256 = field.at("sha256").text();
  const DocumentField tensors = field.at("tensors");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const DocumentField tensor = tensors.item(i);
    file.tensors.push_back(
        {tensor.at("name").text(), static_cast<std::uint64_t>(tensor.at("offset").integer(0)),
         static_cast<std::uint64_t>(tensor.at("bytes").integer(0)),
         static_cast<std::uint32_t>(std::stoul(tensor.at("crc32c").text(), nullptr, 16))});
  }
  return file;
}

}  // namespace

std::string manifest_text(const Checkpoint& checkpoint, const std::vector<FileRecord>& files) {
  Json body;
  body["version"] = PIPETRAIN_VERSION;
  body["reason"] = checkpoint.reason;
  body["step"] = checkpoint.step;
  body["total_steps"] = checkpoint.total_steps;
  body["batches_per_epoch"] = checkpoint.batches_per_epoch;
  body["learning_rate"] = checkpoint.learning_rate;
  body["seconds"] = checkpoint.seconds;
  if (checkpoint.loss_scale != LossScale{})
    body["loss_scale"] = {{"value", checkpoint.loss_scale.value},
                          {"finite_steps", checkpoint.loss_scale.finite_steps},
                          {"skipped", checkpoint.loss_scale.skipped}};
  if (checkpoint.best)
    body["best"] = {{"step", checkpoint.best->step},
                    {"metric", checkpoint.best->metric},
                    {"value", checkpoint.best->value},
                    {"stalled", checkpoint.best->stalled}};
  body["schedule"] = {{"cuts", checkpoint.cuts},
                      {"round_start", checkpoint.round_start},
                      {"round_batches", checkpoint.round_batches},
                      {"updates", checkpoint.updates}};
  body["model"] = {{"fingerprint", checkpoint.run.model_fingerprint}};
  body["data"] = {{"fingerprint", checkpoint.run.data_fingerprint}};
  // Data order and masks are functions of the seed (in "numbers"), the step and the sample.
  body["random"] = {{"generator", "philox4x32-10"}, {"counter", checkpoint.step}};
  body["settings"] = list_of(checkpoint.run.settings);
  body["numbers"] = Json::object();
  for (const auto& [name, value] : checkpoint.run.numbers) body["numbers"][name] = value;
  body["files"] = Json::array();
  for (const FileRecord& file : files) body["files"].push_back(json_of(file));
  std::string text = document_text(kSchema, body);
  text.erase(text.find_last_not_of("\n}") + 1);
  text += kBeforeDigest;
  const std::string digest = sha256(text);
  return text + digest + std::string(kAfterDigest);
}

Checkpoint parse_manifest(const std::string& text, const std::filesystem::path& path,
                          std::vector<FileRecord>& files) {
  const std::size_t tail = kDigits + kAfterDigest.size();
  const bool complete = text.size() > tail && text.ends_with(kAfterDigest);
  PT_CHECK(complete && sha256(std::string_view(text).substr(0, text.size() - tail)) ==
                           std::string_view(text).substr(text.size() - tail, kDigits),
           kData, "{} is damaged: {}", printable(path.string()),
           complete ? "its SHA-256 is not the one in its last line" : "its end is missing");
  const Document document = Document::parse(text, path.string(), kSchema, ErrorKind::kData);
  const DocumentField root = document.root();
  Checkpoint out;
  out.reason = root.at("reason").text();
  out.step = root.at("step").integer(0);
  out.total_steps = root.at("total_steps").integer(0);
  out.batches_per_epoch = root.at("batches_per_epoch").integer(1);
  out.learning_rate = root.at("learning_rate").real();
  if (root.has("seconds")) out.seconds = root.at("seconds").real(0);
  if (root.has("loss_scale")) {
    const DocumentField scale = root.at("loss_scale");
    out.loss_scale = {scale.at("value").real(0), scale.at("finite_steps").integer(0),
                      scale.at("skipped").integer(0)};
  }
  if (root.has("best")) {
    const DocumentField best = root.at("best");
    out.best = BestResult{best.at("step").integer(0), best.at("value").real(),
                          best.at("metric").text(), best.at("stalled").integer(0)};
  }
  const DocumentField schedule = root.at("schedule");
  for (std::size_t i = 0; i < schedule.at("cuts").size(); ++i)
    out.cuts.push_back(static_cast<int>(schedule.at("cuts").item(i).integer(0, 1 << 30)));
  out.round_start = schedule.at("round_start").integer(0, out.step);
  out.round_batches = schedule.at("round_batches").integer(0);
  for (std::size_t i = 0; i < schedule.at("updates").size(); ++i)
    out.updates.push_back(schedule.at("updates").item(i).integer(0));
  out.run.model_fingerprint = root.at("model").at("fingerprint").text();
  out.run.data_fingerprint = root.at("data").at("fingerprint").text();
  out.run.settings = settings_of(root.at("settings"));
  for (const auto& [name, value] : document.json().at("numbers").items())
    out.run.numbers.emplace_back(name, value.get<std::string>());
  for (std::size_t i = 0; i < root.at("files").size(); ++i)
    files.push_back(file_of(root.at("files").item(i)));
  return out;
}

}  // namespace pipetrain
