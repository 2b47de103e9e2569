#include "data/rows/sparse_rows.h"

#include <algorithm>

#include "base/error.h"
#include "data/rows/element.h"

namespace pipetrain {

namespace {

class SparseColumn final : public ColumnSource {
 public:
  SparseColumn(std::shared_ptr<const SparseRows> rows, std::size_t count, double divisor)
      : rows_(std::move(rows)), count_(count), divisor_(divisor) {}
  void gather(std::span<const std::size_t> indices, Tensor out) const override {
    std::vector<float> row(count_);
    auto* to = out.as<std::byte>();
    for (const std::size_t index : indices) {
      std::ranges::fill(row, 0.0f);
      for (std::size_t i = index ? rows_->ends[index - 1] : 0; i < rows_->ends[index]; ++i) {
        row[rows_->positions[i]] = rows_->values[i];
      }
      convert_elements(row.data(), DType::kFloat32, to, out.type.dtype, count_, divisor_);
      to += count_ * size_of(out.type.dtype);
    }
  }

 private:
  std::shared_ptr<const SparseRows> rows_;
  std::size_t count_;
  double divisor_;
};

class SparseSource final : public RowSource {
 public:
  explicit SparseSource(SparseRows rows)
      : rows_(std::make_shared<const SparseRows>(std::move(rows))) {}
  std::size_t rows() const override { return rows_->ends.size(); }
  DType dtype() const override { return DType::kFloat32; }
  Shape sample_shape() const override { return {static_cast<std::int64_t>(rows_->width)}; }
  std::string locate(std::size_t row) const override {
    return fmt::format("{} line {}", printable(rows_->file), rows_->lines[row]);
  }
  void check(std::size_t) const override {}
  std::vector<BadElement> find_bad_elements(const Allowed& allowed,
                                            std::size_t maximum) const override {
    std::vector<BadElement> out;
    for (std::size_t row = 0; row < rows() && out.size() < maximum; ++row) {
      const std::size_t first = row ? rows_->ends[row - 1] : 0;
      const std::span values = std::span(rows_->values).subspan(first, rows_->ends[row] - first);
      if (auto bad = find_bad_element(values, allowed)) {
        bad->row = row;
        out.push_back(*std::move(bad));
      }
    }
    return out;
  }
  std::unique_ptr<ColumnSource> bind(const Shape& want, const ImageOptions&,
                                     const PixelScale& scale, std::string& how) const override {
    if (want.count() < rows_->width) return nullptr;
    if (want.count() > rows_->width) how = ", the rest zeros";
    return std::make_unique<SparseColumn>(rows_, static_cast<std::size_t>(want.count()),
                                          scale.divisor);
  }

 private:
  std::shared_ptr<const SparseRows> rows_;
};

}  // namespace

std::shared_ptr<const RowSource> make_sparse_rows(SparseRows rows) {
  return std::make_shared<const SparseSource>(std::move(rows));
}

}  // namespace pipetrain
