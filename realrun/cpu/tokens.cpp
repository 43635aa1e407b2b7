// Kernels that select by index: embeddings, the loss, pooling.
#include <algorithm>
#include <cmath>

#include "realrun/cpu/kernel_call.h"

namespace orrery::cpu {
namespace {

// Returns the local row of a table (or column of logits) with `rows` rows for an id; -1: another rank holds it.
std::int64_t local_row(const KernelCall& call, const Tensor& table, std::int64_t rows, float id) {
  const bool vocabulary = table.find(Axis::vocab) >= 0;
  const std::int64_t row = static_cast<std::int64_t>(id) - (vocabulary ? call.context.first_vocabulary_row : 0);
  if (row >= 0 && row < rows) return row;
  if (!vocabulary) call.fail("an index is outside its table");
  return -1;
}

std::int64_t row_width(const Buffer& table) { return table.elements() / table.tensor->sizes[0]; }

void check_table(const KernelCall& call, const Buffer& ids, const Buffer& table, const Buffer& y) {
  call.require(table.tensor->rank >= 2, "a table is [rows, width..]");
  call.require(y.elements() == ids.elements() * row_width(table), "the output is not a row of the table for each id");
}

struct LogitShape {
  std::int64_t tokens, columns;
};
LogitShape logit_shape(const KernelCall& call, const Buffer& logits, const Buffer& targets, const Buffer& statistics) {
  const LogitShape s{targets.elements(), last_size(logits)};
  call.require(logits.elements() == s.tokens * s.columns, "logits are not [tokens.., vocabulary]");
  call.require(statistics.elements() == 3 * s.tokens, "statistics are not [3, tokens..]");
  return s;
}

std::int64_t side_of(const KernelCall& call, std::int64_t square) {
  const auto side = static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(square))));
  call.require(side * side == square, "windows are not a square of patches, or not a square of windows");
  return side;
}

// A map of patches that is stored window by window: token indices by row and column.
struct PatchMap {
  std::int64_t windows_per_side, window_side;

  std::int64_t side() const { return windows_per_side * window_side; }
  std::int64_t tokens() const { return side() * side(); }
  std::int64_t token(std::int64_t row, std::int64_t column) const {
    const std::int64_t window = row / window_side * windows_per_side + column / window_side;
    return (window * window_side + row % window_side) * window_side + column % window_side;
  }
};

// Calls visit(merged, large) for each vector of the unmerged patches, with its index in the merged ones, which are four
// vectors wide. The four have the order of PatchMerging in the authors' code (Liu et al. 2021, arXiv 2103.14030).
template <class Visit>
void merge_patches(const KernelCall& call, const Tensor& patches, const Tensor& merged, Visit visit) {
  const std::int64_t images = call.context.images;
  call.require(images > 0 && patches.sizes[0] % images == 0, "patch merging needs the number of images");
  const PatchMap from{side_of(call, patches.sizes[0] / images), side_of(call, patches.sizes[1])};
  call.require(merged.sizes[0] % images == 0, "merged windows do not divide among the images");
  const PatchMap to{side_of(call, merged.sizes[0] / images), side_of(call, merged.sizes[1])};
  call.require(2 * to.side() == from.side(), "merging does not halve the side of the patches");
  for (std::int64_t image = 0; image < images; ++image)
    for (std::int64_t row = 0; row < from.side(); ++row)
      for (std::int64_t column = 0; column < from.side(); ++column) {
        const std::int64_t quarter = 2 * (column % 2) + row % 2;
        visit(4 * (image * to.tokens() + to.token(row / 2, column / 2)) + quarter,
              image * from.tokens() + from.token(row, column));
      }
}

// `x` is the larger side and `y` the smaller one, in the forward and in the backward.
struct PoolShape {
  std::int64_t width;   // of a vector of x
  std::int64_t pooled;  // vectors of y
  std::int64_t each;    // vectors of x per vector of y
  bool merging, mean;
};
PoolShape pool_shape(const KernelCall& call, const Buffer& x, const Buffer& y) {
  call.require(x.tensor->rank == 3 && y.tensor->rank == 3, "pooling is between [batch, sequence, hidden]");
  PoolShape s{};
  s.width = last_size(x);
  s.merging = last_size(y) == 4 * s.width;
  call.require(s.merging ? x.elements() == y.elements() : last_size(y) == s.width, "widths do not fit");
  s.pooled = y.elements() / last_size(y);
  call.require(s.pooled > 0 && x.elements() % (s.pooled * s.width) == 0, "vectors do not divide evenly");
  s.each = x.elements() / (s.pooled * s.width);
  // With several windows there is no first token.
  s.mean = call.context.pool_mean || x.tensor->sizes[0] != y.tensor->sizes[0];
  return s;
}

// Puts `vector` before each sequence of `x` to make `y`, or the backward of that.
struct PrependShape {
  PrependShape(const KernelCall& call, const Buffer& x, const Buffer& vector, const Buffer& y)
      : batch(y.tensor->sizes[0]), width(vector.elements()), length(x.elements() / batch) {
    call.require(x.tensor->rank == 3 && y.tensor->rank == 3 && last_size(x) == width && last_size(y) == width &&
                     x.tensor->sizes[0] == batch && y.elements() == x.elements() + batch * width,
                 "a vector does not fit before each sequence");
  }
  std::int64_t batch, width, length;  // elements of a sequence of x
};

}  // namespace

