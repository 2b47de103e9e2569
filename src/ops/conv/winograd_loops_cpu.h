// Winograd's transforms of inputs, outputs and gradients between channel blocks and points.
// winograd_vectors_cpu.h includes this file in a structure for vectors of 8 floats and in one for
// vectors of 16, which have kLanes, Vector, load() and store(), with PIPETRAIN_WINOGRAD_TARGET
// before functions.

// A scheme has the one-dimensional transforms of a pass: kSpan inputs of a tile, kStep apart from
// tile to tile, become kLine numbers, and as many products kOut outputs. Forward ones also have the
// transform of a tile's output gradients, for the weight gradient. Vectors are `step` and `to_step`
// apart.

/// F(4, 3) for windows of stride 1, forward and input gradient.
struct Unstrided {
  using InputGradient = Unstrided;
  static constexpr bool kStrided = false;
  static constexpr int kSpan = 6, kStep = 4, kLine = 6, kOut = 4;

  /// B', scaled: 6 inputs → 6 points.
  [[gnu::always_inline]] PIPETRAIN_WINOGRAD_TARGET static void input_line(const Vector* d, int step,
                                                                          Vector* to, int to_step) {
    using namespace unstrided;
    const Vector d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step],
                 d5 = d[5 * step];
    const Vector even_a = kScaleA * d4 - (kScaleA * kB2) * d2;
    const Vector odd_a = (kScaleA * kA) * d3 - (kScaleA * kA * kB2) * d1;
    const Vector even_b = kScaleB * d4 - (kScaleB * kA2) * d2;
    const Vector odd_b = (kScaleB * kB) * d3 - (kScaleB * kB * kA2) * d1;
    to[0] = d0 - (kScale0 * kSum) * d2 + kScale0 * d4;
    to[to_step] = even_a + odd_a;
    to[2 * to_step] = even_a - odd_a;
    to[3 * to_step] = even_b + odd_b;
    to[4 * to_step] = even_b - odd_b;
    to[5 * to_step] = d5 - kSum * d3 + kProduct * d1;
  }

  /// A': 6 points → 4 outputs.
  [[gnu::always_inline]] PIPETRAIN_WINOGRAD_TARGET static void output_line(const Vector* m,
                                                                           int step, Vector* to,
                                                                           int to_step) {
    using namespace unstrided;
    const Vector sum_a = m[step] + m[2 * step], difference_a = kA * (m[step] - m[2 * step]);
    const Vector sum_b = m[3 * step] + m[4 * step];
    const Vector difference_b = kB * (m[3 * step] - m[4 * step]);
    to[0] = m[0] + sum_a + sum_b;
    to[to_step] = difference_a + difference_b;
    to[2 * to_step] = kA2 * sum_a + kB2 * sum_b;
    to[3 * to_step] = kA2 * difference_a + kB2 * difference_b + m[5 * step];
  }

  /// A: 4 output gradients → 6 points.
  [[gnu::always_inline]] PIPETRAIN_WINOGRAD_TARGET static void gradient_line(const Vector* d,
                                                                             int step, Vector* to,
                                                                             int to_step) {
    using namespace unstrided;
    const Vector d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step];
    const Vector even_a = d0 + kA2 * d2, odd_a = kA * (d1 + kA2 * d3);
    const Vector even_b = d0 + kB2 * d2, odd_b = kB * (d1 + kB2 * d3);
    to[0] = d0;
    to[to_step] = even_a + odd_a;
    to[2 * to_step] = even_a - odd_a;
    to[3 * to_step] = even_b + odd_b;
    to[4 * to_step] = even_b - odd_b;
    to[5 * to_step] = d3;
  }
};

struct StridedInputGradient;

/// Windows of stride 2, forward: F(4, 2) of the even inputs, which meet the outer two of three
/// weights, and the odd ones as they are.
struct Strided {
  using InputGradient = StridedInputGradient;
  static constexpr bool kStrided = true;
  static constexpr int kSpan = 9, kStep = 8, kLine = 9, kOut = 4;

