#include "train/manifest.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/document.h"
#include "base/error.h"
#include "base/user_key.h"
#include "train/metrics.h"

namespace pipetrain {
namespace {

constexpr std::string_view kSchema = "pipetrain.checkpoint/1";
// The end of the text. What is signed stops before the signature's line, what is hashed before the
// digest's digits.
constexpr std::string_view kBeforeSignature = ",\n  \"hmac_sha256\": \"";
constexpr std::string_view kBeforeDigest = ",\n  \"sha256\": \"";
constexpr std::string_view kAfterDigest = "\"\n}\n";
constexpr std::size_t kDigits = 64;

/// Options may come several times: a list of "--name=value". Paths may be any bytes, and JSON holds
/// UTF-8 only; another value is written as {"name": "--name", "hex": its bytes}.
Json list_of(const std::vector<Setting>& settings) {
  Json list = Json::array();
  for (const auto& [name, value] : settings) {
    if (as_document_string(value) == value) {
      list.push_back(name + "=" + value);
      continue;
    }
    std::string digits;
    for (const char c : value) digits += fmt::format("{:02x}", static_cast<unsigned char>(c));
    Json item;
    item["name"] = name;
    item["hex"] = digits;
    list.push_back(item);
  }
  return list;
}

std::string bytes_in_hex(const DocumentField& field) {
  const std::string digits = field.text();
  if (digits.size() % 2 != 0 || digits.find_first_not_of("0123456789abcdef") != std::string::npos)
    field.fail("must be an even number of hexadecimal digits");
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    unsigned byte = 0;
    std::from_chars(digits.data() + i, digits.data() + i + 2, byte, /*base=*/16);
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

std::vector<Setting> settings_of(const DocumentField& list) {
  std::vector<Setting> settings;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const DocumentField item = list.item(i);
    if (item.has("hex")) {
      item.allow_only({"name", "hex"});
      settings.emplace_back(item.at("name").text(), bytes_in_hex(item.at("hex")));
      continue;
    }
    const std::string text = item.text();
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

std::string digest_of(const DocumentField& field) {
  const std::string digits = field.text();
  if (digits.size() != kDigits || digits.find_first_not_of("0123456789abcdef") != std::string::npos)
    field.fail("must be 64 hexadecimal digits");
  return digits;
}

std::uint32_t crc_of(const DocumentField& field) {
  const std::string digits = field.text();
  std::uint32_t crc = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), crc, /*base=*/16);
  if (digits.size() != 8 || error != std::errc() || end != digits.data() + digits.size())
    field.fail("must be 8 hexadecimal digits");
  return crc;
}

std::uint64_t bytes_of(const DocumentField& field) {
  return static_cast<std::uint64_t>(field.integer(0, DocumentField::kMostBytes));
}

FileRecord file_of(const DocumentField& field) {
  field.allow_only({"name", "bytes", "sha256", "tensors"});
  FileRecord file;
  file.name = field.at("name").text();
  if (file.name.empty() || file.name.find('/') != std::string::npos || file.name[0] == '.')
    field.at("name").fail("is not the name of a file in the checkpoint");
  file.bytes = bytes_of(field.at("bytes"));
  file.sha256 = digest_of(field.at("sha256"));
  const DocumentField tensors = field.at("tensors");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const DocumentField tensor = tensors.item(i);
    tensor.allow_only({"name", "offset", "bytes", "crc32c"});
    file.tensors.push_back({tensor.at("name").text(), bytes_of(tensor.at("offset")),
                            bytes_of(tensor.at("bytes")), crc_of(tensor.at("crc32c"))});
  }
  return file;
}

LossScale loss_scale_of(const DocumentField& field, std::int64_t step) {
  field.allow_only({"value", "finite_steps", "skipped"});
  return {field.at("value").real(1e-300, 1e300), field.at("finite_steps").integer(0, step),
          field.at("skipped").integer(0, step)};
}

std::string known_metric(const DocumentField& field) {
  const std::string name = field.text();
  try {
    return metric_named(name);
  } catch (const Error& error) {
    field.fail(fmt::format("is not a metric: {}", error.message()));
  }
}

BestResult best_of(const DocumentField& field, std::int64_t step) {
  field.allow_only({"step", "metric", "value", "stalled"});
  return {field.at("step").integer(0, step), field.at("value").real(),
          known_metric(field.at("metric")), field.at("stalled").integer(0, step)};
}

UnmeasuredResults unmeasured_of(const DocumentField& field, std::int64_t step) {
  field.allow_only({"metric", "validations"});
  return {known_metric(field.at("metric")), field.at("validations").integer(0, step)};
}

/// The position of the run in its schedule.
void read_schedule(const DocumentField& field, Checkpoint& out) {
  field.allow_only({"cuts", "order", "round_start", "round_batches", "updates"});
  const DocumentField cuts = field.at("cuts");
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    const int least = out.cuts.empty() ? 1 : out.cuts.back() + 1;
    out.cuts.push_back(static_cast<int>(cuts.item(i).integer(least, 1 << 30)));
  }
  // Whether it is an order of the model's nodes is seen when there is a model.
  for (std::size_t i = 0; field.has("order") && i < field.at("order").size(); ++i)
    out.order.push_back(static_cast<int>(field.at("order").item(i).integer(0, 1 << 30)));
  out.round_batches = field.at("round_batches").integer(0, 1 << 30);
  out.round_start = field.at("round_start")
                        .integer(std::max<std::int64_t>(0, out.step - out.round_batches), out.step);
  const DocumentField updates = field.at("updates");
  for (std::size_t i = 0; i < updates.size(); ++i)
    out.updates.push_back(updates.item(i).integer(0, out.round_start + out.round_batches));
}

