#include "study/galvatron/cost.h"

#include <algorithm>
#include <cmath>

namespace orrery::galvatron {
namespace {

constexpr double kKibi = 1024;
constexpr double kBytesPerValue = 4;  // fp32
constexpr double kSecondsPerMs = 1e-3;
// All-reduces of tensor parallelism: two in the forward and two in the backward pass; with cross attention three each.
constexpr double kAllReduces = 4, kAllReducesOfDecoder = 6;

// Sums and products are in the authors' order, because equal plans are told apart by their last bits.
double on_the_wire(double ranks) { return 2 * (ranks - 1) / ranks; }

// Communication of `mib` MiB during `compute_ms` of computation. While both run, both are slowed.
struct Overlap {
  double both_ms = 0, rest_ms = 0;
  bool communication_is_longer = false;
};
Overlap overlap(double mib, double ms_per_mib, double compute_ms, double slowdown) {
  const double slowed = ms_per_mib * slowdown;
  const double communication = mib * slowed, computation = compute_ms * slowdown;
  if (communication > computation) return {computation, (mib - computation / slowed) * ms_per_mib, true};
  return {communication, compute_ms - communication / slowdown, false};
}

// The share of the backward pass that overlaps with the reduction of gradients.
struct Share {
  double part = 1, of = 1;
};
Share overlapping_share(const Hybrid& h, bool decoder) {
  if (h.tensor == 1) return {1, 1};
  if (decoder && !(h.pipeline > 1 && h.tensor == 2 && h.data == 2)) return {2, 3};
  return {1, h.tensor >= h.ranks() / 2 ? 2.0 : 1.0};
}

}  // namespace

double micro_batches(const Profile& profile, double samples, const Hybrid& h) {
  const auto names = [](const std::vector<std::int64_t>& degrees, std::int64_t degree) {
    return degrees.empty() || std::ranges::find(degrees, degree) != degrees.end();
  };
  for (const MicroBatchRule& rule : profile.micro_batches) {
    if (!names(rule.pipeline, h.pipeline) || !names(rule.data, h.data)) continue;
    if (samples < rule.from || (rule.below > 0 && samples >= rule.below)) continue;
    if (rule.at_most > 0 && samples > rule.at_most) continue;
    if (rule.count > 0) return rule.count;
    if (!rule.whole) return samples / rule.samples_each + rule.plus;
    const double of_a_rank = std::floor(samples / static_cast<double>(h.tensor));
    return std::max(1.0, std::ceil(of_a_rank / rule.samples_each) + rule.plus);
  }
  return 1;
}

double layer_seconds(const Profile& profile, const Layers& layers, const Hybrid& h, std::int64_t batch) {
  const Cluster& cluster = profile.cluster;
  const Estimator& its = cluster.estimator;
  const auto p = static_cast<double>(h.pipeline), t = static_cast<double>(h.tensor), d = static_cast<double>(h.data);
  const auto count =
      static_cast<double>(profile.mean_over_layers > 0 ? profile.mean_over_layers : profile.layer_count());
  const auto sequence = static_cast<double>(layers.sequence), hidden = static_cast<double>(layers.hidden);
  const double samples = static_cast<double>(batch) / d;
  const double forward = layers.forward_ms_per_sample * samples / t * count;
  const double backward = forward * its.backward_to_forward;
  const double all_reduces = layers.decoder ? kAllReducesOfDecoder : kAllReduces;
  const double tensor_mib =
      on_the_wire(t) * (samples * sequence * hidden * all_reduces * kBytesPerValue / kKibi / kKibi) * count;
  const double tensor_ms = tensor_mib * cluster.all_reduce_ms_per_mib(h.pipeline, h.tensor, h.tensor_consecutive);
  const double compute = forward + backward + tensor_ms;
  // A pipeline of m micro-batches repeats what is not communication of gradients.
  const auto piped = [&](double with_gradients) {
    if (h.pipeline == 1) return with_gradients;
    const double m = micro_batches(profile, samples, h);
    return compute * (p + m - 1) / (p * m) + (with_gradients - compute);
  };

  double total = 0;
  if (h.data == 1) {
    total = piped(compute);
  } else {
    const double link = cluster.all_reduce_ms_per_mib(h.pipeline, h.data, h.has_order() && !h.tensor_consecutive);
    const double gradient_mib = on_the_wire(d) * (layers.parameters_mib / t) * count;
    const double reduced_mib = gradient_mib * (h.sharded ? its.sharded_overlapped : 1);
    if (its.stages_reduce_together && h.pipeline > 1 && h.tensor == 1) {
      const Overlap of_stage = overlap(reduced_mib / p, link, backward / p, its.overlap_slowdown);
      const bool at_once = of_stage.communication_is_longer && !h.sharded;
      total = at_once ? forward + of_stage.both_ms * p + of_stage.rest_ms
                      : forward + (of_stage.both_ms + of_stage.rest_ms) * p;
    } else {
      const Share share = overlapping_share(h, layers.decoder);
      const Overlap its_overlap = overlap(reduced_mib, link, backward * share.part / share.of, its.overlap_slowdown);
      total = forward + (share.of - share.part) / share.of * backward + its_overlap.both_ms + its_overlap.rest_ms +
              tensor_ms;
    }
    total = piped(total + profile.reduction_ms);
    // An all-gather moves half of what an all-reduce does.
    for (std::int64_t gather = 0; h.sharded && gather < its.exposed_gathers; ++gather)
      total += gradient_mib * 0.5 * link;
  }
  if (h.pipeline > 1 && !cluster.send.empty())
    total += 2 * samples * sequence * hidden * kBytesPerValue / kKibi / kKibi * cluster.send.at(h.pipeline);
  return total * its.seconds_per_ms / count;
}

LayerMemory layer_memory(const Profile& profile, const Layers& layers, const Hybrid& h, std::int64_t batch) {
  const auto t = static_cast<double>(h.tensor), d = static_cast<double>(h.data);
  const Estimator& its = profile.cluster.estimator;
  return {.states_mib = its.state_copies * (layers.parameters_mib / t) * (h.sharded ? 1 / d + its.sharded_extra : 1),
          .activation_mib = layers.activation_mib_per_sample.at(h.tensor) * (static_cast<double>(batch) / d)};
}

std::vector<double> outside_mib(const Profile& profile, const Hybrid& h, std::int64_t batch) {
  const double samples = static_cast<double>(batch) / static_cast<double>(h.tensor) / static_cast<double>(h.data);
  const double m =
      std::min(micro_batches(profile, std::floor(static_cast<double>(batch) / static_cast<double>(h.data)), h),
               std::max(1.0, std::floor(samples)));
  const auto of = [&](const EndMemory& end) {
    return end.states_mib +
           end.activation_mib_per_sample * (end.over_stages ? samples / static_cast<double>(h.pipeline) : samples) -
           end.spared_mib_per_sample * samples * (1 - 1 / m);
  };
  std::vector<double> by_stage(static_cast<std::size_t>(h.pipeline), 0);
  if (h.pipeline == 1) {
    by_stage.front() = of(profile.whole);
  } else {
    by_stage.front() = of(profile.first);
    by_stage.back() = of(profile.last);
  }
  const Estimator& its = profile.cluster.estimator;
  for (std::size_t stage = 0; stage < by_stage.size(); ++stage)
    if (stage == 0 || its.context_on_every_stage) by_stage[stage] += its.context_mib;
  return by_stage;
}

double change_seconds(const Profile& profile, const Hybrid& from, const Hybrid& to, std::int64_t batch) {
  const Estimator& its = profile.cluster.estimator;
  const bool both_have_order = from.has_order() && to.has_order();
  const bool order_differs = both_have_order && from.tensor_consecutive != to.tensor_consecutive;
  if (from.tensor == to.tensor && !order_differs) return from.sharded && !to.sharded ? its.leaving_sharded_seconds : 0;
  if (to.tensor < from.tensor && !order_differs) return 0;
  const auto t = static_cast<double>(to.tensor);
  const double mib =
      (t - 1) * (its.boundary_mib_per_sample * static_cast<double>(batch) / static_cast<double>(to.data)) / t;
  return mib * profile.cluster.all_reduce_ms_per_mib(to.pipeline, to.tensor, to.tensor_consecutive) * kSecondsPerMs;
}

}  // namespace orrery::galvatron
