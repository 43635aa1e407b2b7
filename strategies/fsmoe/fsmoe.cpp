// FSMoE's schedules, and those it is compared with, as Programs (Pan et al. 2025, arXiv 2501.10714, figure 3). The ops
// that expert_parallel has placed between permute and unpermute are cut along the slots into chunks:
//
//   rows        [experts, slots, ..] become [experts, chunks, slots / chunks, ..]
//   one chunk   dispatch, all_gather, experts, reduce_scatter, combine, on views of these
//   streams     all-to-alls run on expert_communication. Gathers and scatters of expert_tensor_parallel run on the same
//               stream or, with fsmoe, on expert_tensor_communication. Each waits for its data only, not for other
//               kernels.
//
// Forward and backward may have different numbers of chunks; one must divide the other. Slots are rounded up to a
// multiple of the larger number. On each stream all chunks are dispatched before the first one comes back, which is
// best if the layer waits for this stream (PipeMoE, section 4). The plan gives the degrees; choices.h computes those
// that FSMoE would choose.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sim/program/rewrite.h"
#include "strategies/data_parallel/data_parallel.h"
#include "strategies/expert_parallel/expert_parallel.h"
#include "strategies/fsmoe/choices.h"
#include "strategies/fsmoe/pipeline_degree.h"
#include "strategies/pipeline_parallel/schedules.h"
#include "strategies/strategy.h"

namespace orrery::fsmoe {
namespace {

bool is_exchange(const Op& op) { return is_communication(op.kind); }

// Runs the layers with experts of a piece chunk by chunk.
class Chunks {
 public:
  Chunks(const Options& options, Piece& piece)
      : options_(options), piece_(piece), parts_(std::max(options.forward_degree, options.backward_degree)) {}

  void run() {
    find_rows();
    if (home_slots_ == 0) return;
    for (std::size_t id = 0; id < rows_.size(); ++id)
      if (rows_[id]) divide(static_cast<TensorId>(id));
    rewrite(piece_.forward, options_.forward_degree);
    rewrite(piece_.backward, options_.backward_degree);
  }

 private:
  bool has_slots(TensorId id) const { return id != kNoTensor && piece_.tensors[id].find(Axis::slots) >= 0; }
  bool of_rows(const Op& op) const {
    const auto has = [&](TensorId id) { return has_slots(id); };
    return !traits_of(op.kind).regroups && (std::ranges::any_of(op.reads, has) || std::ranges::any_of(op.writes, has));
  }

  void find_rows() {
    rows_.resize(piece_.tensors.size());
    home_.resize(piece_.tensors.size());
    bool travel = false;
    for (const Block* block : {&piece_.forward, &piece_.backward})
      for (const Op& op : block->ops) {
        const bool regroups = traits_of(op.kind).regroups;
        travel = travel || (of_rows(op) && is_exchange(op));
        const auto note = [&](TensorId id) {
          if (!has_slots(id)) return;
          rows_[id] = true;
          home_[id] = home_[id] || regroups;
          if (const Tensor& t = piece_.tensors[id]; regroups) home_slots_ = t.sizes[t.find(Axis::slots)];
        };
        std::ranges::for_each(op.reads, note);
        std::ranges::for_each(op.writes, note);
      }
    for (std::size_t id = 0; id < rows_.size(); ++id) rows_[id] = rows_[id] || has_slots(static_cast<TensorId>(id));
    if (!travel) home_slots_ = 0;
  }

