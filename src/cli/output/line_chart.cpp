#include "cli/output/line_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "cli/output/progress_line.h"
#include "pipeline/view/svg.h"

namespace pipetrain {
namespace {

constexpr double kLeft = 64, kRight = 14, kTop = 30, kBottom = 38;
constexpr double kLetter = 6.5, kNameLine = 34, kNameRow = 16;  // of the names of curves
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kColors = 6;  // that the page's style has

struct Range {
  double low = kInfinity, high = -kInfinity;
  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  /// Makes room where all values are nearly the same: ticks between them are too close for doubles.
  void widen() {
    constexpr double kLeast = 1e-12;
    const double size = std::max(std::abs(low), std::abs(high));
    if (high - low > kLeast * size) return;
    const double half = std::max(size * 0.05, kLeast);
    low -= half;
    high += half;
  }
};

bool finite(const Curve& curve, std::size_t i) {
  return std::isfinite(curve.x[i]) && std::isfinite(curve.y[i]);
}

/// The classes of a line of a curve.
std::string classes_of(const Curve& curve, std::size_t number) {
  return fmt::format("curve c{}{}{}", number % kColors, number < kColors ? "" : " dashed",
                     curve.faint ? " faint" : "");
}

class Drawing {
 public:
  explicit Drawing(const LineChart& chart) : chart_(chart) {
    for (const Curve& curve : chart.curves) {
      for (std::size_t i = 0; i < curve.x.size(); ++i) {
        if (!finite(curve, i)) continue;
        x_.take(curve.x[i]);
        y_.take(curve.y[i]);
      }
    }
    if (chart.from_zero && y_.low <= y_.high) y_.low = std::min(y_.low, 0.0);
    arrange_names();
  }

  std::string text() {
    if (x_.low > x_.high) return "";
    x_.widen();
    y_.widen();
    out_ = fmt::format(
        "<svg class=\"chart\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\">\n"
        "<title>{2}</title>\n<text class=\"head\" x=\"{3}\" y=\"16\">{2}</text>\n",
        chart_.width, height(), xml_text(chart_.title), kLeft);
    draw_axes();
    for (const bool faint : {true, false}) {
      for (std::size_t c = 0; c < chart_.curves.size(); ++c) {
        if (chart_.curves[c].faint == faint) draw(chart_.curves[c], c);
      }
    }
    draw_names();
    return out_ + "</svg>\n";
  }

 private:
  double px(double x) const {
    return kLeft + (x - x_.low) / (x_.high - x_.low) * (chart_.width - kLeft - kRight);
  }
  /// Names that do not fit beside the title lie below it, and the curves below them.
  double height() const { return chart_.height + kNameRow * rows_below_; }
  double py(double y) const {
    return height() - kBottom -
           (y - y_.low) / (y_.high - y_.low) * (chart_.height - kTop - kBottom);
  }

  void draw_axes() {
    const double bottom = height() - kBottom, right = chart_.width - kRight;
    const double dy = tick_distance(y_.high - y_.low, 5);
    for (double k = std::ceil(y_.low / dy); k * dy <= y_.high + dy * 1e-9; ++k) {
      out_ += fmt::format(
          "<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
          "<text class=\"name\" x=\"{:.1f}\" y=\"{:.1f}\">{:.4g}</text>\n",
          kLeft, right, py(k * dy), py(k * dy), kLeft - 6, py(k * dy) + 4, k * dy);
    }
    const double dx = tick_distance(x_.high - x_.low, 6);
    for (double k = std::ceil(x_.low / dx); k * dx <= x_.high + dx * 1e-9; ++k) {
      out_ += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\">{:.6g}</text>\n",
                          px(k * dx), bottom + 16, k * dx);
    }
    out_ += fmt::format(
        "<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text class=\"tick\" x=\"{3:.1f}\" y=\"{4:.1f}\">{5}</text>\n",
        kLeft, right, bottom, (kLeft + right) / 2, bottom + 32, xml_text(chart_.x_name));
  }

