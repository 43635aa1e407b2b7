// Mixture of experts: which experts a token goes to, and the rows in their slots.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "realrun/cpu/kernel_call.h"

namespace orrery::cpu {
namespace {

// DeepSeek-V3's router adds this to the sum that it divides by (arXiv 2412.19437; modeling_deepseek.py, MoEGate).
constexpr double kLeastSum = 1e-20;

using Scores = std::vector<double>;

Scores softmax(std::span<const float> logits) {
  const double maximum = *std::ranges::max_element(logits);
  Scores scores;
  for (const float x : logits) scores.push_back(std::exp(static_cast<double>(x) - maximum));
  const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
  for (double& s : scores) s /= sum;
  return scores;
}

Scores sigmoid(std::span<const float> logits) {
  Scores scores;
  for (const float x : logits) scores.push_back(1 / (1 + std::exp(-static_cast<double>(x))));
  return scores;
}

bool is_softmax(RouterScore score) { return score == RouterScore::softmax || score == RouterScore::softmax_of_top; }

std::span<const float> row_of(const Buffer& logits, std::int64_t token) {
  const std::int64_t experts = last_size(logits);
  return {logits.data + token * experts, static_cast<std::size_t>(experts)};
}

// Returns the first `n` indices by descending value; equal values in their order.
std::vector<std::int64_t> largest(const Scores& values, std::int64_t n) {
  std::vector<std::int64_t> order(values.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(n));
  return order;
}

// Sets the compared scores of experts in groups that are not among the best to minus infinity.
void keep_best_groups(const Router& router, const Scores& scores, Scores& compared) {
  if (router.groups == 0) return;
  const std::size_t groups = router.groups, size = scores.size() / groups;
  Scores of_group;
  for (std::size_t g = 0; g < groups; ++g) {
    Scores own(scores.begin() + static_cast<std::ptrdiff_t>(g * size),
               scores.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    std::ranges::sort(own, std::greater<>());
    of_group.push_back(own[0] + (size > 1 ? own[1] : 0));
  }
  std::vector<bool> kept(groups);
  for (const std::int64_t g : largest(of_group, router.best_groups)) kept[static_cast<std::size_t>(g)] = true;
  for (std::size_t e = 0; e < compared.size(); ++e)
    if (!kept[e / size]) compared[e] = -std::numeric_limits<double>::infinity();
}

// Weights of the chosen experts, before Router::scale.
std::vector<double> weights_of(const Router& router, const std::vector<double>& chosen_scores,
                               std::span<const float> chosen_logits) {
  switch (router.score) {
    case RouterScore::softmax:
    case RouterScore::sigmoid:
      return chosen_scores;
    case RouterScore::softmax_of_top:
      return softmax(chosen_logits);
    case RouterScore::sigmoid_of_top: {
      std::vector<double> weights = chosen_scores;
      const double sum = std::accumulate(weights.begin(), weights.end(), kLeastSum);
      for (double& w : weights) w /= sum;
      return weights;
    }
  }
  throw std::logic_error("route: unknown score");
}

// Finds the rows of tokens, as op_traits.h defines them.
class Slots {
 public:
  explicit Slots(const Call& call) : shape_(slots_shape(call)) {
    const Buffer choices(*shape_.choices);
    const std::vector<std::vector<std::int64_t>> copies = copies_of_experts(call.context.expert_of_slot);
    std::vector<std::int64_t> taken(copies.size());
    const std::int64_t first = call.context.first_expert;
    row_of_.assign(static_cast<std::size_t>(shape_.tokens * shape_.k), -1);
    for (std::int64_t choice = 0; choice < shape_.k; ++choice)
      for (std::int64_t token = 0; token < shape_.tokens; ++token) {
        const std::int64_t at = token * shape_.k + choice;
        if (choices.data[at] == -1) continue;  // no expert
        const auto expert = static_cast<std::int64_t>(choices.data[at]) - first;
        if (shape_.divided && (expert < 0 || expert >= static_cast<std::int64_t>(copies.size()))) continue;
        call.require(expert >= 0 && expert < static_cast<std::int64_t>(copies.size()), "a choice is not an expert");
        const std::vector<std::int64_t>& own = copies[static_cast<std::size_t>(expert)];
        const auto n = static_cast<std::int64_t>(own.size());
        call.require(n > 0, "an expert has no copy");
        const std::int64_t of_expert = taken[static_cast<std::size_t>(expert)]++, slot = of_expert / n;
        const std::int64_t copy = own[static_cast<std::size_t>((call.context.first_copy + of_expert) % n)];
        if (slot < shape_.slots) row_of_[static_cast<std::size_t>(at)] = copy * shape_.slots + slot;
      }
  }
  std::int64_t width() const { return shape_.width; }
  std::int64_t rows() const { return shape_.rows(); }

  // Calls visit(token, assignment, row) for every choice that has a slot. Assignments number choices token by token.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t at = 0; at < row_of_.size(); ++at)
      if (row_of_[at] >= 0) visit(static_cast<std::int64_t>(at) / shape_.k, static_cast<std::int64_t>(at), row_of_[at]);
  }

 private:
  // The indices of each expert's copies along the rows' first dimension.
  std::vector<std::vector<std::int64_t>> copies_of_experts(std::span<const std::int64_t> experts) const {
    std::vector<std::vector<std::int64_t>> copies;
    for (std::int64_t s = 0; s < shape_.experts; ++s) {
      const std::int64_t expert = experts.empty() ? s : experts[static_cast<std::size_t>(s)];
      copies.resize(std::max(copies.size(), static_cast<std::size_t>(expert) + 1));
      copies[static_cast<std::size_t>(expert)].push_back(s);
    }
    return copies;
  }

  SlotsShape shape_;
  std::vector<std::int64_t> row_of_;
};

}  // namespace

void route(const Call& call) {
  if (call.op.router.gumbel_temperature > 0) return gumbel_route(call);
  const Buffer &logits = call.read(0), &weights = call.write(0), &choices = call.write(1);
  const RouterShape s = router_shape(call);
  const Router& router = call.op.router;
  if (router.type == RouterType::expert_choice) {
    Scores all;
    for (std::int64_t t = 0; t < s.tokens; ++t) {
      const Scores scores = is_softmax(router.score) ? softmax(row_of(logits, t)) : sigmoid(row_of(logits, t));
      all.insert(all.end(), scores.begin(), scores.end());
    }
    return choose_tokens(call, all);
  }
  std::vector<std::int64_t> auctioned;
  if (router.type == RouterType::base) auctioned = auctioned_experts(logits.span(), s.experts);
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    const std::span<const float> row = row_of(logits, t);
    const Scores scores = is_softmax(router.score) ? softmax(row) : sigmoid(row);
    Scores biased = scores;
    for (std::size_t e = 0; call.has_read(1) && e < biased.size(); ++e) biased[e] += call.read(1).data[e];
    // Scores increase with logits; comparing logits distinguishes what rounds to one score.
    Scores compared = call.has_read(1) ? biased : Scores(row.begin(), row.end());
    keep_best_groups(router, biased, compared);
    const std::vector<std::int64_t> chosen =
        auctioned.empty() ? largest(compared, s.k) : std::vector{auctioned[static_cast<std::size_t>(t)]};
    std::vector<double> chosen_scores;
    std::vector<float> chosen_logits;
    for (const std::int64_t e : chosen) {
      chosen_scores.push_back(scores[static_cast<std::size_t>(e)]);
      chosen_logits.push_back(row[static_cast<std::size_t>(e)]);
    }
    const std::vector<double> w = weights_of(router, chosen_scores, chosen_logits);
    for (std::int64_t j = 0; j < s.k; ++j) {
      weights.data[t * s.k + j] =
          static_cast<float>(static_cast<double>(router.scale) * w[static_cast<std::size_t>(j)]);
      choices.data[t * s.k + j] = static_cast<float>(chosen[static_cast<std::size_t>(j)]);
    }
  }
}