  // Gives rows the dimension of chunks. The tensors that tokens are put into and taken from keep their shape, and get a
  // view with that dimension.
  void divide(TensorId id) {
    chunked_.resize(piece_.tensors.size(), kNoTensor);
    const std::int64_t slots = (home_slots_ + parts_ - 1) / parts_;  // per chunk, for one rank's tokens
    Tensor& t = piece_.tensors[id];
    const int d = t.find(Axis::slots);
    const std::int64_t of_ranks = t.sizes[d] / home_slots_;
    Tensor cut = t;
    cut.append({1, Axis::none});
    for (int i = cut.rank - 1; i > d; --i) {
      cut.sizes[i] = t.sizes[i - 1];
      cut.axes[i] = t.axes[i - 1];
      cut.over[i] = t.over[i - 1];
      cut.set_deal(i, t.deal(i - 1));
    }
    cut.sizes[d] = parts_;
    cut.axes[d] = Axis::chunks;
    cut.over[d] = {};
    cut.set_deal(d, Deal::contiguous);
    cut.sizes[d + 1] = slots * of_ranks;
    if (!home_[id]) {
      t = cut;
      chunked_[id] = id;
      return;
    }
    t.sizes[d] = parts_ * slots * of_ranks;
    cut.alias_of = id;
    cut.alias_begin = 0;
    chunked_[id] = piece_.add(cut);
  }

  // Returns chunk `index` of `degree`.
  TensorId chunk(TensorId id, std::int64_t index, std::int64_t degree) {
    if (!has_slots(id)) return id;
    const TensorId whole = chunked_[id];
    if (degree == 1) return whole;
    const std::array<std::int64_t, 3> key{id, index, degree};
    for (const auto& [known, view] : views_)
      if (known == key) return view;
    Tensor part = piece_.tensors[whole];
    const int d = part.find(Axis::chunks);
    part.sizes[d] = parts_ / degree;
    if (const TensorId base = part.alias_of; base != kNoTensor && piece_.tensors[base].find(Axis::chunks) >= 0) {
      // The same chunk of the base, and of that what the view shows.
      part.alias_of = chunk(base, index, degree);
    } else {
      part.alias_of = whole;
      part.alias_begin = index * part.sizes[d];
    }
    part.resident = part.shared = part.lent = false;
    const TensorId view = piece_.add(part);
    views_.emplace_back(key, view);
    return view;
  }

  // Other kernels stay where they are, before or behind all chunks.
  void rewrite(Block& block, std::int64_t degree) {
    out_.clear();
    const std::vector<std::uint8_t> needed = needed_by_rows(block);
    for (std::size_t i = 0; i < block.ops.size(); ++i) {
      const Op& op = block.ops[i];
      if (of_rows(op)) {
        if (reads_of(op, behind_)) flush(degree);
        pending_.push_back(op);
      } else {
        const bool waits = reads_of(op, pending_) || reads_of(op, behind_);
        (pending_.empty() || (needed[i] != 0 && !waits) ? out_ : behind_).push_back(op);
      }
    }
    flush(degree);
    block.ops = out_;
  }

  // By op: whether a later op on rows needs it.
  std::vector<std::uint8_t> needed_by_rows(const Block& block) const {
    std::vector<std::uint8_t> needed(block.ops.size());
    Storages wanted(piece_);
    for (std::size_t i = block.ops.size(); i-- > 0;) {
      const Op& op = block.ops[i];
      needed[i] = of_rows(op) || wanted.has_any(op.writes);
      if (needed[i] != 0) wanted.add_all(op.reads);
    }
    return needed;
  }

  bool depends(const Op& later, const Op& earlier) const {
    for (const TensorId w : earlier.writes) {
      if (w == kNoTensor) continue;
      const TensorId written = storage_of(piece_, w);
      for (const TensorId r : later.reads)
        if (r != kNoTensor && storage_of(piece_, r) == written) return true;
    }
    return false;
  }
  bool reads_of(const Op& op, const std::vector<Op>& earlier) const {
    return std::ranges::any_of(earlier, [&](const Op& e) { return depends(op, e); });
  }

  // Streams, in the order in which ops are issued to them. The compute stream comes last.
  enum Lane : std::uint8_t { all_to_alls, within_nodes, kernels, kLanes };
  Lane lane_of(const Op& op) const {
    if (!is_exchange(op)) return kernels;
    return options_.schedule == MoeSchedule::fsmoe && op.kind != OpKind::redistribute ? within_nodes : all_to_alls;
  }

  struct Step {
    std::size_t op;
    std::int64_t chunk;
  };

  // Writes all pending ops chunk by chunk, then the ops that wait for them.
  void flush(std::int64_t degree) {
    if (!pending_.empty()) pipeline(degree);
    out_.insert(out_.end(), behind_.begin(), behind_.end());
    pending_.clear();
    behind_.clear();
  }

