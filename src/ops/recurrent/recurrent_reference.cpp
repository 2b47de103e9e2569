// Plain loops for Lstm, Gru, Rnn and their gradients: every activation, clipping, peepholes and
// sequence lengths.
#include "ops/recurrent/recurrent_steps_reference.h"

namespace pipetrain::recurrent {
namespace {

template <class T>
void lstm(const Attributes& attributes, Tensors in, Tensors out) {
  const StepOrder steps{geometry_of(attributes, in[0].type.shape, 4),
                        data_or_null<std::int32_t>(in, 5)};
  const std::vector<Function> f = functions_of(attributes);
  const std::int64_t hidden = steps.g.hidden;
  const T* r = in[1].as<T>();
  const T* peepholes = data_or_null<T>(in, 4);
  const bool coupled = attributes.flag("input_forget");
  State h = state_from(data_or_null<T>(in, 2), steps.g.state());
  State c = state_from(data_or_null<T>(in, 3), steps.g.state());
  for (const Tensor& tensor : out) fill_zero<T>(tensor);
  T* y = out[0].as<T>();
  T* activated = data_or_null<T>(out, 3);
  T* cells = data_or_null<T>(out, 4);
  State before(static_cast<std::size_t>(hidden));
  const auto peep = [&](std::int64_t gate, std::int64_t j, double cell) {
    return peepholes ? peepholes[gate * hidden + j] * cell : 0.0;
  };
  for (std::int64_t order = 0; order < steps.g.steps; ++order) {
    const std::int64_t t = steps.g.step(order);
    for (std::int64_t n = 0; n < steps.g.samples; ++n) {
      double* hn = h.data() + n * hidden;
      double* cn = c.data() + n * hidden;
      if (steps.active(t, n)) {
        std::copy_n(hn, hidden, before.data());
        const T* x = in[0].as<T>() + (t * steps.g.samples + n) * 4 * hidden;
        for (std::int64_t j = 0; j < hidden; ++j) {
          double z[4];
          for (std::int64_t gate = 0; gate < 4; ++gate) {
            z[gate] = x[gate * hidden + j] + product(before.data(), r, gate * hidden + j, hidden);
          }
          const double input = f[0](z[0] + peep(0, j, cn[j]));
          const double forget = coupled ? 1 - input : f[0](z[2] + peep(2, j, cn[j]));
          const double cell = f[1](z[3]);
          cn[j] = forget * cn[j] + input * cell;
          const double output = f[0](z[1] + peep(1, j, cn[j]));
          hn[j] = output * f[2](cn[j]);
          if (y) y[steps.at(t, n, j)] = static_cast<T>(hn[j]);
          if (!activated) continue;
          T* a = activated + (t * steps.g.samples + n) * 4 * hidden + j;
          a[0] = static_cast<T>(input);
          a[hidden] = static_cast<T>(output);
          a[2 * hidden] = static_cast<T>(forget);
          a[3 * hidden] = static_cast<T>(cell);
        }
      }
      if (!cells) continue;
      for (std::int64_t j = 0; j < hidden; ++j) cells[steps.at(t, n, j)] = static_cast<T>(cn[j]);
    }
  }
  write_state(h, data_or_null<T>(out, 1));
  write_state(c, data_or_null<T>(out, 2));
}

template <class T>
void lstm_gradient(const Attributes& attributes, Tensors in, Tensors out) {
  const StepOrder steps{geometry_of(attributes, in[4].type.shape, 4),
                        data_or_null<std::int32_t>(in, 8)};
  const std::vector<Function> f = functions_of(attributes);
  const std::int64_t hidden = steps.g.hidden;
  const T* dy = data_or_null<T>(in, 0);
  const T* r = in[3].as<T>();
  const T* activated = in[4].as<T>();
  const T* cells = in[5].as<T>();
  const T* c0 = data_or_null<T>(in, 6);
  const T* peepholes = data_or_null<T>(in, 7);
  const bool coupled = attributes.flag("input_forget");
  State dh = state_from(data_or_null<T>(in, 1), steps.g.state());
  State dc = state_from(data_or_null<T>(in, 2), steps.g.state());
  for (const Tensor& tensor : out) fill_zero<T>(tensor);
  T* dgates = data_or_null<T>(out, 0);
  State d(static_cast<std::size_t>(4 * hidden));
  steps.backward([&](std::int64_t t, std::int64_t n) {
    double* dhn = dh.data() + n * hidden;
    double* dcn = dc.data() + n * hidden;
    const T* a = activated + (t * steps.g.samples + n) * 4 * hidden;
    for (std::int64_t j = 0; j < hidden; ++j) {
      const double dh_total = dhn[j] + (dy ? dy[steps.at(t, n, j)] : 0.0);
      const double input = a[j], output = a[hidden + j];
      const double forget = a[2 * hidden + j], cell = a[3 * hidden + j];
      const double squashed = f[2](cells[steps.at(t, n, j)]);
      const double before = steps.before(cells, c0, t, n, j);
      const double doutput = dh_total * squashed * f[0].derivative(output);
      double dcell = dcn[j] + dh_total * output * f[2].derivative(squashed);
      if (peepholes) dcell += doutput * peepholes[hidden + j];
      const double dinput = dcell * (coupled ? cell - before : cell) * f[0].derivative(input);
      const double dforget = coupled ? 0 : dcell * before * f[0].derivative(forget);
      d[static_cast<std::size_t>(j)] = dinput;
      d[static_cast<std::size_t>(hidden + j)] = doutput;
      d[static_cast<std::size_t>(2 * hidden + j)] = dforget;
      d[static_cast<std::size_t>(3 * hidden + j)] = dcell * input * f[1].derivative(cell);
      dcn[j] = dcell * forget;
      if (peepholes) dcn[j] += dinput * peepholes[j] + dforget * peepholes[2 * hidden + j];
    }
    if (dgates) {
      std::transform(d.begin(), d.end(), dgates + (t * steps.g.samples + n) * 4 * hidden,
                     [](double v) { return static_cast<T>(v); });
    }
    std::fill_n(dhn, hidden, 0.0);
    add_transposed(d.data(), r, 4 * hidden, hidden, dhn);
  });
  write_state(dh, data_or_null<T>(out, 1));
  write_state(dc, data_or_null<T>(out, 2));
}

template <class T>
void lstm_peephole_gradient(const Attributes& attributes, Tensors in, Tensors out) {
  const StepOrder steps{geometry_of(attributes, in[0].type.shape, 4),
                        data_or_null<std::int32_t>(in, 3)};
  const std::int64_t hidden = steps.g.hidden;
  const T* cells = in[1].as<T>();
  const T* c0 = data_or_null<T>(in, 2);
  State sum(static_cast<std::size_t>(3 * hidden), 0.0);
  steps.forward([&](std::int64_t t, std::int64_t n) {
    const T* d = in[0].as<T>() + (t * steps.g.samples + n) * 4 * hidden;
    for (std::int64_t j = 0; j < hidden; ++j) {
      const double before = steps.before(cells, c0, t, n, j);
      sum[static_cast<std::size_t>(j)] += d[j] * before;
      sum[static_cast<std::size_t>(hidden + j)] +=
          static_cast<double>(d[hidden + j]) * cells[steps.at(t, n, j)];
      sum[static_cast<std::size_t>(2 * hidden + j)] += d[2 * hidden + j] * before;
    }
  });
  write_state(sum, out[0].as<T>());
}

template <class T>
void gru(const Attributes& attributes, Tensors in, Tensors out) {
  const StepOrder steps{geometry_of(attributes, in[0].type.shape, 3),
                        data_or_null<std::int32_t>(in, 4)};
  const std::vector<Function> f = functions_of(attributes);
  const std::int64_t hidden = steps.g.hidden;
  const bool after = attributes.flag("linear_before_reset");
  const T* r = in[1].as<T>();
  const T* bias = data_or_null<T>(in, 2);
  State h = state_from(data_or_null<T>(in, 3), steps.g.state());
  for (const Tensor& tensor : out) fill_zero<T>(tensor);
  T* y = out[0].as<T>();
  T* activated = data_or_null<T>(out, 2);
  T* parts = data_or_null<T>(out, 3);
  const auto count = static_cast<std::size_t>(hidden);
  State before(count), update(count), reset(count), part(count);
  steps.forward([&](std::int64_t t, std::int64_t n) {
    double* hn = h.data() + n * hidden;
    const T* x = in[0].as<T>() + (t * steps.g.samples + n) * 3 * hidden;
    std::copy_n(hn, hidden, before.data());
    for (std::int64_t j = 0; j < hidden; ++j) {
      const auto i = static_cast<std::size_t>(j);
      update[i] = f[0](x[j] + product(before.data(), r, j, hidden));
      reset[i] = f[0](x[hidden + j] + product(before.data(), r, hidden + j, hidden));
      part[i] = after ? product(before.data(), r, 2 * hidden + j, hidden) + (bias ? bias[j] : 0.0)
                      : reset[i] * before[i];
    }
    for (std::int64_t j = 0; j < hidden; ++j) {
      const auto i = static_cast<std::size_t>(j);
      const double inner =
          after ? reset[i] * part[i] : product(part.data(), r, 2 * hidden + j, hidden);
      const double fresh = f[1](x[2 * hidden + j] + inner);
      hn[j] = (1 - update[i]) * fresh + update[i] * before[i];
      if (y) y[steps.at(t, n, j)] = static_cast<T>(hn[j]);
      if (parts) parts[steps.at(t, n, j)] = static_cast<T>(part[i]);
      if (!activated) continue;
      T* a = activated + (t * steps.g.samples + n) * 3 * hidden + j;
      a[0] = static_cast<T>(update[i]);
      a[hidden] = static_cast<T>(reset[i]);
      a[2 * hidden] = static_cast<T>(fresh);
    }
  });
  write_state(h, data_or_null<T>(out, 1));
}

template <class T>
void gru_gradient(const Attributes& attributes, Tensors in, Tensors out) {
  const StepOrder steps{geometry_of(attributes, in[3].type.shape, 3),
                        data_or_null<std::int32_t>(in, 7)};
  const std::vector<Function> f = functions_of(attributes);
  const std::int64_t hidden = steps.g.hidden;
  const bool after = attributes.flag("linear_before_reset");
  const T* dy = data_or_null<T>(in, 0);
  const T* r = in[2].as<T>();
  const T* h0 = data_or_null<T>(in, 6);
  State dh = state_from(data_or_null<T>(in, 1), steps.g.state());
  for (const Tensor& tensor : out) fill_zero<T>(tensor);
  const auto count = static_cast<std::size_t>(hidden);
  State d(3 * count), inner(count), carried(count);
  steps.backward([&](std::int64_t t, std::int64_t n) {
    double* dhn = dh.data() + n * hidden;
    const std::int64_t row = (t * steps.g.samples + n) * 3 * hidden;
    const T* a = in[3].as<T>() + row;
    double* dupdate = d.data();
    double* dreset = d.data() + hidden;
    double* dfresh = d.data() + 2 * hidden;
    for (std::int64_t j = 0; j < hidden; ++j) {
      const double total = dhn[j] + (dy ? dy[steps.at(t, n, j)] : 0.0);
      const double update = a[j], reset = a[hidden + j], fresh = a[2 * hidden + j];
      const double before = steps.before(in[5].as<T>(), h0, t, n, j);
      dupdate[j] = total * (before - fresh) * f[0].derivative(update);
      dfresh[j] = total * (1 - update) * f[1].derivative(fresh);
      carried[static_cast<std::size_t>(j)] = total * update;
      if (after) {
        inner[static_cast<std::size_t>(j)] = dfresh[j] * reset;
        dreset[j] = dfresh[j] * in[4].as<T>()[steps.at(t, n, j)] * f[0].derivative(reset);
      }
    }
    if (!after) {  // through reset * h
      std::fill(inner.begin(), inner.end(), 0.0);
      add_transposed(dfresh, r + 2 * hidden * hidden, hidden, hidden, inner.data());
      for (std::int64_t j = 0; j < hidden; ++j) {
        const double reset = a[hidden + j];
        const double before = steps.before(in[5].as<T>(), h0, t, n, j);
        dreset[j] = inner[static_cast<std::size_t>(j)] * before * f[0].derivative(reset);
        carried[static_cast<std::size_t>(j)] += inner[static_cast<std::size_t>(j)] * reset;
      }
    }
    const auto write = [&](std::size_t output) {
      T* to = data_or_null<T>(out, output);
      if (!to) return;
      std::transform(d.begin(), d.end(), to + row, [](double v) { return static_cast<T>(v); });
    };
    write(0);
    if (after) std::copy(inner.begin(), inner.end(), dfresh);
    write(1);
    std::copy(carried.begin(), carried.end(), dhn);
    add_transposed(d.data(), r, after ? 3 * hidden : 2 * hidden, hidden, dhn);
  });
  write_state(dh, data_or_null<T>(out, 2));
}

template <class T>
void rnn(const Attributes& attributes, Tensors in, Tensors out) {
  const StepOrder steps{geometry_of(attributes, in[0].type.shape, 1),
                        data_or_null<std::int32_t>(in, 3)};
  const std::vector<Function> f = functions_of(attributes);
  const std::int64_t hidden = steps.g.hidden;
  State h = state_from(data_or_null<T>(in, 2), steps.g.state());
  for (const Tensor& tensor : out) fill_zero<T>(tensor);
  T* y = out[0].as<T>();
  State before(static_cast<std::size_t>(hidden));
  steps.forward([&](std::int64_t t, std::int64_t n) {
    double* hn = h.data() + n * hidden;
    std::copy_n(hn, hidden, before.data());
    for (std::int64_t j = 0; j < hidden; ++j) {
      hn[j] =
          f[0](in[0].as<T>()[steps.at(t, n, j)] + product(before.data(), in[1].as<T>(), j, hidden));
      if (y) y[steps.at(t, n, j)] = static_cast<T>(hn[j]);
    }
  });
  write_state(h, data_or_null<T>(out, 1));
}

template <class T>
void rnn_gradient(const Attributes& attributes, Tensors in, Tensors out) {
  const StepOrder steps{geometry_of(attributes, in[3].type.shape, 1),
                        data_or_null<std::int32_t>(in, 4)};
  const std::vector<Function> f = functions_of(attributes);
  const std::int64_t hidden = steps.g.hidden;
  const T* dy = data_or_null<T>(in, 0);
  State dh = state_from(data_or_null<T>(in, 1), steps.g.state());
  for (const Tensor& tensor : out) fill_zero<T>(tensor);
  T* dgates = data_or_null<T>(out, 0);
  State d(static_cast<std::size_t>(hidden));
  steps.backward([&](std::int64_t t, std::int64_t n) {
    double* dhn = dh.data() + n * hidden;
    for (std::int64_t j = 0; j < hidden; ++j) {
      const std::int64_t at = steps.at(t, n, j);
      d[static_cast<std::size_t>(j)] =
          (dhn[j] + (dy ? dy[at] : 0.0)) * f[0].derivative(in[3].as<T>()[at]);
      if (dgates) dgates[at] = static_cast<T>(d[static_cast<std::size_t>(j)]);
    }
    std::fill_n(dhn, hidden, 0.0);
    add_transposed(d.data(), in[2].as<T>(), hidden, hidden, dhn);
  });
  write_state(dh, data_or_null<T>(out, 1));
}

// dgates, y, h0, hidden, lengths -> dr
template <class T>
void weight_gradient(const Attributes& attributes, Tensors in, Tensors out) {
  const std::int64_t gates = in[0].type.shape[2] / in[1].type.shape[2];
  const StepOrder steps{geometry_of(attributes, in[0].type.shape, gates),
                        data_or_null<std::int32_t>(in, 4)};
  const std::int64_t hidden = steps.g.hidden;
  const T* h0 = data_or_null<T>(in, 2);
  const T* parts = data_or_null<T>(in, 3);
  State sum(static_cast<std::size_t>(gates * hidden * hidden), 0.0);
  steps.forward([&](std::int64_t t, std::int64_t n) {
    const T* d = in[0].as<T>() + (t * steps.g.samples + n) * gates * hidden;
    for (std::int64_t k = 0; k < hidden; ++k) {
      const double before = steps.before(in[1].as<T>(), h0, t, n, k);
      const double last = parts ? static_cast<double>(parts[steps.at(t, n, k)]) : before;
      for (std::int64_t row = 0; row < gates * hidden; ++row) {
        sum[static_cast<std::size_t>(row * hidden + k)] +=
            d[row] * (row < (gates - 1) * hidden ? before : last);
      }
    }
  });
  write_state(sum, out[0].as<T>());
}

/// `run<T>` as a kernel for float and double.
template <class Run>
std::unique_ptr<Kernel> make(const KernelRequest& request, Run run) {
  if (!is_row_major(request)) return nullptr;
  return for_element_type<float, double>(request.outputs[0].dtype, [&]<class T>() {
    return make_kernel(
        [attributes = request.node.attributes, run](Tensors in, Tensors out, const RunContext&) {
          run.template operator()<T>(attributes, in, out);
        });
  });
}

#define PT_RECURRENT_KERNEL(FUNCTION)                                                         \
  [](const KernelRequest& request) {                                                          \
    return make(request, []<class T>(const Attributes& attributes, Tensors in, Tensors out) { \
      FUNCTION<T>(attributes, in, out);                                                       \
    });                                                                                       \
  }

constexpr KernelEntry kRecurrentReferenceKernels[] = {
    {"Gru", PT_RECURRENT_KERNEL(gru)},
    {"GruGrad", PT_RECURRENT_KERNEL(gru_gradient)},
    {"Lstm", PT_RECURRENT_KERNEL(lstm)},
    {"LstmGrad", PT_RECURRENT_KERNEL(lstm_gradient)},
    {"LstmPeepholeGrad", PT_RECURRENT_KERNEL(lstm_peephole_gradient)},
    {"RecurrentWeightGrad", PT_RECURRENT_KERNEL(weight_gradient)},
    {"Rnn", PT_RECURRENT_KERNEL(rnn)},
    {"RnnGrad", PT_RECURRENT_KERNEL(rnn_gradient)},
};

}  // namespace

std::span<const KernelEntry> reference_kernels() { return kRecurrentReferenceKernels; }

}  // namespace pipetrain::recurrent
