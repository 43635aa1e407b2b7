// Kernels that select by index: embeddings, the loss, pooling.
#include <algorithm>
#include <cmath>

#include "realrun/cpu/kernel_call.h"

namespace orrery::cpu {
namespace {

// Returns the local row of a table (or column of logits) with `rows` rows for an id; -1: another rank holds it.
std::int64_t local_row(const Call& call, const Tensor& table, std::int64_t first, std::int64_t rows, float id) {
  const std::int64_t row = static_cast<std::int64_t>(id) - first;
  if (row >= 0 && row < rows) return row;
  if (table.find(Axis::vocab) < 0) call.fail("an index is outside its table");
  return -1;
}

}  // namespace

void embedding(const Call& call) {
  const Buffer &ids = call.read(0), &table = call.read(1), &y = call.write(0);
  const auto [rows, width, first] = table_shape(call);
  for (std::int64_t i = 0; i < ids.elements(); ++i) {
    const std::int64_t row = local_row(call, *table.tensor, first, rows, ids.data[i]);
    if (row < 0) {
      std::fill_n(y.data + i * width, width, 0.0f);
    } else {
      std::copy_n(table.data + row * width, width, y.data + i * width);
    }
  }
}

void embedding_backward(const Call& call) {
  const Buffer &ids = call.read(0), &dy = call.read(1), &dtable = call.write(0);
  const auto [rows, width, first] = table_shape(call);
  if (!call.op.accumulate) std::ranges::fill(dtable.span(), 0.0f);
  for (std::int64_t i = 0; i < ids.elements(); ++i) {
    const std::int64_t row = local_row(call, *dtable.tensor, first, rows, ids.data[i]);
    if (row < 0) continue;
    for (std::int64_t c = 0; c < width; ++c) dtable.data[row * width + c] += dy.data[i * width + c];
  }
}

void cross_entropy(const Call& call) {
  const Buffer &logits = call.read(0), &targets = call.read(1), &statistics = call.write(0);
  const auto [tokens, columns, first] = logit_shape(call);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float* row = logits.data + t * columns;
    const float maximum = *std::max_element(row, row + columns);
    double sum = 0;
    for (std::int64_t c = 0; c < columns; ++c) sum += std::exp(static_cast<double>(row[c]) - maximum);
    const std::int64_t target = local_row(call, *logits.tensor, first, columns, targets.data[t]);
    statistics.data[t] = maximum;
    statistics.data[tokens + t] = static_cast<float>(sum);
    statistics.data[2 * tokens + t] = target < 0 ? 0 : row[target];
  }
}

void cross_entropy_backward(const Call& call) {
  const Buffer &logits = call.read(0), &targets = call.read(1), &statistics = call.read(2), &dlogits = call.write(0);
  const auto [tokens, columns, first] = logit_shape(call);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const double maximum = statistics.data[t], sum = statistics.data[tokens + t];
    const std::int64_t target = local_row(call, *logits.tensor, first, columns, targets.data[t]);
    for (std::int64_t c = 0; c < columns; ++c) {
      const double probability = std::exp(logits.data[t * columns + c] - maximum) / sum;
      dlogits.data[t * columns + c] = static_cast<float>(call.op.scale * (probability - (c == target ? 1 : 0)));
    }
  }
}

void pool(const Call& call) {
  const Buffer &x = call.read(0), &y = call.write(0);
  if (call.has_read(1)) {
    const Buffer& vector = call.read(1);
    const PrependShape s = prepend_shape(call);
    float* out = y.data;
    for (std::int64_t b = 0; b < s.batch; ++b) {
      out = std::copy_n(vector.data, s.width, out);
      out = std::copy_n(x.data + b * s.length, s.length, out);
    }
    return;
  }
  const PoolShape s = pool_shape(call);
  for (std::int64_t p = 0; p < s.pooled; ++p)
    for (std::int64_t c = 0; c < s.width; ++c) {
      const float* column = x.data + p * s.each * s.width + c;
      double sum = column[0];
      for (std::int64_t i = 1; s.mean && i < s.each; ++i) sum += column[i * s.width];
      y.data[p * s.width + c] = static_cast<float>(s.mean ? sum / static_cast<double>(s.each) : sum);
    }
}

void pool_backward(const Call& call) {
  const Buffer &dy = call.read(0), &dx = call.write(0);
  if (call.has_write(1)) {
    const Buffer& dvector = call.write(1);
    const PrependShape s = prepend_shape(call);
    if (!call.op.accumulate) std::ranges::fill(dvector.span(), 0.0f);
    for (std::int64_t b = 0; b < s.batch; ++b) {
      const float* in = dy.data + b * (s.width + s.length);
      for (std::int64_t c = 0; c < s.width; ++c) dvector.data[c] += in[c];
      std::copy_n(in + s.width, s.length, dx.data + b * s.length);
    }
    return;
  }
  const PoolShape s = pool_shape(call);
  for (std::int64_t p = 0; p < s.pooled; ++p)
    for (std::int64_t i = 0; i < s.each; ++i)
      for (std::int64_t c = 0; c < s.width; ++c) {
        const float d = dy.data[p * s.width + c];
        dx.data[(p * s.each + i) * s.width + c] = s.mean ? d / static_cast<float>(s.each) : i == 0 ? d : 0;
      }
}

}  // namespace orrery::cpu
