// Element-wise kernels.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "realrun/cpu/kernel_call.h"
#include "realrun/random_draws.h"

namespace orrery::cpu {
namespace {

struct ValueAndSlope {
  double value, slope;
};

// x Phi(x): Hendrycks & Gimpel 2016 (arXiv 1606.08415), section 2, exactly.
ValueAndSlope gelu(double x) {
  const double cdf = 0.5 * std::erfc(-x / std::numbers::sqrt2);
  const double density = std::exp(-x * x / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
  return {x * cdf, cdf + x * density};
}

// x sigmoid(steepness x): the sigmoid approximation of gelu (section 2 of the same), and SiLU at steepness 1.
ValueAndSlope sigmoid_linear(double x, double steepness) {
  const double s = 1 / (1 + std::exp(-steepness * x));
  return {x * s, s + steepness * x * s * (1 - s)};
}

// For a gated kind, evaluates the gate's function (Shazeer 2020, arXiv 2002.05202, eq. 6).
ValueAndSlope evaluate(ActivationFunction function, double x) {
  constexpr double kQuickGelu = 1.702;  // the approximation's constant, section 2
  switch (function) {
    case ActivationFunction::gelu:
    case ActivationFunction::geglu:
      return gelu(x);
    case ActivationFunction::swiglu:
      return sigmoid_linear(x, 1);
    case ActivationFunction::quick_gelu:
      return sigmoid_linear(x, kQuickGelu);
    case ActivationFunction::relu:
      return {std::max(x, 0.0), x > 0 ? 1.0 : 0.0};
    case ActivationFunction::relu2:
      return {x > 0 ? x * x : 0, 2 * std::max(x, 0.0)};  // Primer: So et al. 2021
  }
  throw std::logic_error("activation: unknown function");
}

WholeElements whole_elements_of(const Call& call) {
  return whole_elements(*call.write(0).tensor, call.context, call.context.query_positions.data());
}

bool kept(const Call& call, const WholeElements& whole, std::int64_t element) {
  return uniform(call.context.seed, call.context.dropout_stream, whole.index(element)) >=
         static_cast<double>(call.op.probability);
}

}  // namespace

void activation(const Call& call) {
  const Buffer &x = call.read(0), &y = call.write(0);
  const auto [elements, width, period, gated] = activation_shape(call);
  const std::int64_t halves = gated ? 2 : 1;
  const auto input = [&, period = period](std::int64_t i) {
    return static_cast<double>(x.data[i]) + (call.has_read(1) ? call.read(1).data[i % period] : 0);
  };
  for (std::int64_t r = 0; r < elements / width; ++r) {
    const double weight = call.has_read(2) ? call.read(2).data[r] : 1;
    for (std::int64_t c = 0; c < width; ++c) {
      const std::int64_t at = r * halves * width + c;
      const double value = weight * evaluate(call.op.function, input(at)).value;
      y.data[r * width + c] = static_cast<float>(gated ? value * input(at + width) : value);
    }
  }
}

void activation_backward(const Call& call) {
  const Buffer &dy = call.read(0), &x = call.read(1), &dx = call.write(0);
  const auto [elements, width, period, gated] = activation_shape(call);
  const std::int64_t halves = gated ? 2 : 1;
  const auto input = [&, period = period](std::int64_t i) {
    return static_cast<double>(x.data[i]) + (call.has_read(2) ? call.read(2).data[i % period] : 0);
  };
  for (std::int64_t r = 0; r < elements / width; ++r) {
    const double weight = call.has_read(3) ? call.read(3).data[r] : 1;
    double dweight = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      const std::int64_t at = r * halves * width + c;
      const auto [value, slope] = evaluate(call.op.function, input(at));
      const double d = dy.data[r * width + c];
      const double up = gated ? input(at + width) : 1;
      dweight += d * value * up;
      dx.data[at] = static_cast<float>(weight * d * slope * up);
      if (gated) dx.data[at + width] = static_cast<float>(weight * d * value);
    }
    if (call.has_write(1)) call.write(1).data[r] = static_cast<float>(dweight);
  }
}

void dropout(const Call& call) {
  const Buffer &x = call.read(0), &y = call.write(0), &mask = call.write(1);
  const double scale = kept_scale(call);
  const WholeElements whole = whole_elements_of(call);
  for (std::int64_t i = 0; i < y.elements(); ++i) {
    const bool keep = kept(call, whole, i);
    mask.data[i] = keep ? 1 : 0;
    y.data[i] = keep ? static_cast<float>(scale * x.data[i]) : 0;
  }
}

void dropout_backward(const Call& call) {
  const Buffer &dy = call.read(0), &mask = call.read(1), &dx = call.write(0);
  const double scale = kept_scale(call);
  for (std::int64_t i = 0; i < dx.elements(); ++i)
    dx.data[i] = mask.data[i] != 0 ? static_cast<float>(scale * dy.data[i]) : 0;
}

void dropout_add(const Call& call) {
  const Buffer &x = call.read(0), &residual = call.read(1), &y = call.write(0), &mask = call.write(1);
  const double scale = kept_scale(call);
  const WholeElements whole = whole_elements_of(call);
  for (std::int64_t i = 0; i < y.elements(); ++i) {
    const bool keep = kept(call, whole, i);
    double value = x.data[i];
    if (call.has_read(2)) value += call.read(2).data[i % call.read(2).elements()];
    mask.data[i] = keep ? 1 : 0;
    y.data[i] = keep ? static_cast<float>(residual.data[i] + scale * value) : residual.data[i];
  }
}

// Shazeer et al. 2017, arXiv 1701.06538, eq. 4.
void add_noise(const Call& call) {
  const Buffer &logits = call.read(0), &deviations = call.read(1), &noisy = call.write(0), &slopes = call.write(1);
  const WholeElements whole = whole_elements_of(call);
  for (std::int64_t i = 0; i < noisy.elements(); ++i) {
    const double drawn = normal(call.context.seed, call.context.dropout_stream, whole.index(i)), d = deviations.data[i];
    const double softplus = std::max(d, 0.0) + std::log1p(std::exp(-std::abs(d)));
    noisy.data[i] = static_cast<float>(logits.data[i] + drawn * softplus);
    slopes.data[i] = static_cast<float>(drawn / (1 + std::exp(-d)));
  }
}

void add(const Call& call) {
  const Buffer &a = call.read(0), &y = call.write(0);
  const std::int64_t n = y.elements();
  if (call.has_read(1)) {
    const float* b = call.read(1).data;
    for (std::int64_t i = 0; i < n; ++i) y.data[i] = a.data[i] + b[i];
  } else if (y.data != a.data) {
    std::copy_n(a.data, n, y.data);
  }
  if (!call.has_read(2)) return;
  const Buffer& bias = call.read(2);
  for (std::int64_t row = 0; row < n; row += bias.elements())
    for (std::int64_t c = 0; c < bias.elements(); ++c) y.data[row + c] += bias.data[c];
}

void multiply(const Call& call) {
  const Buffer &a = call.read(0), &b = call.read(1), &y = call.write(0);
  const std::int64_t width = last_size(a), n = a.elements();
  const Multiply form = multiply_form(call);
  if (form == Multiply::inner_products) {
    for (std::int64_t row = 0; row < y.elements(); ++row) {
      double sum = 0;
      for (std::int64_t i = row * width; i < (row + 1) * width; ++i) sum += static_cast<double>(a.data[i]) * b.data[i];
      y.data[row] = static_cast<float>(sum);
    }
    return;
  }
  const auto result = [&](float x, float other) { return call.op.divides ? x / other : x * other; };
  if (form == Multiply::elements) {
    for (std::int64_t i = 0; i < n; ++i) y.data[i] = result(a.data[i], b.data[i]);
    return;
  }
  for (std::int64_t row = 0; row < b.elements(); ++row)
    for (std::int64_t i = row * width; i < (row + 1) * width; ++i) y.data[i] = result(a.data[i], b.data[row]);
}

void bias_gradient(const Call& call) {
  const Buffer &dy = call.read(0), &db = call.write(0);
  const auto [groups, rows, width] = bias_shape(call);
  for (std::int64_t g = 0; g < groups; ++g) {
    std::vector<double> sums(static_cast<std::size_t>(width));
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t c = 0; c < width; ++c)
        sums[static_cast<std::size_t>(c)] += static_cast<double>(dy.data[(g * rows + row) * width + c]);
    for (std::int64_t c = 0; c < width; ++c) {
      const auto sum = static_cast<float>(sums[static_cast<std::size_t>(c)]);
      float& to = db.data[g * width + c];
      to = call.op.accumulate ? to + sum : sum;
    }
  }
}

// Copies numbers between dtypes; rounding to bf16 is an option of run_kernel.
void cast(const Call& call) {
  const Buffer &x = call.read(0), &y = call.write(0);
  if (call.op.accumulate) {
    for (std::int64_t i = 0; i < y.elements(); ++i) y.data[i] += x.data[i];
  } else if (x.data != y.data) {
    std::ranges::copy(x.span(), y.data);
  }
}

void zero_fill(const Call& call) { std::ranges::fill(call.write(0).span(), 0.0f); }

}  // namespace orrery::cpu