ReplicaRecord replicas_of(const DocumentField& field, std::int64_t step) {
  field.allow_only({"next_part", "unfinished", "start", "changed_at"});
  ReplicaRecord out;
  out.next_part = field.at("next_part").integer(0, DocumentField::kMostSteps);
  const DocumentField unfinished = field.at("unfinished");
  for (std::size_t i = 0; i < unfinished.size(); ++i) {
    const std::int64_t least = out.unfinished.empty() ? 0 : out.unfinished.back() + 1;
    out.unfinished.push_back(unfinished.item(i).integer(least, out.next_part - 1));
  }
  out.start = field.at("start").text();
  out.changed_at = field.at("changed_at").integer(0, step);
  return out;
}

RunRecord run_of(const DocumentField& root) {
  RunRecord run;
  root.at("model").allow_only({"fingerprint"});
  run.model_fingerprint = root.at("model").at("fingerprint").text();
  root.at("data").allow_only({"fingerprint"});
  run.data_fingerprint = root.at("data").at("fingerprint").text();
  run.settings = settings_of(root.at("settings"));
  if (root.has("outputs")) run.outputs = settings_of(root.at("outputs"));
  for (const auto& [name, value] : root.at("numbers").fields())
    run.numbers.emplace_back(name, value.text());
  return run;
}

