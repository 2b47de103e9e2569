// Curves over steps as SVG images, for reports.
#pragma once

#include <string>
#include <vector>

namespace pipetrain {

struct Curve {
  std::string name;
  std::vector<double> x, y;  // the same length; points that are not finite interrupt the curve
  bool faint = false;        // drawn in the background
};

struct LineChart {
  std::string title, x_name;
  std::vector<Curve> curves;
  bool from_zero = false;  // the y axis begins at 0
  int width = 540, height = 240;
};

/// An <svg> element without script or font; empty if no point is finite. Curves of many points are
/// drawn by the least and the largest of each pixel's worth, so that outliers stay visible. The
/// page's style gives the classes c0 to c5 of lines and p0 to p5 of points their colours; further
/// curves have the same ones and are dashed.
std::string line_chart(const LineChart& chart);

/// An exponential mean with a bias correction; points that are not finite are passed over.
std::vector<double> smoothed(const std::vector<double>& values, double keep);

}  // namespace pipetrain
