// Winograd's transforms F(4x4, 3x3) of inputs, outputs and gradients between channel blocks and
// points. winograd_vectors_cpu.h includes this file in a structure for vectors of 8 floats and in
// one for vectors of 16, which have kLanes, Vector, load() and store(), with
// PIPETRAIN_WINOGRAD_TARGET before functions.

// One-dimensional transforms. `from` and `to` are vectors `step` apart.

/// B', scaled: 6 inputs → 6 points.
[[gnu::always_inline]] PIPETRAIN_WINOGRAD_TARGET static void input_line(const Vector* d, int step,
                                                                        Vector* to, int to_step) {
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
[[gnu::always_inline]] PIPETRAIN_WINOGRAD_TARGET static void output_line(const Vector* m, int step,
                                                                         Vector* to, int to_step) {
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

/// B' x B for tiles [first, first + count) of the kLanes channels from `channel`.
template <class Element>
PIPETRAIN_WINOGRAD_TARGET static void transform_input(const FeatureMap& map, const Element* x,
                                                      std::int64_t channel, std::int64_t first,
                                                      std::int64_t count, const Points& to) {
  for (std::int64_t t = 0; t < count; ++t) {
    const Tile tile = tile_at(map, first + t);
    const std::int64_t top = 4 * tile.row - map.pad_top;
    const std::int64_t left = 4 * tile.column - map.pad_left;
    const Element* from = x + map.at(tile.image, channel);
    Vector lines[36];  // [row][point]
    if (top >= 0 && left >= 0 && top + 6 <= map.height && left + 6 <= map.width) {
      const Element* corner = from + (top * map.width + left) * map.lanes;
      for (int i = 0; i < 6; ++i) {
        const Element* row = corner + i * map.width * map.lanes;
        Vector inputs[6];
        for (int j = 0; j < 6; ++j) inputs[j] = load(row + j * map.lanes);
        input_line(inputs, 1, lines + 6 * i, 1);
      }
    } else {
      for (int i = 0; i < 6; ++i) {
        const std::int64_t y = top + i;
        Vector inputs[6] = {};
        if (y >= 0 && y < map.height) {
          for (int j = 0; j < 6; ++j) {
            const std::int64_t at = left + j;
            if (at >= 0 && at < map.width) {
              inputs[j] = load(from + (y * map.width + at) * map.lanes);
            }
          }
        }
        input_line(inputs, 1, lines + 6 * i, 1);
      }
    }
    float* target = to.data + channel * to.tiles + t * kLanes;
    for (int j = 0; j < 6; ++j) {
      Vector points[6];
      input_line(lines + j, 6, points, 1);
      for (int i = 0; i < 6; ++i) store(target + (6 * i + j) * to.point, points[i]);
    }
  }
}

/// y = A' m A + bias (unless null) for tiles [first, first + count) of the kLanes channels from
/// `channel`, which are those from `from_channel` of m.
template <class Element>
PIPETRAIN_WINOGRAD_TARGET static void transform_output(const FeatureMap& map, const Points& from,
                                                       std::int64_t from_channel,
                                                       std::int64_t channel, std::int64_t first,
                                                       std::int64_t count, const float* bias,
                                                       Element* y) {
  const Vector shift = bias ? load(bias + channel) : Vector{};
  for (std::int64_t t = 0; t < count; ++t) {
    const Tile tile = tile_at(map, first + t);
    const float* source = from.data + from_channel * from.tiles + t * kLanes;
    Vector lines[24];  // [output row][point column]
    for (int j = 0; j < 6; ++j) {
      Vector points[6];
      for (int i = 0; i < 6; ++i) points[i] = load(source + (6 * i + j) * from.point);
      output_line(points, 1, lines + j, 6);
    }
    const std::int64_t rows = std::min<std::int64_t>(4, map.height - 4 * tile.row);
    const std::int64_t columns = std::min<std::int64_t>(4, map.width - 4 * tile.column);
    Element* to =
        y + map.at(tile.image, channel) + (4 * tile.row * map.width + 4 * tile.column) * map.lanes;
    for (std::int64_t i = 0; i < rows; ++i) {
      Vector outputs[4];
      output_line(lines + 6 * i, 1, outputs, 1);
      for (std::int64_t j = 0; j < columns; ++j) {
        store(to + (i * map.width + j) * map.lanes, outputs[j] + shift);
      }
    }
  }
}

/// A dy A' for tiles [first, first + count) of the kLanes channels from `channel`.
template <class Element>
PIPETRAIN_WINOGRAD_TARGET static void transform_gradient(const FeatureMap& map, const Element* dy,
                                                         std::int64_t channel, std::int64_t first,
                                                         std::int64_t count, const Points& to) {
  for (std::int64_t t = 0; t < count; ++t) {
    const Tile tile = tile_at(map, first + t);
    const std::int64_t rows = std::min<std::int64_t>(4, map.height - 4 * tile.row);
    const std::int64_t columns = std::min<std::int64_t>(4, map.width - 4 * tile.column);
    const Element* from =
        dy + map.at(tile.image, channel) + (4 * tile.row * map.width + 4 * tile.column) * map.lanes;
    Vector lines[24] = {};  // [output row][point column]
    for (std::int64_t i = 0; i < rows; ++i) {
      Vector gradients[4] = {};
      for (std::int64_t j = 0; j < columns; ++j) {
        gradients[j] = load(from + (i * map.width + j) * map.lanes);
      }
      gradient_line(gradients, 1, lines + 6 * i, 1);
    }
    float* target = to.data + channel * to.tiles + t * kLanes;
    for (int j = 0; j < 6; ++j) {
      Vector points[6];
      gradient_line(lines + j, 6, points, 1);
      for (int i = 0; i < 6; ++i) store(target + (6 * i + j) * to.point, points[i]);
    }
  }
}