  /// B' of F(4, 2), scaled: 5 inputs → 5 points.
  [[gnu::always_inline]] PIPETRAIN_WINOGRAD_TARGET static void even_line(const Vector* d, int step,
                                                                         Vector* to, int to_step) {
    using namespace strided;
    const Vector d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step];
    const Vector even_a = (kScaleA * kA) * d2 - (kScaleA * kA * kB2) * d0;
    const Vector odd_a = kScaleA * d3 - (kScaleA * kB2) * d1;
    const Vector even_b = (kScaleB * kB) * d2 - (kScaleB * kB * kA2) * d0;
    const Vector odd_b = kScaleB * d3 - (kScaleB * kA2) * d1;
    to[0] = even_a + odd_a;
    to[to_step] = even_a - odd_a;
    to[2 * to_step] = even_b + odd_b;
    to[3 * to_step] = even_b - odd_b;
    to[4 * to_step] = d4 - kSum * d2 + kProduct * d0;
  }

  [[gnu::always_inline]] PIPETRAIN_WINOGRAD_TARGET static void input_line(const Vector* d, int step,
                                                                          Vector* to, int to_step) {
    even_line(d, 2 * step, to, to_step);
    for (int i = 0; i < 4; ++i) to[(5 + i) * to_step] = d[(2 * i + 1) * step];
  }

  /// A' of F(4, 2): 5 points → 4 outputs.
  [[gnu::always_inline]] PIPETRAIN_WINOGRAD_TARGET static void even_output_line(const Vector* m,
                                                                                int step,
                                                                                Vector (&to)[4]) {
    using namespace strided;
    const Vector sum_a = m[0] + m[step], difference_a = kA * (m[0] - m[step]);
    const Vector sum_b = m[2 * step] + m[3 * step];
    const Vector difference_b = kB * (m[2 * step] - m[3 * step]);
    to[0] = sum_a + sum_b;
    to[1] = difference_a + difference_b;
    to[2] = kA2 * sum_a + kB2 * sum_b;
    to[3] = kA2 * difference_a + kB2 * difference_b + m[4 * step];
  }

  [[gnu::always_inline]] PIPETRAIN_WINOGRAD_TARGET static void output_line(const Vector* m,
                                                                           int step, Vector* to,
                                                                           int to_step) {
    Vector even[4];
    even_output_line(m, step, even);
    for (int i = 0; i < 4; ++i) to[i * to_step] = even[i] + m[(5 + i) * step];
  }

  /// A of F(4, 2): 4 output gradients → 5 points; and the gradients as they are.
  [[gnu::always_inline]] PIPETRAIN_WINOGRAD_TARGET static void gradient_line(const Vector* d,
                                                                             int step, Vector* to,
                                                                             int to_step) {
    using namespace strided;
    const Vector d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step];
    const Vector even_a = d0 + kA2 * d2, odd_a = kA * (d1 + kA2 * d3);
    const Vector even_b = d0 + kB2 * d2, odd_b = kB * (d1 + kB2 * d3);
    to[0] = even_a + odd_a;
    to[to_step] = even_a - odd_a;
    to[2 * to_step] = even_b + odd_b;
    to[3 * to_step] = even_b - odd_b;
    to[4 * to_step] = d3;
    for (int i = 0; i < 4; ++i) to[(5 + i) * to_step] = d[i * step];
  }
};

/// The input gradient of windows of stride 2 with one padded position before the first: along an
/// axis dx[2 i] = dy[i] w1, and dx[2 i + 1] = dy[i] w2 + dy[i + 1] w0 by F(4, 2).
struct StridedInputGradient {
  static constexpr bool kStrided = true;
  static constexpr int kSpan = 5, kStep = 4, kLine = 9, kOut = 8;

  [[gnu::always_inline]] PIPETRAIN_WINOGRAD_TARGET static void input_line(const Vector* d, int step,
                                                                          Vector* to, int to_step) {
    Strided::even_line(d, step, to, to_step);
    for (int i = 0; i < 4; ++i) to[(5 + i) * to_step] = d[i * step];
  }

