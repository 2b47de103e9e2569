// The inner loops of depthwise convolutions. depthwise_vectors_cpu.h includes this file once for
// vectors of 8 floats and once for vectors of 16, each in a namespace of its own that has kLanes,
// Vector, load(), store() and fill(), with PIPETRAIN_DEPTHWISE_TARGET before functions.

/// `T` neighbouring outputs: the sum over taps of a weight times what lies `tap.source` behind each
/// output's place. kStep: vectors from one output's place to the next, 0 where `step` says it.
template <int T, int kStep>
PIPETRAIN_DEPTHWISE_TARGET void sum_taps(std::span<const Tap> taps, const float* from,
                                         std::int64_t step, const float* weights,
                                         const float* start, float* to, std::int64_t to_step) {
  const std::int64_t between = (kStep > 0 ? kStep : step) * kLanes;
  Vector sums[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) sums[t] = load(start);
  for (const Tap& tap : taps) {
    const Vector weight = load(weights + tap.weight * kLanes);
    const float* place = from + tap.source * kLanes;
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) sums[t] += weight * load(place + t * between);
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) store(to + t * to_step * kLanes, sums[t]);
}

inline SumTaps sum_taps_of(std::int64_t together, std::int64_t step) {
  static constexpr SumTaps kTable[5][3] = {{sum_taps<4, 0>, sum_taps<4, 1>, sum_taps<4, 2>},
                                           {sum_taps<5, 0>, sum_taps<5, 1>, sum_taps<5, 2>},
                                           {sum_taps<6, 0>, sum_taps<6, 1>, sum_taps<6, 2>},
                                           {sum_taps<7, 0>, sum_taps<7, 1>, sum_taps<7, 2>},
                                           {sum_taps<8, 0>, sum_taps<8, 1>, sum_taps<8, 2>}};
  return kTable[together - 4][step <= 2 ? step : 0];
}

/// `T` neighbouring outputs of a pass without strides or dilation: rows of kTaps taps, each told by
/// its first, slide over what is read once. Weights of a row are `weight_step` vectors apart.
template <int kTaps, int T>
PIPETRAIN_DEPTHWISE_TARGET void slide_rows(std::span<const Tap> rows, const float* from,
                                           std::int64_t weight_step, const float* weights,
                                           const float* start, float* to) {
  Vector sums[T], taps[kTaps];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) sums[t] = load(start);
  for (const Tap& row : rows) {
    const float* weight = weights + row.weight * kLanes;
    const float* place = from + row.source * kLanes;
#pragma GCC unroll 8
    for (int k = 0; k < kTaps; ++k) taps[k] = load(weight + k * weight_step * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < T + kTaps - 1; ++i) {
      const Vector input = load(place + i * kLanes);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        if (i >= t && i - t < kTaps) sums[t] += taps[i - t] * input;
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) store(to + t * kLanes, sums[t]);
}

/// Null unless a row has 3, 5 or 7 taps.
inline SlideRows slide_rows_of(std::int64_t taps, std::int64_t together) {
  static constexpr SlideRows kTable[3][5] = {
      {slide_rows<3, 4>, slide_rows<3, 5>, slide_rows<3, 6>, slide_rows<3, 7>, slide_rows<3, 8>},
      {slide_rows<5, 4>, slide_rows<5, 5>, slide_rows<5, 6>, slide_rows<5, 7>, slide_rows<5, 8>},
      {slide_rows<7, 4>, slide_rows<7, 5>, slide_rows<7, 6>, slide_rows<7, 7>, slide_rows<7, 8>}};
  const bool has = taps == 3 || taps == 5 || taps == 7;
  return has ? kTable[taps / 2 - 1][together - 4] : nullptr;
}

