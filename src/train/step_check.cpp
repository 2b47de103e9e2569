#include "train/step_check.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "train/pipeline_run.h"

namespace pipetrain {
namespace {

constexpr const char* kAdvice =
    "; the processor, the memory or a device of this machine is faulty: resume from the last "
    "checkpoint on another one";

bool is_same(const HostTensor& a, const HostTensor& b) {
  return a.type() == b.type() && std::memcmp(a.view().data, b.view().data, a.type().bytes()) == 0;
}

/// The first tensor that differs, in words; empty: none.
std::string difference(const StageContent& a, const StageContent& b) {
  const auto look = [](const char* what, const auto& left, const auto& right) {
    for (const auto& [name, tensor] : left) {
      const auto found = right.find(name);
      if (found == right.end() || !is_same(tensor, found->second))
        return fmt::format("{} \"{}\"", what, printable(name));
    }
    return std::string();
  };
  std::string found = look("weight", a.weights, b.weights);
  for (int slot = 0; slot < 2 && found.empty(); ++slot)
    found = look("the optimizer state of", a.states[slot], b.states[slot]);
  return found.empty() ? look("the average of", a.averages, b.averages) : found;
}

/// By stage in the order in which a step computes them: forward through the stages, then back.
bool is_before(const SentValues& a, const SentValues& b) {
  if (a.gradient != b.gradient) return b.gradient;
  if (a.from != b.from) return a.gradient ? a.from > b.from : a.from < b.from;
  return std::pair(a.micro_batch, a.to) < std::pair(b.micro_batch, b.to);
}

}  // namespace

StepCheck::Attempt StepCheck::attempt(const Program& program, MicroBatchSource& source) {
  Attempt out;
  run_.runtime().note_sends(true);
  out.result = run_.runtime().run(program, source);
  run_.runtime().note_sends(false);
  std::sort(out.result.sent.begin(), out.result.sent.end(), is_before);
  for (int m = 0; m < program.micro_batches; ++m) out.losses.push_back(source.acquire(m).loss_sum);
  out.contents = run_.runtime().contents();
  return out;
}

RoundResult StepCheck::run(const Program& program, MicroBatchSource& source, bool follows) {
  const std::uint64_t step = source.acquire(0).step + 1;
  const std::vector<StageContent> before = run_.runtime().contents();
  for (std::size_t s = 0; follows && s < after_.size(); ++s) {
    const std::string changed = difference(after_[s], before[s]);
    PT_CHECK(changed.empty(), kDevice,
             "stage {}: {} has changed in memory between steps {} and {}{}", s, changed, step - 1,
             step, kAdvice);
  }
  const LossScale scale = run_.runtime().loss_scale();
  Attempt first = attempt(program, source);
  for (std::size_t s = 0; s < before.size(); ++s)
    run_.runtime().restore(static_cast<int>(s), before[s]);
  run_.runtime().set_loss_scale(scale);
  Attempt second = attempt(program, source);
  compare(first, second, step);
  after_ = std::move(second.contents);
  return std::move(first.result);
}

void StepCheck::compare(const Attempt& first, const Attempt& second, std::uint64_t step) const {
  const auto fail = [&](std::size_t stage, const std::string& what) {
    PT_FAIL(kDevice, "step {} computed twice has different bits, first in stage {}: {}{}", step,
            stage, what, kAdvice);
  };
  const std::vector<SentValues>&a = first.result.sent, &b = second.result.sent;
  PT_CHECK(a.size() == b.size(), kInternal, "a step sent {} values, and {} the second time",
           a.size(), b.size());
  const auto look_at_sends = [&](bool gradient) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i].gradient == gradient && a[i].crc32c != b[i].crc32c)
        fail(static_cast<std::size_t>(a[i].from),
             fmt::format("the {} of micro-batch {}", gradient ? "gradients" : "activations",
                         a[i].micro_batch));
    }
  };
  look_at_sends(/*gradient=*/false);
  for (std::size_t m = 0; m < first.losses.size(); ++m) {
    if (std::bit_cast<std::uint64_t>(first.losses[m]) !=
        std::bit_cast<std::uint64_t>(second.losses[m]))
      fail(first.contents.size() - 1, fmt::format("the loss of micro-batch {}", m));
  }
  look_at_sends(/*gradient=*/true);
  for (std::size_t s = 0; s < first.contents.size(); ++s) {
    const std::string changed = difference(first.contents[s], second.contents[s]);
    if (!changed.empty()) fail(s, changed);
  }
}

std::string StepCheck::weights_digest() const {
  std::map<std::string, const HostTensor*> weights;  // tied ones once
  for (const StageContent& content : after_) {
    for (const auto& [name, tensor] : content.weights) weights.emplace(name, &tensor);
  }
  Sha256 hash;
  for (const auto& [name, tensor] : weights) {
    hash.add(name + '\0');
    hash.add({static_cast<const std::byte*>(tensor->view().data), tensor->type().bytes()});
  }
  return hash.digest();
}

}  // namespace pipetrain