  [[gnu::always_inline]] PIPETRAIN_WINOGRAD_TARGET static void output_line(const Vector* m,
                                                                           int step, Vector* to,
                                                                           int to_step) {
    Vector even[4];
    Strided::even_output_line(m, step, even);
    for (int i = 0; i < 4; ++i) {
      to[2 * i * to_step] = m[(5 + i) * step];
      to[(2 * i + 1) * to_step] = even[i];
    }
  }
};

/// B' x B of a tile in one slice. `from`: the first position of its phase in that slice.
template <class Scheme, class Element>
PIPETRAIN_WINOGRAD_TARGET static void transform_tile(const FeatureMap& map, const Tile& tile,
                                                     const Element* from, float* to,
                                                     std::int64_t stride) {
  constexpr int kSpan = Scheme::kSpan, kLine = Scheme::kLine;
  const std::int64_t top = Scheme::kStep * tile.row - map.pad_top;
  const std::int64_t left = Scheme::kStep * tile.column - map.pad_left;
  alignas(64) Vector lines[kSpan * kLine];  // [row][slot]
  if (top >= 0 && left >= 0 && top + kSpan <= tile.height && left + kSpan <= tile.width) {
    const Element* corner = from + top * map.row_step() + left * map.step();
    for (int i = 0; i < kSpan; ++i) {
      const Element* row = corner + i * map.row_step();
      alignas(64) Vector inputs[kSpan];
      for (int j = 0; j < kSpan; ++j) inputs[j] = load(row + j * map.step());
      Scheme::input_line(inputs, 1, lines + kLine * i, 1);
    }
  } else {
    for (int i = 0; i < kSpan; ++i) {
      const std::int64_t y = top + i;
      alignas(64) Vector inputs[kSpan] = {};
      if (y >= 0 && y < tile.height) {
        for (int j = 0; j < kSpan; ++j) {
          const std::int64_t at = left + j;
          if (at >= 0 && at < tile.width) {
            inputs[j] = load(from + y * map.row_step() + at * map.step());
          }
        }
      }
      Scheme::input_line(inputs, 1, lines + kLine * i, 1);
    }
  }
  for (int j = 0; j < kLine; ++j) {
    alignas(64) Vector points[kLine];
    Scheme::input_line(lines + j, kLine, points, 1);
    for (int i = 0; i < kLine; ++i) store(to + (kLine * i + j) * stride, points[i]);
  }
}

/// B' x B for tiles [first, first + count) of the kLanes channels from `channel`, which become
/// those from `to_channel` of the points.
template <class Scheme, class Element>
PIPETRAIN_WINOGRAD_TARGET static void transform_input(const FeatureMap& map, const Element* x,
                                                      std::int64_t channel, std::int64_t first,
                                                      std::int64_t count, const Points& to,
                                                      std::int64_t to_channel) {
  for (std::int64_t t = 0; t < count; ++t) {
    const Tile tile = tile_at(map, first + t);
    const Element* from = x + tile.phase(map, channel);
    for (std::int64_t slice = 0; slice < map.slices; ++slice, from += map.slice_step()) {
      const std::int64_t row = map.position(slice) * count + t;
      transform_tile<Scheme>(map, tile, from, to.data + to_channel * to.tiles + row * kLanes,
                             to.stride);
    }
  }
}

/// A' m A + shift of a tile in one slice. `to`: the first position of its phase in that slice.
template <class Scheme, class Element>
PIPETRAIN_WINOGRAD_TARGET static void restore_tile(const FeatureMap& map, const Tile& tile,
                                                   const float* from, std::int64_t stride,
                                                   const Vector& shift, Element* to) {
  constexpr int kLine = Scheme::kLine, kOut = Scheme::kOut;
  alignas(64) Vector lines[kOut * kLine];  // [output row][slot]
  for (int j = 0; j < kLine; ++j) {
    alignas(64) Vector points[kLine];
    for (int i = 0; i < kLine; ++i) points[i] = load(from + (kLine * i + j) * stride);
    Scheme::output_line(points, 1, lines + j, kLine);
  }
  const std::int64_t rows = std::min<std::int64_t>(kOut, tile.height - kOut * tile.row);
  const std::int64_t columns = std::min<std::int64_t>(kOut, tile.width - kOut * tile.column);
  Element* corner = to + kOut * (tile.row * map.row_step() + tile.column * map.step());
  for (std::int64_t i = 0; i < rows; ++i) {
    alignas(64) Vector outputs[kOut];
    Scheme::output_line(lines + kLine * i, 1, outputs, 1);
    for (std::int64_t j = 0; j < columns; ++j) {
      store(corner + i * map.row_step() + j * map.step(), outputs[j] + shift);
    }
  }
}