  // The experts' backward is one call of autograd, and what uses its row gradients waits for all of it: the product
  // that computes them comes after the weight gradients.
  void give_rows_last(std::size_t first, std::size_t last) {
    std::size_t rows = last;
    while (rows > first && pending_[rows].phase == Phase::weight_gradient) --rows;
    if (rows < last)
      std::rotate(pending_.begin() + static_cast<std::ptrdiff_t>(rows),
                  pending_.begin() + static_cast<std::ptrdiff_t>(rows) + 1,
                  pending_.begin() + static_cast<std::ptrdiff_t>(last) + 1);
  }

  void pipeline(std::int64_t degree) {
    // Splits ops into those before the products, the products, and those behind.
    const auto is_product = [](const Op& op) { return is_matmul(op.kind); };
    const auto first = static_cast<std::size_t>(std::ranges::find_if(pending_, is_product) - pending_.begin());
    std::size_t last = first;
    for (std::size_t i = first; i < pending_.size(); ++i)
      if (is_product(pending_[i])) last = i;
    give_rows_last(first, last);
    const auto side = [&](std::size_t i) { return i < first ? 0 : i <= last ? 1 : 2; };

    std::array<std::deque<Step>, kLanes> lanes;
    // Kernels before and behind the products (sorts of rows) are issued a chunk early and late, so that products do not
    // wait for them. Those behind are issued when everything before them is, as each stream runs all dispatches first.
    for (std::int64_t round = 0; round < degree + 2; ++round)
      for (const int of_side : {0, 1, 2})
        for (std::int64_t c = 0; c < degree; ++c)
          for (std::size_t i = 0; i < pending_.size(); ++i)
            if (side(i) == of_side && lane_of(pending_[i]) == kernels &&
                round == std::max(c + of_side, of_side == 2 ? degree - 1 : 0))
              lanes[kernels].push_back({i, c});
    for (const bool back : {false, true})
      for (std::int64_t c = 0; c < degree; ++c)
        for (std::size_t i = 0; i < pending_.size(); ++i)
          if (const Lane lane = lane_of(pending_[i]); lane != kernels && (side(i) == 2) == back)
            lanes[lane].push_back({i, c});

    std::vector<std::uint8_t> issued(pending_.size() * static_cast<std::size_t>(degree));
    const auto at = [&](std::size_t op, std::int64_t c) {
      return op * static_cast<std::size_t>(degree) + static_cast<std::size_t>(c);
    };
    const auto ready = [&](const Step& step) {
      for (std::size_t before = 0; before < step.op; ++before)
        if (issued[at(before, step.chunk)] == 0 && depends(pending_[step.op], pending_[before])) return false;
      return true;
    };
    for (std::size_t left = issued.size(); left > 0;) {
      const std::size_t before = left;
      for (std::deque<Step>& lane : lanes)
        for (; !lane.empty() && ready(lane.front()); lane.pop_front(), --left) {
          const Step step = lane.front();
          issued[at(step.op, step.chunk)] = 1;
          emit(pending_[step.op], step.chunk, degree);
          if (&lane == &lanes[kernels]) {  // exchanges are issued as soon as they can be
            lane.pop_front(), --left;
            break;
          }
        }
      if (left == before) throw std::logic_error("chunks of a layer with experts wait for each other in a circle");
    }
  }

  void emit(Op op, std::int64_t index, std::int64_t degree) {
    for (TensorId& id : op.reads) id = chunk(id, index, degree);
    for (TensorId& id : op.writes) id = chunk(id, index, degree);
    if (is_exchange(op)) {
      op.stream = lane_of(op) == within_nodes ? Stream::expert_tensor_communication : Stream::expert_communication;
      op.account = Stream::compute;
      op.free_running = true;
    }
    out_.push_back(op);
  }

