// Batches whose samples are mixed with one another: mixup (Zhang et al., "mixup: Beyond Empirical
// Risk Minimization", 2018) averages two samples and their labels, CutMix (Yun et al., 2019) pastes
// a rectangle of one image into another. Partners and shares are functions of (seed, step) alone.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/images/augment.h"
#include "data/rows/dataset.h"
#include "data/rows/image_column.h"

namespace pipetrain {

/// What becomes of the labels of mixed samples.
struct MixedLabels {
  std::int64_t classes = -1;    // class numbers become probabilities of so many classes; -1: as is
  double smoothing = 0;         // of those: what is spread evenly over all classes
  std::int64_t ignored = -100;  // a number that is no class, be it one of these
};

class MixedDataset final : public Dataset {
 public:
  /// Error (kUsage) where inputs cannot be mixed: tokens, or other than images for CutMix.
  MixedDataset(std::shared_ptr<const Dataset> whole, const Mixing& mixing, std::uint64_t seed,
               const MixedLabels& labels);
  std::size_t size() const override { return whole_->size(); }
  std::span<const Column> columns() const override { return columns_; }
  /// Samples that are not mixed.
  void gather(std::span<const std::size_t> indices, std::size_t column, Tensor out) const override;
  void gather_augmented(std::uint64_t step, std::span<const std::size_t> indices,
                        std::size_t column, Tensor out) const override;

 private:
  struct Rectangle {
    std::size_t top = 0, bottom = 0, left = 0, right = 0;

    std::size_t area() const { return (bottom - top) * (right - left); }
  };
  /// How a step mixes its samples.
  struct Mixture {
    double share = 1;  // of a sample in its mixture
    bool pastes = false;
    double x = 0, y = 0;  // where it pastes: the middle of the rectangle, as shares of the image

    Rectangle rectangle_of(const ImageShape& image) const;
  };
  Mixture mixture_of(std::uint64_t step) const;
  double label_share(const Mixture& mixture) const;
  bool is_label(std::size_t column) const { return column + 1 == columns_.size(); }
  void gather_labels(std::span<const std::size_t> indices, Tensor out) const;

  std::shared_ptr<const Dataset> whole_;
  Mixing mixing_;
  std::uint64_t seed_;
  MixedLabels labels_;
  std::vector<Column> columns_;
  std::vector<ImageShape> images_;  // of the inputs, for CutMix
};

}  // namespace pipetrain
