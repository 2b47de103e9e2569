// Plain loops for Attention and its gradient, one query at a time.
#include <cmath>
#include <limits>

#include "ops/attention/attention.h"
#include "ops/kernel/element_types.h"
#include "ops/kernel/log_sum.h"

namespace pipetrain::attention {
namespace {

using Tensors = std::span<const Tensor>;
constexpr double kHidden = -std::numeric_limits<double>::infinity();

template <class T>
double dot(const T* a, const T* b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

/// The scores of one query before the softmax, -inf for masked keys. `capped`, if wanted, gets the
/// scores before the mask.
template <class T>
class Scores {
 public:
  Scores(const Geometry& g, const T* q, const T* k, const Tensor& mask, const std::int64_t* lengths)
      : g_(g), q_(q), k_(k), mask_(mask), lengths_(lengths) {}

  std::vector<double> of(std::int64_t b, std::int64_t h, std::int64_t i,
                         std::vector<double>* capped = nullptr) const {
    std::vector<double> out(static_cast<std::size_t>(g_.keys), kHidden);
    if (capped) capped->assign(out.size(), 0);
    const Geometry::Range range = g_.visible(b, i, lengths_);
    const std::int64_t kv = h / (g_.heads / g_.key_heads);
    for (std::int64_t j = range.begin; j < range.end; ++j) {
      double score = g_.scale * dot(q_ + g_.q.at(b, h, i), k_ + g_.k.at(b, kv, j), g_.width);
      if (g_.softcap > 0) score = g_.softcap * std::tanh(score / g_.softcap);
      if (capped) (*capped)[static_cast<std::size_t>(j)] = score;
      out[static_cast<std::size_t>(j)] = masked(score, b, h, i, j);
    }
    return out;
  }

 private:
  double masked(double score, std::int64_t b, std::int64_t h, std::int64_t i,
                std::int64_t j) const {
    if (!mask_) return score;
    const auto& s = g_.mask;
    const std::int64_t at = s[0] * b + s[1] * h + s[2] * i + s[3] * j;
    if (mask_.type.dtype == DType::kBool) return mask_.as<bool>()[at] ? score : kHidden;
    return score + mask_.as<T>()[at];
  }

  const Geometry& g_;
  const T* q_;
  const T* k_;
  Tensor mask_;
  const std::int64_t* lengths_;
};

template <class Visit>
void for_each_query(const Geometry& g, Visit visit) {
  for (std::int64_t b = 0; b < g.batch; ++b) {
    for (std::int64_t h = 0; h < g.heads; ++h) {
      for (std::int64_t i = 0; i < g.queries; ++i) visit(b, h, i);
    }
  }
}

Tensor at_or_empty(Tensors tensors, std::size_t index) {
  return index < tensors.size() ? tensors[index] : Tensor{};
}

/// The highest score; NaN if one is.
double highest(const std::vector<double>& scores) {
  double out = kHidden;
  for (const double score : scores) {
    if (score > out || score != score) out = score;
    if (out != out) break;
  }
  return out;
}

template <class T>
void forward(const Geometry& g, Tensors in, Tensors out) {
  const Scores<T> scores(g, in[0].as<T>(), in[1].as<T>(), at_or_empty(in, 3),
                         data_or_null<std::int64_t>(in, 4));
  const T* v = in[2].as<T>();
  T* y = out[0].as<T>();
  T* lse = data_or_null<T>(out, 1);
  for_each_query(g, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t kv = h / (g.heads / g.key_heads);
    const std::vector<double> score = scores.of(b, h, i);
    const double maximum = highest(score);
    std::vector<double> sum(static_cast<std::size_t>(g.value_width), 0);
    double total = 0;
    for (std::int64_t j = 0; maximum != kHidden && j < g.keys; ++j) {
      const double share = std::exp(score[static_cast<std::size_t>(j)] - maximum);
      if (share == 0) continue;
      total += share;
      const T* value = v + g.v.at(b, kv, j);
      for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += share * value[e];
    }
    if (lse) {
      lse[(b * g.heads + h) * g.queries + i] =
          static_cast<T>(total == 0 ? kHidden : maximum + std::log(total));
    }
    if (!y) return;
    T* to = y + g.y.at(b, h, i);
    for (std::size_t e = 0; e < sum.size(); ++e) {
      to[e] = static_cast<T>(total == 0 ? 0 : sum[e] / total);
    }
  });
}

// dy, q, k, v, mask, lengths, y, lse -> dq, dk, dv, dmask
template <class T>
void gradient(const Geometry& g, Tensors in, Tensors out) {
  const T* dy = in[0].as<T>();
  const T* q = in[1].as<T>();
  const T* k = in[2].as<T>();
  const T* v = in[3].as<T>();
  const T* y = in[6].as<T>();
  const T* lse = in[7].as<T>();
  const Scores<T> scores(g, q, k, in[4], data_or_null<std::int64_t>(in, 5));
  std::vector<double> sums[3];
  for (std::size_t i = 0; i < 3; ++i) {
    sums[i].assign(static_cast<std::size_t>(in[i + 1].count()), 0);
  }
  T* dmask = data_or_null<T>(out, 3);
  std::vector<double> capped;
  for_each_query(g, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t kv = h / (g.heads / g.key_heads);
    const std::int64_t row = (b * g.heads + h) * g.queries + i;
    const std::vector<double> score = scores.of(b, h, i, &capped);
    const T* dyi = dy + g.y.at(b, h, i);
    const double delta = dot(dyi, y + g.y.at(b, h, i), g.value_width);
    double shift = static_cast<double>(lse[row]), sum = 1;
    if (has_lost_digits(static_cast<float>(shift)) && !score.empty()) {
      shift = highest(score);
      sum = 0;
      for (const double s : score) sum += s != kHidden ? std::exp(s - shift) : 0;
    }
    for (std::int64_t j = 0; j < g.keys; ++j) {
      const double s = score[static_cast<std::size_t>(j)];
      const double share = s != kHidden ? std::exp(s - shift) / sum : 0;
      const std::int64_t at_k = g.k.at(b, kv, j), at_v = g.v.at(b, kv, j);
      double d = share * (dot(dyi, v + at_v, g.value_width) - delta);
      if (dmask) dmask[row * g.keys + j] = static_cast<T>(d);
      if (share == 0) continue;
      for (std::int64_t e = 0; e < g.value_width; ++e) {
        sums[2][static_cast<std::size_t>(at_v + e)] += share * dyi[e];
      }
      if (g.softcap > 0) {
        const double ratio = capped[static_cast<std::size_t>(j)] / g.softcap;
        d *= 1 - ratio * ratio;
      }
      d *= g.scale;
      const std::int64_t at_q = g.q.at(b, h, i);
      for (std::int64_t e = 0; e < g.width; ++e) {
        sums[0][static_cast<std::size_t>(at_q + e)] += d * k[at_k + e];
        sums[1][static_cast<std::size_t>(at_k + e)] += d * q[at_q + e];
      }
    }
  });
  for (std::size_t i = 0; i < 3; ++i) {
    T* to = data_or_null<T>(out, i);
    if (!to) continue;
    std::transform(sums[i].begin(), sums[i].end(), to,
                   [](double value) { return static_cast<T>(value); });
  }
}

std::unique_ptr<Kernel> make_forward(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  return for_element_type<float, double>(request.inputs[0].dtype, [&]<class T>() {
    return make_kernel([g = geometry_of(request, 0)](Tensors in, Tensors out, const RunContext&) {
      forward<T>(g, in, out);
    });
  });
}

std::unique_ptr<Kernel> make_gradient(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  return for_element_type<float, double>(request.inputs[0].dtype, [&]<class T>() {
    return make_kernel([g = geometry_of(request, 1)](Tensors in, Tensors out, const RunContext&) {
      gradient<T>(g, in, out);
    });
  });
}

constexpr KernelEntry kAttentionReferenceKernels[] = {
    {"Attention", make_forward},
    {"AttentionGrad", make_gradient},
};

}  // namespace

std::span<const KernelEntry> reference_kernels() { return kAttentionReferenceKernels; }

}  // namespace pipetrain::attention