/// y = A' m A + bias (unless null) for tiles [first, first + count) of the kLanes channels from
/// `channel`, which are those from `from_channel` of m.
template <class Scheme, class Element>
PIPETRAIN_WINOGRAD_TARGET static void transform_output(const FeatureMap& map, const Points& from,
                                                       std::int64_t from_channel,
                                                       std::int64_t channel, std::int64_t first,
                                                       std::int64_t count, const float* bias,
                                                       Element* y) {
  const Vector shift = bias ? load(bias + channel) : Vector{};
  for (std::int64_t t = 0; t < count; ++t) {
    const Tile tile = tile_at(map, first + t);
    Element* to = y + tile.phase(map, channel);
    for (std::int64_t slice = 0; slice < map.slices; ++slice, to += map.slice_step()) {
      const std::int64_t row = map.position(slice) * count + t;
      restore_tile<Scheme>(map, tile, from.data + from_channel * from.tiles + row * kLanes,
                           from.stride, shift, to);
    }
  }
}

/// A dy A' of a tile in one slice. `from`: the first position of its phase in that slice.
template <class Scheme, class Element>
PIPETRAIN_WINOGRAD_TARGET static void transform_gradient_tile(const FeatureMap& map,
                                                              const Tile& tile, const Element* from,
                                                              float* to, std::int64_t stride) {
  constexpr int kLine = Scheme::kLine, kOut = Scheme::kOut;
  const std::int64_t rows = std::min<std::int64_t>(kOut, tile.height - kOut * tile.row);
  const std::int64_t columns = std::min<std::int64_t>(kOut, tile.width - kOut * tile.column);
  const Element* corner = from + kOut * (tile.row * map.row_step() + tile.column * map.step());
  alignas(64) Vector lines[kOut * kLine] = {};  // [output row][slot]
  for (std::int64_t i = 0; i < rows; ++i) {
    alignas(64) Vector gradients[kOut] = {};
    for (std::int64_t j = 0; j < columns; ++j) {
      gradients[j] = load(corner + i * map.row_step() + j * map.step());
    }
    Scheme::gradient_line(gradients, 1, lines + kLine * i, 1);
  }
  for (int j = 0; j < kLine; ++j) {
    alignas(64) Vector points[kLine];
    Scheme::gradient_line(lines + j, kLine, points, 1);
    for (int i = 0; i < kLine; ++i) store(to + (kLine * i + j) * stride, points[i]);
  }
}

/// A dy A' for tiles [first, first + count) of the kLanes channels from `channel`, which become
/// those from `to_channel` of the points.
template <class Scheme, class Element>
PIPETRAIN_WINOGRAD_TARGET static void transform_gradient(const FeatureMap& map, const Element* dy,
                                                         std::int64_t channel, std::int64_t first,
                                                         std::int64_t count, const Points& to,
                                                         std::int64_t to_channel) {
  for (std::int64_t t = 0; t < count; ++t) {
    const Tile tile = tile_at(map, first + t);
    const Element* from = dy + tile.phase(map, channel);
    for (std::int64_t slice = 0; slice < map.slices; ++slice, from += map.slice_step()) {
      const std::int64_t row = map.position(slice) * count + t;
      transform_gradient_tile<Scheme>(map, tile, from,
                                      to.data + to_channel * to.tiles + row * kLanes, to.stride);
    }
  }
}