/// Whether the text ends with this user's signature of all before it. Behind the signature there
/// may only be the digest: what is signed is all that the document says.
bool is_signed(std::string_view text) {
  const std::size_t digest = kBeforeDigest.size() + kDigits + kAfterDigest.size();
  const std::size_t line = kBeforeSignature.size() + kDigits + 1;
  if (text.size() < line + digest) return false;
  const std::string_view body = text.substr(0, text.size() - digest - line);
  const std::string_view rest = text.substr(body.size());
  return rest.starts_with(kBeforeSignature) && rest[line - 1] == '"' &&
         rest.substr(line).starts_with(kBeforeDigest) &&
         is_signed_by_user(body, rest.substr(kBeforeSignature.size(), kDigits));
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
  if (checkpoint.unmeasured.validations > 0)
    body["unmeasured"] = {{"metric", checkpoint.unmeasured.metric},
                          {"validations", checkpoint.unmeasured.validations}};
  if (checkpoint.unevaluated) body["unevaluated"] = true;
  body["schedule"] = {{"cuts", checkpoint.cuts},
                      {"round_start", checkpoint.round_start},
                      {"round_batches", checkpoint.round_batches},
                      {"updates", checkpoint.updates}};
  if (!checkpoint.order.empty()) body["schedule"]["order"] = checkpoint.order;
  if (checkpoint.replicas)
    body["replicas"] = {{"next_part", checkpoint.replicas->next_part},
                        {"unfinished", checkpoint.replicas->unfinished},
                        {"start", checkpoint.replicas->start},
                        {"changed_at", checkpoint.replicas->changed_at}};
  body["model"] = {{"fingerprint", checkpoint.run.model_fingerprint}};
  body["data"] = {{"fingerprint", checkpoint.run.data_fingerprint}};
  // Data order and masks are functions of the seed (in "numbers"), the step and the sample.
  body["random"] = {{"generator", "philox4x32-10"}, {"counter", checkpoint.step}};
  body["settings"] = list_of(checkpoint.run.settings);
  if (!checkpoint.run.outputs.empty()) body["outputs"] = list_of(checkpoint.run.outputs);
  body["numbers"] = Json::object();
  for (const auto& [name, value] : checkpoint.run.numbers) body["numbers"][name] = value;
  body["files"] = Json::array();
  for (const FileRecord& file : files) body["files"].push_back(json_of(file));
  std::string text = document_text(kSchema, body);
  text.erase(text.find_last_not_of("\n}") + 1);
  if (const std::string signature = sign_as_user(text); !signature.empty())
    text += std::string(kBeforeSignature) + signature + "\"";
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
  const Document document =
      Document::parse(text, printable(path.string()), kSchema, ErrorKind::kData);
  const DocumentField root = document.root();
  root.allow_only(
      {"schema",        "version",  "reason",     "step",        "total_steps", "batches_per_epoch",
       "learning_rate", "seconds",  "loss_scale", "best",        "unmeasured",  "unevaluated",
       "schedule",      "replicas", "model",      "data",        "random",      "settings",
       "outputs",       "numbers",  "files",      "hmac_sha256", "sha256"});
  Checkpoint out;
  out.is_own = is_signed(text);
  root.at("version").text();
  out.reason = root.at("reason").text();
  out.step = root.at("step").integer(0, DocumentField::kMostSteps);
  out.total_steps = root.at("total_steps").integer(0, DocumentField::kMostSteps);
  out.batches_per_epoch = root.at("batches_per_epoch").integer(1, DocumentField::kMostSteps);
  constexpr double kMostRate = 1e30;
  out.learning_rate = root.at("learning_rate").real(-kMostRate, kMostRate);
  if (root.has("seconds"))
    out.seconds = root.at("seconds").real(0, 1000 * DocumentField::kMostSeconds);
  if (root.has("loss_scale")) out.loss_scale = loss_scale_of(root.at("loss_scale"), out.step);
  if (root.has("best")) out.best = best_of(root.at("best"), out.step);
  if (root.has("unmeasured")) out.unmeasured = unmeasured_of(root.at("unmeasured"), out.step);
  if (root.has("unevaluated")) out.unevaluated = root.at("unevaluated").flag();
  read_schedule(root.at("schedule"), out);
  if (root.has("replicas")) out.replicas = replicas_of(root.at("replicas"), out.step);
  // Data order and masks follow from the step; the counter only records it.
  root.at("random").allow_only({"generator", "counter"});
  root.at("random").at("generator").text();
  root.at("random").at("counter").integer(out.step, out.step);
  out.run = run_of(root);
  for (std::size_t i = 0; i < root.at("files").size(); ++i)
    files.push_back(file_of(root.at("files").item(i)));
  return out;
}

}  // namespace pipetrain