  void draw(const Curve& curve, std::size_t number) {
    std::string points;
    std::size_t drawn = 0;
    const auto end_line = [&] {
      if (drawn == 1) {
        out_ +=
            fmt::format("<circle class=\"p{}\" r=\"2.5\" {}/>\n", number % kColors, last_point_);
      } else if (drawn > 1) {
        out_ += fmt::format("<polyline class=\"{}\" points=\"{}\"/>\n", classes_of(curve, number),
                            points);
      }
      points.clear();
      drawn = 0;
    };
    const auto point = [&](std::size_t i) {
      points += fmt::format("{:.1f},{:.1f} ", px(curve.x[i]), py(curve.y[i]));
      last_point_ = fmt::format("cx=\"{:.1f}\" cy=\"{:.1f}\"", px(curve.x[i]), py(curve.y[i]));
      ++drawn;
    };
    const std::size_t per_pixel =
        std::max<std::size_t>(1, curve.x.size() / static_cast<std::size_t>(chart_.width));
    for (std::size_t begin = 0; begin < curve.x.size(); begin += per_pixel) {
      const std::size_t end = std::min(begin + per_pixel, curve.x.size());
      std::size_t low = end, high = end;
      for (std::size_t i = begin; i < end; ++i) {
        if (!finite(curve, i)) continue;
        if (low == end || curve.y[i] < curve.y[low]) low = i;
        if (high == end || curve.y[i] > curve.y[high]) high = i;
      }
      if (low == end) {
        end_line();
        continue;
      }
      point(std::min(low, high));
      if (low != high) point(std::max(low, high));
    }
    end_line();
  }

  static double width_of(const std::string& text) {
    return kLetter * static_cast<double>(columns_of(text));
  }
  /// A name, and the line before it.
  double name_width(std::size_t curve) const {
    return kNameLine + width_of(chart_.curves[curve].name);
  }

  /// Rows of names, as many in each as fit.
  void arrange_names() {
    const double room = chart_.width - kLeft - kRight;
    double used = room;  // the first row begins with the first name
    for (std::size_t c = 0; c < chart_.curves.size(); ++c) {
      if (chart_.curves[c].name.empty()) continue;
      if (used + name_width(c) > room) {
        name_rows_.emplace_back();
        used = 0;
      }
      name_rows_.back().push_back(c);
      used += name_width(c);
    }
    const bool beside_title =
        name_rows_.size() == 1 && used + width_of(chart_.title) + kLetter < room;
    rows_below_ = beside_title ? 0 : static_cast<int>(name_rows_.size());
  }

  void draw_names() {
    double y = rows_below_ > 0 ? 16 + kNameRow : 16;
    for (const std::vector<std::size_t>& row : name_rows_) {
      double x = chart_.width - kRight;
      for (std::size_t i = row.size(); i-- > 0;) {
        const Curve& curve = chart_.curves[row[i]];
        out_ += fmt::format("<text class=\"name\" x=\"{:.1f}\" y=\"{:.0f}\">{}</text>", x, y,
                            xml_text(curve.name));
        const double line = x - width_of(curve.name) - 8;
        out_ += fmt::format(
            "<line class=\"{0}\" x1=\"{1:.1f}\" x2=\"{2:.1f}\" y1=\"{3:.0f}\" "
            "y2=\"{3:.0f}\"/>\n",
            classes_of(curve, row[i]), line - 16, line, y - 4);
        x -= name_width(row[i]);
      }
      y += kNameRow;
    }
  }

  const LineChart& chart_;
  Range x_, y_;
  std::vector<std::vector<std::size_t>> name_rows_;  // curves, from left to right
  int rows_below_ = 0;
  std::string out_, last_point_;
};

}  // namespace

std::string line_chart(const LineChart& chart) { return Drawing(chart).text(); }

std::vector<double> smoothed(const std::vector<double>& values, double keep) {
  std::vector<double> out;
  double mean = 0, weight = 0;
  for (const double value : values) {
    if (std::isfinite(value)) {
      mean = keep * mean + (1 - keep) * value;
      weight = keep * weight + (1 - keep);
    }
    out.push_back(weight > 0 ? mean / weight : value);
  }
  return out;
}

}  // namespace pipetrain