void route_backward(const Call& call) {
  if (call.op.router.gumbel_temperature > 0) return gumbel_route_backward(call);
  const Buffer &dweights = call.read(0), &logits = call.read(1), &choices = call.read(2), &dlogits = call.write(0);
  const RouterShape s = router_shape(call);
  const Router& router = call.op.router;
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    const std::span<const float> row = row_of(logits, t);
    const Scores scores = is_softmax(router.score) ? softmax(row) : sigmoid(row);
    std::vector<std::size_t> chosen;
    std::vector<double> chosen_scores, d;
    std::vector<float> chosen_logits;
    for (std::int64_t j = 0; j < s.k; ++j) {
      const auto e = static_cast<std::int64_t>(choices.data[t * s.k + j]);
      if (e == -1 && router.type == RouterType::expert_choice) continue;
      call.require(e >= 0 && e < s.experts, "a choice is not an expert");
      chosen.push_back(static_cast<std::size_t>(e));
      chosen_scores.push_back(scores[chosen.back()]);
      chosen_logits.push_back(row[chosen.back()]);
      d.push_back(static_cast<double>(router.scale) * dweights.data[t * s.k + j]);
    }
    const std::vector<double> w = weights_of(router, chosen_scores, chosen_logits);
    const double mean = std::inner_product(d.begin(), d.end(), w.begin(), 0.0);
    float* const dl = dlogits.data + t * s.experts;
    // The gradients of a softmax over all experts reach every logit.
    for (std::size_t e = 0; e < scores.size(); ++e)
      dl[e] = static_cast<float>(router.score == RouterScore::softmax ? -scores[e] * mean : 0);
    for (std::size_t j = 0; j < chosen.size(); ++j) {
      const double score = chosen_scores[j];
      double slope = 0;
      switch (router.score) {
        case RouterScore::softmax:
        case RouterScore::softmax_of_top:
          slope = w[j] * (d[j] - mean);
          break;
        case RouterScore::sigmoid:
          slope = d[j] * score * (1 - score);
          break;
        case RouterScore::sigmoid_of_top:  // score / (sum of scores), times the sigmoid's own slope
          slope = w[j] * (d[j] - mean) * (1 - score);
          break;
      }
      dl[chosen[j]] = static_cast<float>(slope);
    }
  }
}

