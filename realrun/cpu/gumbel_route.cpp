// The dense-to-sparse gate (Router::gumbel_temperature; Nie et al. 2021, arXiv 2112.14397): p = softmax((logits +
// Gumbel noise) / temperature) is the weight of each expert for which it is above a threshold.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "realrun/cpu/kernel_call.h"
#include "realrun/random_draws.h"

namespace orrery::cpu {
namespace {

class Gate {
 public:
  Gate(const Call& call, const Buffer& logits)
      : call_(call),
        logits_(logits),
        whole_(whole_elements(*logits.tensor, call.context, call.context.query_positions.data())),
        shape_(router_shape(call)) {}
  std::int64_t tokens() const { return shape_.tokens; }
  std::int64_t k() const { return shape_.k; }
  std::int64_t experts() const { return shape_.experts; }
  bool is_active(double p) const { return p > static_cast<double>(call_.op.router.threshold); }

  std::vector<double> probabilities(std::int64_t token) const {
    std::vector<double> p(static_cast<std::size_t>(experts()));
    for (std::size_t e = 0; e < p.size(); ++e) {
      const std::int64_t element = token * experts() + static_cast<std::int64_t>(e);
      p[e] = (static_cast<double>(logits_.data[element]) + gumbel(element)) /
             static_cast<double>(call_.op.router.gumbel_temperature);
    }
    const double maximum = *std::ranges::max_element(p);
    for (double& x : p) x = std::exp(x - maximum);
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= sum;
    return p;
  }

 private:
  // -log(-log(u)), with u the middle of one of 2^32 equal parts of (0, 1).
  double gumbel(std::int64_t element) const {
    const double u = uniform(call_.context.seed, call_.context.dropout_stream, whole_.index(element)) + 0x1p-33;
    return -std::log(-std::log(u));
  }

  const Call& call_;
  Buffer logits_;
  WholeElements whole_;
  RouterShape shape_;
};

}  // namespace

void gumbel_route(const Call& call) {
  const Buffer &logits = call.read(0), &weights = call.write(0), &choices = call.write(1);
  const Gate gate(call, logits);
  const Router& router = call.op.router;
  std::vector<std::int64_t> order(static_cast<std::size_t>(gate.experts()));
  for (std::int64_t t = 0; t < gate.tokens(); ++t) {
    const std::vector<double> p = gate.probabilities(t);
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::ranges::stable_sort(order, std::greater<>(), [&](std::int64_t e) { return p[static_cast<std::size_t>(e)]; });
    for (std::int64_t j = 0; j < gate.k(); ++j) {
      const std::int64_t expert = order[static_cast<std::size_t>(j)];
      const double weight = p[static_cast<std::size_t>(expert)];
      const bool active = gate.is_active(weight);
      weights.data[t * gate.k() + j] = active ? static_cast<float>(static_cast<double>(router.scale) * weight) : 0;
      choices.data[t * gate.k() + j] = active || router.padded ? static_cast<float>(expert) : -1;
    }
  }
}

// The noise equals that of the forward. An inactive expert has no weight, so its weight has no gradient.
void gumbel_route_backward(const Call& call) {
  const Buffer &dweights = call.read(0), &logits = call.read(1), &choices = call.read(2), &dlogits = call.write(0);
  const Gate gate(call, logits);
  const Router& router = call.op.router;
  std::vector<double> d(static_cast<std::size_t>(gate.experts()));
  for (std::int64_t t = 0; t < gate.tokens(); ++t) {
    const std::vector<double> p = gate.probabilities(t);
    std::ranges::fill(d, 0.0);
    for (std::int64_t j = 0; j < gate.k(); ++j) {
      const auto expert = static_cast<std::int64_t>(choices.data[t * gate.k() + j]);
      call.require(expert < gate.experts(), "a choice is not an expert");
      if (expert < 0 || !gate.is_active(p[static_cast<std::size_t>(expert)])) continue;
      d[static_cast<std::size_t>(expert)] =
          static_cast<double>(router.scale) * static_cast<double>(dweights.data[t * gate.k() + j]);
    }
    const double mean = std::inner_product(d.begin(), d.end(), p.begin(), 0.0);
    for (std::size_t e = 0; e < p.size(); ++e)
      dlogits.data[t * gate.experts() + static_cast<std::int64_t>(e)] =
          static_cast<float>(p[e] * (d[e] - mean) / static_cast<double>(router.gumbel_temperature));
  }
}

}  // namespace orrery::cpu