void embedding(const KernelCall& call) {
  const Buffer &ids = call.read(0), &table = call.read(1), &y = call.write(0);
  check_table(call, ids, table, y);
  const std::int64_t width = row_width(table), rows = table.tensor->sizes[0];
  for (std::int64_t i = 0; i < ids.elements(); ++i) {
    const std::int64_t row = local_row(call, *table.tensor, rows, ids.data[i]);
    if (row < 0) {
      std::fill_n(y.data + i * width, width, 0.0f);
    } else {
      std::copy_n(table.data + row * width, width, y.data + i * width);
    }
  }
}

void embedding_backward(const KernelCall& call) {
  const Buffer &ids = call.read(0), &dy = call.read(1), &dtable = call.write(0);
  check_table(call, ids, dtable, dy);
  const std::int64_t width = row_width(dtable), rows = dtable.tensor->sizes[0];
  if (!call.op.accumulate) std::ranges::fill(dtable.span(), 0.0f);
  for (std::int64_t i = 0; i < ids.elements(); ++i) {
    const std::int64_t row = local_row(call, *dtable.tensor, rows, ids.data[i]);
    if (row < 0) continue;
    for (std::int64_t c = 0; c < width; ++c) dtable.data[row * width + c] += dy.data[i * width + c];
  }
}

void cross_entropy(const KernelCall& call) {
  const Buffer &logits = call.read(0), &targets = call.read(1), &statistics = call.write(0);
  const auto [tokens, columns] = logit_shape(call, logits, targets, statistics);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float* row = logits.data + t * columns;
    const float maximum = *std::max_element(row, row + columns);
    double sum = 0;
    for (std::int64_t c = 0; c < columns; ++c) sum += std::exp(static_cast<double>(row[c]) - maximum);
    const std::int64_t target = local_row(call, *logits.tensor, columns, targets.data[t]);
    statistics.data[t] = maximum;
    statistics.data[tokens + t] = static_cast<float>(sum);
    statistics.data[2 * tokens + t] = target < 0 ? 0 : row[target];
  }
}

void cross_entropy_backward(const KernelCall& call) {
  const Buffer &logits = call.read(0), &targets = call.read(1), &statistics = call.read(2), &dlogits = call.write(0);
  const auto [tokens, columns] = logit_shape(call, logits, targets, statistics);
  call.require_same_elements(logits, dlogits);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const double maximum = statistics.data[t], sum = statistics.data[tokens + t];
    const std::int64_t target = local_row(call, *logits.tensor, columns, targets.data[t]);
    for (std::int64_t c = 0; c < columns; ++c) {
      const double probability = std::exp(logits.data[t * columns + c] - maximum) / sum;
      dlogits.data[t * columns + c] = static_cast<float>(call.op.scale * (probability - (c == target ? 1 : 0)));
    }
  }
}

void pool(const KernelCall& call) {
  const Buffer &x = call.read(0), &y = call.write(0);
  if (call.has_read(1)) {
    const Buffer& vector = call.read(1);
    const PrependShape s(call, x, vector, y);
    float* out = y.data;
    for (std::int64_t b = 0; b < s.batch; ++b) {
      out = std::copy_n(vector.data, s.width, out);
      out = std::copy_n(x.data + b * s.length, s.length, out);
    }
    return;
  }
  const PoolShape s = pool_shape(call, x, y);
  if (s.merging) {
    merge_patches(call, *x.tensor, *y.tensor, [&](std::int64_t merged, std::int64_t patch) {
      std::copy_n(x.data + patch * s.width, s.width, y.data + merged * s.width);
    });
    return;
  }
  for (std::int64_t p = 0; p < s.pooled; ++p)
    for (std::int64_t c = 0; c < s.width; ++c) {
      const float* column = x.data + p * s.each * s.width + c;
      double sum = column[0];
      for (std::int64_t i = 1; s.mean && i < s.each; ++i) sum += column[i * s.width];
      y.data[p * s.width + c] = static_cast<float>(s.mean ? sum / static_cast<double>(s.each) : sum);
    }
}

void pool_backward(const KernelCall& call) {
  const Buffer &dy = call.read(0), &dx = call.write(0);
  if (call.has_write(1)) {
    const Buffer& dvector = call.write(1);
    const PrependShape s(call, dx, dvector, dy);
    if (!call.op.accumulate) std::ranges::fill(dvector.span(), 0.0f);
    for (std::int64_t b = 0; b < s.batch; ++b) {
      const float* in = dy.data + b * (s.width + s.length);
      for (std::int64_t c = 0; c < s.width; ++c) dvector.data[c] += in[c];
      std::copy_n(in + s.width, s.length, dx.data + b * s.length);
    }
    return;
  }
  const PoolShape s = pool_shape(call, dx, dy);
  if (s.merging) {
    merge_patches(call, *dx.tensor, *dy.tensor, [&](std::int64_t merged, std::int64_t patch) {
      std::copy_n(dy.data + merged * s.width, s.width, dx.data + patch * s.width);
    });
    return;
  }
  for (std::int64_t p = 0; p < s.pooled; ++p)
    for (std::int64_t i = 0; i < s.each; ++i)
      for (std::int64_t c = 0; c < s.width; ++c) {
        const float d = dy.data[p * s.width + c];
        dx.data[(p * s.each + i) * s.width + c] = s.mean ? d / static_cast<float>(s.each) : i == 0 ? d : 0;
      }
}

}  // namespace orrery::cpu