void permute(const Call& call) {
  const Buffer &x = call.read(0), &rows = call.write(0);
  const Slots slots(call);
  if (!call.context.rows_are_counted) std::ranges::fill(rows.span(), 0.0f);
  slots.for_each([&](std::int64_t token, std::int64_t, std::int64_t row) {
    std::copy_n(x.data + token * slots.width(), slots.width(), rows.data + row * slots.width());
  });
}

void unpermute(const Call& call) {
  const Buffer &rows = call.read(0), &x = call.write(0);
  const Slots slots(call);
  std::ranges::fill(x.span(), 0.0f);
  slots.for_each([&](std::int64_t token, std::int64_t assignment, std::int64_t row) {
    const float weight = call.has_read(2) ? call.read(2).data[assignment] : 1;
    for (std::int64_t c = 0; c < slots.width(); ++c)
      x.data[token * slots.width() + c] += weight * rows.data[row * slots.width() + c];
  });
}

void unpermute_backward(const Call& call) {
  const Buffer &dx = call.read(0), &rows = call.read(1), &weights = call.read(3), &drows = call.write(0),
               &dweights = call.write(1);
  const Slots slots(call);
  if (!call.context.rows_are_counted) std::ranges::fill(drows.span(), 0.0f);
  std::ranges::fill(dweights.span(), 0.0f);
  slots.for_each([&](std::int64_t token, std::int64_t assignment, std::int64_t row) {
    const float* const d = dx.data + token * slots.width();
    double dot = 0;
    for (std::int64_t c = 0; c < slots.width(); ++c) {
      const std::int64_t at = row * slots.width() + c;
      drows.data[at] = weights.data[assignment] * d[c];
      dot += static_cast<double>(rows.data[at]) * d[c];
    }
    dweights.data[assignment] = static_cast<float>(dot);
  });
}

void permute_weights(const Call& call) {
  const Buffer &weights = call.read(0), &by_row = call.write(0);
  const Slots slots(call);
  if (!call.context.rows_are_counted) std::ranges::fill(by_row.span(), 0.0f);
  slots.for_each(
      [&](std::int64_t, std::int64_t assignment, std::int64_t row) { by_row.data[row] = weights.data[assignment]; });
}

void unpermute_weights(const Call& call) {
  const Buffer &by_row = call.read(0), &weights = call.write(0);
  const Slots slots(call);
  std::ranges::fill(weights.span(), 0.0f);
  slots.for_each(
      [&](std::int64_t, std::int64_t assignment, std::int64_t row) { weights.data[assignment] = by_row.data[row]; });
}

void slot_mask(const Call& call) {
  const Buffer& mask = call.write(0);
  const Slots slots(call);
  std::ranges::fill(mask.span(), 0.0f);
  slots.for_each([&](std::int64_t token, std::int64_t assignment, std::int64_t row) {
    mask.data[token * slots.rows() + row] = call.has_read(1) ? call.read(1).data[assignment] : 1;
  });
}

