#include "train/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "base/setting.h"
#include "data/binding/bind.h"
#include "data/binding/bind_tokens.h"
#include "data/rows/synthetic.h"
#include "passes/loss.h"

namespace pipetrain {

namespace {

// Graphs are built for multiples of so many tokens.
constexpr std::size_t kTokensPerBlock = 32;

RawColumn prompt_column(const char* name, std::vector<std::int32_t> values) {
  const Shape shape{1, static_cast<std::int64_t>(values.size())};
  RawColumn out;
  out.name = name;
  out.file = "the prompt";
  out.values = HostTensor::of<std::int32_t>(shape, values);
  return out;
}

}  // namespace

TokenId choose_token(std::span<const float> logits, const SamplingOptions& options,
                     std::uint64_t position) {
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), TokenId{0});
  const auto likelier = [&](TokenId a, TokenId b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  PT_CHECK(!std::ranges::any_of(logits, [](float x) { return std::isnan(x); }), kDiverged,
           "the model's logits are not numbers");
  if (options.temperature == 0) return *std::ranges::min_element(order, likelier);
  std::ranges::sort(order, likelier);
  if (options.top_k > 0)
    order.resize(std::min(order.size(), static_cast<std::size_t>(options.top_k)));
  std::vector<double> shares;
  for (const TokenId id : order)
    shares.push_back(
        std::exp((static_cast<double>(logits[id]) - static_cast<double>(logits[order[0]])) /
                 options.temperature));
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  // The first tokens that together have the probability, at least one.
  double kept = 0;
  std::size_t count = 0;
  while (count < shares.size() && (count == 0 || kept < options.top_p * all))
    kept += shares[count++];
  RandomStream random(options.seed, position);
  const std::uint64_t high = random.next();
  const double drawn = kept * static_cast<double>(high << 21 ^ random.next() >> 11) * 0x1p-53;
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    sum += shares[i];
    if (drawn < sum) return order[i];
  }
  return order[count - 1];
}

TextModel::TextModel(const ModelConfig& config, Backend backend, const OnnxModel& model)
    : config_(config), backend_(backend), fixed_(token_length(model, config)) {
  for (const OnnxValue& input : model.inputs) {
    PT_CHECK(!input.name.starts_with("past_key"), kModel,
             "the model takes the keys and values of earlier tokens (\"{}\"); export it without a "
             "cache",
             printable(input.name));
    if (!is_float(input.dtype) && input.dims.size() == 2) token_inputs_.push_back(input.name);
  }
  PT_CHECK(!token_inputs_.empty(), kModel,
           "the model has no integer input of shape (batch, tokens): it is no language model");
}

std::unique_ptr<Predictor> TextModel::make(std::size_t tokens) const {
  std::map<std::string, Shape> shapes;
  for (const std::string& name : token_inputs_)
    shapes[name] = Shape{static_cast<std::int64_t>(tokens)};
  auto predictor = std::make_unique<Predictor>(config_, backend_, 1, shapes);
  for (const ModelInput& input : predictor->data_spec().inputs) {
    if (known_filling(input) == Filling::kPositions && input.upper_bound >= 0)
      PT_CHECK(static_cast<std::int64_t>(tokens) <= input.upper_bound, kModel,
               "{} tokens are too many: \"{}\" has {} positions; shorten the prompt", tokens,
               printable(input.name), input.upper_bound);
  }
  return predictor;
}

void TextModel::prepare(std::size_t tokens) {
  if (predictor_ && tokens <= capacity_) return;
  const std::size_t known = predictor_ ? capacity_ : 0;  // that the model takes
  std::vector<std::size_t> sizes = {fixed_};
  if (!fixed_) {
    sizes = {(tokens + kTokensPerBlock - 1) / kTokensPerBlock * kTokensPerBlock};
    if (sizes[0] != tokens) sizes.push_back(tokens);  // the text, and nothing behind it
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    try {
      predictor_ = make(sizes[i]);
      capacity_ = sizes[i];
      break;
    } catch (const Error& error) {
      const bool by_size = error.kind() == ErrorKind::kModel || error.kind() == ErrorKind::kUsage;
      if (by_size && i + 1 < sizes.size()) continue;
      if (!by_size || known == 0) throw;
      fixed_ = known;  // no more than these
      return;
    }
  }
  const TrainingGraph& graph = predictor_->graph();
  const std::string& wanted = config_.loss.output;
  std::vector<std::size_t> fitting;
  for (std::size_t k = 0; k < graph.outputs.size(); ++k) {
    const TensorType& type = graph.graph[graph.outputs[k]].type;
    const bool named = wanted.empty() || graph.output_names[k] == wanted;
    if (named && is_float(type.dtype) && type.shape.rank() == 3 &&
        type.shape[1] == static_cast<std::int64_t>(capacity_))
      fitting.push_back(k);
  }
  PT_CHECK(!fitting.empty(), kModel,
           "the model has no output of shape (batch, tokens, vocabulary): it is no language model "
           "({} names the output)",
           setting("logits"));
  LossOptions by_rule = config_.loss;
  by_rule.loss = "causal-lm";
  const std::size_t trained = output_of_loss(graph, by_rule);
  output_ = std::ranges::count(fitting, trained) > 0 ? trained : fitting.front();
}

void TextModel::check_ids(std::span<const TokenId> ids) const {
  const TrainingGraph& graph = predictor_->graph();
  std::int64_t known = graph.graph[graph.outputs[output_]].type.shape[2];
  const DataSpec spec = predictor_->data_spec();
  if (const auto tokens = token_input_in(spec); tokens && spec.inputs[*tokens].upper_bound >= 0)
    known = spec.inputs[*tokens].upper_bound;
  for (const TokenId id : ids) {
    PT_CHECK(static_cast<std::int64_t>(id) < known, kModel,
             "token {} out of range 0..{}: the tokenizer has more tokens than the model; give the "
             "model's own with {} FILE",
             id, known - 1, setting("tokenizer"));
  }
}

std::size_t TextModel::vocabulary() {
  prepare(1);
  const TrainingGraph& graph = predictor_->graph();
  const auto words = static_cast<std::size_t>(graph.graph[graph.outputs[output_]].type.shape[2]);
  predictor_.reset();  // says nothing about how many tokens the model takes
  return words;
}

std::vector<float> TextModel::next_logits(std::span<const TokenId> ids) {
  const auto last_ones = [&] { return fixed_ ? ids.last(std::min(fixed_, ids.size())) : ids; };
  ids = last_ones();
  prepare(ids.size());
  ids = last_ones();
  check_ids(ids);
  std::vector<std::int32_t> tokens(capacity_), mask(capacity_);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    tokens[i] = static_cast<std::int32_t>(ids[i]);
    mask[i] = 1;
  }
  RawSplit text;
  text.columns.push_back(prompt_column("input_ids", std::move(tokens)));
  text.columns.push_back(prompt_column("attention_mask", std::move(mask)));
  text.columns.back().is_optional = true;
  const BoundData bound = bind_data(text, predictor_->data_spec(), BindOptions{});
  const std::vector<HostTensor> outputs = predictor_->run(*bound.dataset, 0, 1);
  const HostTensor logits = to_float32(outputs[output_]);
  const auto vocabulary = static_cast<std::size_t>(logits.type().shape[2]);
  const auto row = logits.span<const float>().subspan((ids.size() - 1) * vocabulary, vocabulary);
  return {row.begin(), row.end()};
}

}  // namespace pipetrain