  const Options& options_;
  Piece& piece_;
  const std::int64_t parts_;               // chunks of the pass that has more
  std::int64_t home_slots_ = 0;            // of an expert, for one rank's tokens
  std::vector<std::uint8_t> rows_, home_;  // by tensor: has slots; is read or written by what puts tokens into slots
  std::vector<TensorId> chunked_;          // by tensor: with the dimension of chunks
  std::vector<std::pair<std::array<std::int64_t, 3>, TensorId>> views_;
  std::vector<Op> pending_, behind_, out_;  // ops on rows; ops after those; finished ops
};

bool has_chunks(const Scenario& scenario) { return scenario.plan.fsmoe.schedule != MoeSchedule::sequential; }

constexpr FieldNames kShares{"moe_gradient_share_experts", "moe_gradient_share_dense"};
constexpr FieldRule kIdle[]{
    keep({"moe_schedule"}, "for a model without experts", [](const AskedOf& a) { return a.model.has_experts(); }),
    keep({"moe_pipeline_degree_forward", "moe_pipeline_degree_backward"},
         "with moe_schedule \"sequential\", which has no chunks",
         [](const AskedOf& a) { return has_chunks(a.scenario); }),
    keep(kShares,
         "unless moe_schedule is \"fsmoe\" or \"fsmoe_no_iio\": others do not overlap all-reduces with exchanges",
         [](const AskedOf& a) {
           const MoeSchedule schedule = a.plan.fsmoe.schedule;
           return schedule == MoeSchedule::fsmoe || schedule == MoeSchedule::fsmoe_no_iio;
         }),
    keep(kShares, "without overlap_grad_reduce, which reduces gradients during the backward",
         [](const AskedOf& a) { return a.plan.data.overlap_gradients; })};
constexpr FieldRule kExcludes[]{
    keep({"moe_permute"}, "with moe_schedule, which cuts rows into chunks",
         [](const AskedOf& a) { return has_chunks(a.scenario); }),
    keep({"moe_schedule"}, "with moe_shared_expert_overlap: both overlap the same exchanges",
         [](const AskedOf& a) { return a.plan.expert.overlap_shared; }),
    keep({"moe_schedule"}, "with overlap_moe_expert_parallel_comm: both overlap the same exchanges",
         [](const AskedOf& a) { return a.plan.expert.overlap_pairs; }),
    keep(kShares, "with zero_stage above 0: gradients are reduce-scattered",
         [](const AskedOf& a) { return a.plan.data.zero_stage > 0; }),
    keep(kShares, "where gradients are reduced in every micro-batch (reduce_gradients)",
         [](const AskedOf& a) {
           return data_parallel::reduces_in_every_micro_batch(a.scenario, micro_batches(a.scenario));
         }),
    keep(kShares,
         "for a model with dense layers between layers with experts: the next layer in the backward has no experts",
         [](const AskedOf& a) { return a.model.expert_period > 1; }),
    keep(kShares, "with a pipeline_schedule that computes weight gradients separately", [](const AskedOf& a) {
      using pipeline_parallel::ScheduleKind;
      const ScheduleKind kind = pipeline_parallel::effective_schedule(a.plan.pipeline);
      return kind != ScheduleKind::gpipe && kind != ScheduleKind::one_f_one_b && kind != ScheduleKind::interleaved;
    })};

void check(const Scenario& scenario) {
  const Options& options = scenario.plan.fsmoe;
  const std::int64_t forward = options.forward_degree, backward = options.backward_degree;
  if (!has_chunks(scenario)) return;
  if (scenario.plan.expert.dispatcher == expert_parallel::Dispatcher::allgather)
    refuse(scenario.plan, "moe_token_dispatcher", "another one with moe_schedule: chunks need an exchange");
  constexpr double kSumRounding = 1e-12;
  if (options.share_beside_experts + options.share_beside_dense > 1 + kSumRounding)
    refuse(scenario.plan, "moe_gradient_share_experts",
           fmt::format("at most {} with moe_gradient_share_dense {}", 1 - options.share_beside_dense,
                       options.share_beside_dense));
  const auto fail = [&](const char* expected) {
    refuse(scenario.plan, "moe_pipeline_degree_backward", fmt::format(fmt::runtime(expected), forward));
  };
  if (options.schedule == MoeSchedule::tutel && forward != backward)
    fail("{}, the forward degree, with moe_schedule \"tutel\", which has only one");
  if (std::max(forward, backward) % std::min(forward, backward) != 0)
    fail("a divisor or a multiple of moe_pipeline_degree_forward, {}");
}

void rewrite_piece(const Scenario& scenario, const Plan&, const Program&, Piece& piece) {
  if (has_chunks(scenario) && scenario.model.has_experts()) Chunks(scenario.plan.fsmoe, piece).run();
}

// Gradients of what is not an expert's, in pieces (moe_gradient_share_experts, moe_gradient_share_dense).
void shard(const Scenario& scenario, const Plan&, const Mesh&, data_parallel::Sharding& sharding) {
  const Options& options = scenario.plan.fsmoe;
  if (scenario.model.has_experts()) sharding.pieces = {options.share_beside_experts, options.share_beside_dense};
}

void check_runnable(const Scenario& scenario) {
  const Options& options = scenario.plan.fsmoe;
  const Model& model = scenario.model;
  if (options.schedule == MoeSchedule::sequential || std::max(options.forward_degree, options.backward_degree) == 1)
    return;
  using pipeline_parallel::ScheduleKind;
  const ScheduleKind schedule = scenario.plan.pipeline.schedule;
  const bool splits =
      schedule == ScheduleKind::zb_h1 || schedule == ScheduleKind::zb_v || schedule == ScheduleKind::dualpipe_v;
  if (splits && model.has_experts() && expert_parallel::expert_tensor_ranks(scenario.plan) > 1)
    refuse(scenario.plan, "pipeline_schedule",
           "one that does not split the backward, in a real run with chunks of rows over expert_tensor_parallel ranks: "
           "weight gradients cannot gather chunks again yet");
  if (scenario.plan.expert.counts_rows()) return;
  const double no_drops = static_cast<double>(model.experts) / static_cast<double>(model.experts_per_token);
  if (const double factor = scenario.plan.expert.capacity_factor; factor < no_drops)
    refuse(
        scenario.plan, "moe_expert_capacity_factor",
        fmt::format("{} or more, which drops no token, in a real run with whole chunks of slots: one rank would drop "
                    "other tokens",
                    no_drops));
}

AxisValues degrees_of(const Scenario& chosen) {
  return has_chunks(chosen) ? AxisValues(kDegrees.begin(), kDegrees.end()) : AxisValues{1};
}

constexpr SearchAxis kAxes[]{{.field = "moe_pipeline_degree_forward",
                              .label = "chunks",
                              .chosen_with = ChosenWith::kernels,
                              .set = [](Plan& plan, std::int64_t value) { plan.fsmoe.forward_degree = value; },
                              .values = degrees_of,
                              .acts = has_chunks},
                             {.field = "moe_pipeline_degree_backward",
                              .label = "chunks back",
                              .chosen_with = ChosenWith::kernels,
                              .set = [](Plan& plan, std::int64_t value) { plan.fsmoe.backward_degree = value; },
                              .values = [](const Scenario& chosen) -> AxisValues {
                                if (chosen.plan.fsmoe.schedule == MoeSchedule::tutel)
                                  return {chosen.plan.fsmoe.forward_degree};
                                return degrees_of(chosen);
                              },
                              .acts =
                                  [](const Scenario& chosen) {
                                    return has_chunks(chosen) && chosen.plan.fsmoe.schedule != MoeSchedule::tutel;
                                  }}};

}  // namespace

Strategy describe() {
  return {.name = "fsmoe",
          .summary = "layers with experts in chunks: all-to-alls, gathers within nodes and experts overlap",
          .paper = "Pan et al. 2025, arXiv 2501.10714; Hwang et al. 2023, arXiv 2206.03382 (Tutel)",
          .excludes = kExcludes,
          .idle = kIdle,
          .check = check,
          .rewrite_piece = rewrite_piece,
          .shard = shard,
          .disable = reset<&Plan::fsmoe>,
          .check_runnable = check_runnable,
          .search_axes = kAxes,
          .topics = topics()};
}

}  // namespace orrery::fsmoe