void slot_mask_backward(const Call& call) {
  const Buffer &dmask = call.read(0), &dweights = call.write(0);
  const Slots slots(call);
  std::ranges::fill(dweights.span(), 0.0f);
  slots.for_each([&](std::int64_t token, std::int64_t assignment, std::int64_t row) {
    dweights.data[assignment] = dmask.data[token * slots.rows() + row];
  });
}

void expert_counts(const Call& call) {
  const Buffer &choices = call.read(0), &counts = call.write(0);
  const std::int64_t batch = counts.tensor->sizes[0], experts = last_size(counts), each = choices.elements() / batch;
  std::ranges::fill(counts.span(), 0.0f);
  for (std::int64_t i = 0; i < choices.elements(); ++i) {
    const auto expert = static_cast<std::int64_t>(choices.data[i]);
    call.require(expert >= 0 && expert < experts, "a choice is not an expert");
    counts.data[i / each * experts + expert] += 1;
  }
}

namespace {

// Per token: E x (the share of all choices that each expert has), and its mean with the token's shares as weights.
struct TokenBalance {
  std::vector<double> loads, shares, scores;
  double mean = 0;  // mean of loads, weighted by shares
};
TokenBalance balance_of(const Call& call, std::span<const float> row, std::int64_t token, std::int64_t tokens) {
  const Router& router = call.op.router;
  const std::size_t experts = row.size();
  TokenBalance b;
  b.scores = is_softmax(router.score) ? softmax(row) : sigmoid(row);
  b.shares = b.scores;
  if (!is_softmax(router.score)) {
    const double sum = std::accumulate(b.scores.begin(), b.scores.end(), kLeastSum);
    for (double& s : b.shares) s /= sum;
  }
  b.loads.assign(experts, 0);
  const Buffer& counts = call.read(1);
  const std::int64_t batch = counts.tensor->sizes[0];
  const std::int64_t own = token / (tokens / batch);
  double all = 0;
  for (std::int64_t s = router.by_sequence ? own : 0; s < (router.by_sequence ? own + 1 : batch); ++s)
    for (std::size_t e = 0; e < experts; ++e) {
      const double count = counts.data[static_cast<std::size_t>(s) * experts + e];
      b.loads[e] += count;
      all += count;
    }
  for (double& load : b.loads) load *= static_cast<double>(experts) / std::max(all, 1.0);
  b.mean = std::inner_product(b.loads.begin(), b.loads.end(), b.shares.begin(), 0.0);
  return b;
}

double log_sum_exp(std::span<const float> row) {
  const double maximum = *std::ranges::max_element(row);
  double sum = 0;
  for (const float x : row) sum += std::exp(static_cast<double>(x) - maximum);
  return maximum + std::log(sum);
}

}  // namespace

// Switch (Fedus et al. 2021, arXiv 2101.03961), eq. 4 to 6, token by token; ST-MoE (arXiv 2202.08906), eq. 5.
void router_loss(const Call& call) {
  const Buffer &logits = call.read(0), &losses = call.write(0);
  const std::int64_t tokens = logits.elements() / last_size(logits);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::span<const float> row = row_of(logits, t);
    const double z = log_sum_exp(row);
    losses.data[2 * t] =
        call.has_read(1) ? static_cast<float>(call.op.router.balance * balance_of(call, row, t, tokens).mean) : 0;
    losses.data[2 * t + 1] = static_cast<float>(call.op.router.z * z * z);
  }
}

void router_loss_backward(const Call& call) {
  const Buffer &logits = call.read(0), &dlogits = call.write(0);
  const std::int64_t experts = last_size(logits), tokens = logits.elements() / experts;
  const Router& router = call.op.router;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::span<const float> row = row_of(logits, t);
    const double z = log_sum_exp(row);
    TokenBalance b;
    if (call.has_read(1)) b = balance_of(call, row, t, tokens);
    for (std::size_t e = 0; e < row.size(); ++e) {
      double slope = router.z * 2 * z * std::exp(static_cast<double>(row[e]) - z);
      if (call.has_read(1)) {
        const double own = is_softmax(router.score) ? 1 : 1 - b.scores[e];  // the sigmoid's slope
        slope += router.balance * b.shares[e] * own * (b.loads[e] - b.mean);
      }
      dlogits.data[t * experts + static_cast<std::int64_t>(e)] = static_cast<float>(call.op.scale * slope);
    }
  }
}

}  // namespace orrery::cpu