/// Adds to the sums of kRows by kTaps taps what a band of gradients gives them. kTapFloats: from
/// one tap of a row to the next, 0 where the band says it.
template <int kRows, int kTaps, int kTapFloats>
PIPETRAIN_DEPTHWISE_TARGET void add_gradient(const GradientBand& band, const float* x,
                                             const float* dy, float* sums) {
  Vector sum[kRows][kTaps] = {};
  for (std::int64_t row = 0; row < band.rows; ++row) {
    const float* from = x + row * band.x_step;
    const float* gradient = dy + row * band.y_row;
    for (std::int64_t column = 0; column < band.columns;
         ++column, from += band.column_step, gradient += kLanes) {
      const Vector factor = load(gradient);
#pragma GCC unroll 3
      for (int r = 0; r < kRows; ++r) {
        const float* place = from + r * band.tap_row;
#pragma GCC unroll 8
        for (int t = 0; t < kTaps; ++t)
          sum[r][t] += factor * load(place + t * (kTapFloats > 0 ? kTapFloats : band.tap_step));
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTaps; ++t) {
      float* to = sums + (r * band.taps_of_row + t * band.sum_step) * kLanes;
      store(to, load(to) + sum[r][t]);
    }
  }
}

template <int kTapFloats>
AddGradient add_gradient_of(std::int64_t rows, std::int64_t taps) {
  static constexpr AddGradient kTable[3][8] = {
      {add_gradient<1, 1, kTapFloats>, add_gradient<1, 2, kTapFloats>,
       add_gradient<1, 3, kTapFloats>, add_gradient<1, 4, kTapFloats>,
       add_gradient<1, 5, kTapFloats>, add_gradient<1, 6, kTapFloats>,
       add_gradient<1, 7, kTapFloats>, add_gradient<1, 8, kTapFloats>},
      {add_gradient<2, 1, kTapFloats>, add_gradient<2, 2, kTapFloats>,
       add_gradient<2, 3, kTapFloats>, add_gradient<2, 4, kTapFloats>,
       add_gradient<2, 5, kTapFloats>, add_gradient<2, 6, kTapFloats>,
       add_gradient<2, 7, kTapFloats>, add_gradient<2, 8, kTapFloats>},
      {add_gradient<3, 1, kTapFloats>, add_gradient<3, 2, kTapFloats>,
       add_gradient<3, 3, kTapFloats>, add_gradient<3, 4, kTapFloats>,
       add_gradient<3, 5, kTapFloats>, add_gradient<3, 6, kTapFloats>,
       add_gradient<3, 7, kTapFloats>, add_gradient<3, 8, kTapFloats>}};
  return kTable[rows - 1][taps - 1];
}

/// kRows rows of T vectors of neighbouring outputs of a channel: the sum over taps of a weight
/// times what lies `tap.source` floats behind each output's place.
template <int kRows, int T>
PIPETRAIN_DEPTHWISE_TARGET void sum_plane(std::span<const Tap> taps, const float* from,
                                          std::int64_t row, const float* weights, float start,
                                          float* to, std::int64_t to_row) {
  Vector sums[kRows][T];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) sums[r][t] = fill(start);
  }
  for (const Tap& tap : taps) {
    const Vector weight = fill(weights[tap.weight]);
    const float* place = from + tap.source;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) sums[r][t] += weight * load(place + r * row + t * kLanes);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) store(to + r * to_row + t * kLanes, sums[r][t]);
  }
}

/// For 1, 2 or 4 rows.
inline SumPlane sum_plane_of(std::int64_t rows, std::int64_t vectors) {
  static constexpr SumPlane kTable[3][4] = {
      {sum_plane<1, 1>, sum_plane<1, 2>, sum_plane<1, 3>, sum_plane<1, 4>},
      {sum_plane<2, 1>, sum_plane<2, 2>, sum_plane<2, 3>, sum_plane<2, 4>},
      {sum_plane<4, 1>, sum_plane<4, 2>, sum_plane<4, 3>, sum_plane<4, 4>}};
  return kTable[rows / 2][vectors - 1];
}

/// The sum of `count` vectors, added to `to`.
PIPETRAIN_DEPTHWISE_TARGET inline void add_vectors(const float* from, std::int64_t count,
                                                   float* to) {
  Vector sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) sums[k] += load(from + (i + k) * kLanes);
  }
  for (; i < count; ++i) sums[0] += load(from + i * kLanes);
  store(to, load(to) + ((sums[0] + sums[1]) + (sums[2] + sums[3])));
}
