// MEMO (arXiv 2407.12117): activations wait for the backward in host memory, or are recomputed, token by token. A
// layer's input and attention's output are swapped for all tokens. The other activations are swapped for the first
// tokens, the share alpha of all. For the remaining tokens they are recomputed before the layer's backward; this
// repeats neither attention nor the layer's last product.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/program/rewrite.h"
#include "strategies/activation_offload/activation_offload.h"
#include "strategies/context_parallel/context_parallel.h"
#include "strategies/layer_plans.h"
#include "strategies/memo/alpha.h"
#include "strategies/pipeline_parallel/schedules.h"
#include "strategies/strategy.h"

namespace orrery::memo {
namespace {

// Number of buffers for the activations of one layer, which layers use in turn (section 4.1). The last layers of a
// chunk, as many as there are buffers, stay in them and are not swapped.
constexpr std::uint16_t kRoundingBuffers = 2;
static_assert(kRoundingBuffers <= kMostBuffers);

using activation_offload::ToHost;
using activation_offload::view_of_tokens;

class TokenWise {
 public:
  TokenWise(Piece& piece, double alpha)
      : piece_(piece),
        forward_(piece.forward.ops),
        originals_(piece.tensors.size()),
        kinds_(originals_, Kind::passing),
        discarded_(originals_, kNoTensor),
        to_host_(piece, kRoundingBuffers) {
    kept_ = activation_offload::kept_activations(piece);
    // The backward of a frozen layer may need its input only for recomputation.
    const TensorId input = storage_of(piece, piece.input);
    if (std::ranges::find(kept_, input) == kept_.end()) kept_.push_back(input);
    classify();
    // Selects the same tokens of every tensor. A rank that holds more of a sequence in one tensor than in another
    // (gathered over tensor-parallel ranks) has the tokens of the smaller one too.
    least_ = tokens_of(input);
    for (const TensorId id : kept_) least_ = std::min(least_, tokens_of(id));
    swapped_ = std::llround(alpha * static_cast<double>(least_));
    if (swapped_ < least_) find_repeated();
  }

  void run() {
    for (const TensorId id : kept_) {
      if (kinds_[id] == Kind::whole) {
        to_host_.move(id);
      } else {
        to_host_.move(id, swapped_of(id));
      }
    }
    std::vector<Op> again = recomputed();
    piece_.backward.ops.insert(piece_.backward.ops.begin(), again.begin(), again.end());
    to_host_.finish();
  }

 private:
  enum class Kind : std::uint8_t {
    passing,  // not kept
    whole,    // swapped whole
    tokens,   // kept: some of its tokens are swapped
  };

  std::int64_t tokens_of(TensorId id) const {
    const Tensor& t = piece_.tensors[id];
    const int d = t.find(Axis::sequence);
    return d < 0 ? std::numeric_limits<std::int64_t>::max() : t.sizes[d];
  }
  static bool is_of_attention(const Op& op) { return is_attention(op.kind) || op.kind == OpKind::merge_attention; }
  std::int64_t swapped_of(TensorId id) const { return tokens_of(id) / least_ * swapped_; }
  TensorId root(TensorId id) const { return storage_of(piece_, id); }

  // Swapped whole: the input, which no op here computes; results of attention, which take too long to recompute;
  // dropout masks, the last of which comes after the last product; and what has no sequence axis.
  void classify() {
    for (const TensorId id : kept_) {
      const Tensor& t = piece_.tensors[id];
      kinds_[id] = t.find(Axis::sequence) < 0 || t.dtype == Dtype::uint8 ? Kind::whole : Kind::tokens;
    }
    kinds_[root(piece_.input)] = Kind::whole;
    for (const Op& op : forward_)
      if (is_of_attention(op))
        for (const TensorId id : op.writes)
          if (id != kNoTensor && kinds_[root(id)] != Kind::passing) kinds_[root(id)] = Kind::whole;
  }

  // Finds the forward ops that compute what is discarded from what is swapped whole. Results of attention are swapped
  // whole also where no backward of attention needs them: in a layer whose attention is frozen, with nothing trained
  // before it.
  void find_repeated() {
    std::vector<std::uint8_t> needed(originals_);
    repeated_.resize(forward_.size());
    for (const TensorId id : kept_) needed[id] = kinds_[id] == Kind::tokens ? 1 : 0;
    for (std::size_t i = forward_.size(); i-- > 0;) {
      const Op& op = forward_[i];
      for (const TensorId id : op.writes) {
        if (id == kNoTensor || needed[root(id)] == 0 || piece_.tensors[root(id)].resident) continue;
        if (is_of_attention(op) && kinds_[root(id)] == Kind::passing) {
          kinds_[root(id)] = Kind::whole;
          kept_.push_back(root(id));
        } else {
          repeated_[i] = 1;
        }
      }
      if (repeated_[i] == 0) continue;
      for (const TensorId id : op.reads)
        if (id != kNoTensor && kinds_[root(id)] == Kind::passing) needed[root(id)] = 1;
    }
  }

  // Returns these ops, in order, on the discarded tokens.
  std::vector<Op> recomputed() {
    std::vector<Op> again;
    for (std::size_t i = 0; i < repeated_.size(); ++i) {
      if (repeated_[i] == 0) continue;
      Op op = forward_[i];
      if (is_attention(op.kind) || op.kind == OpKind::redistribute)
        throw std::logic_error(std::string("\"") + op.name + "\" is not recomputed token by token");
      op.phase = Phase::recompute;
      // Each token has draws and a rotation of its own. A view of the result for all tokens says which tokens these are.
      const bool by_token = op.is_random() || op.kind == OpKind::rotary;
      if (const TensorId y = op.writes[0]; by_token && kinds_[root(y)] == Kind::passing)
        discarded_[y] = view_of_tokens(piece_, clone_tensor(piece_, y), swapped_of(y), tokens_of(y) - swapped_of(y));
      for (TensorId& id : op.reads) id = discarded(id);
      for (TensorId& id : op.writes) id = discarded(id);
      again.push_back(op);
    }
    return again;
  }

  // The discarded tokens of a tensor: a view of the returned tensor if the backward reads it, else a tensor that lives
  // only during recomputation. Tensors without tokens (parameters) are read as they are.
  TensorId discarded(TensorId id) {
    if (id == kNoTensor || piece_.tensors[root(id)].find(Axis::sequence) < 0) return id;
    if (discarded_[id] != kNoTensor) return discarded_[id];
    const Tensor& t = piece_.tensors[id];
    const std::int64_t from = swapped_of(id), count = tokens_of(id) - from;
    TensorId part = kNoTensor;
    if (t.alias_of != kNoTensor) {
      const TensorId base = discarded(t.alias_of);
      Tensor view = piece_.tensors[id];
      view.sizes[view.find(Axis::sequence)] = count;
      view.alias_of = base;
      part = piece_.add(view);
    } else if (kinds_[id] == Kind::passing || is_made_again(id)) {
      part = clone_tensor(piece_, id);
      Tensor& own = piece_.tensors[part];
      own.sizes[own.find(Axis::sequence)] = count;
    } else {
      part = view_of_tokens(piece_, to_host_.returned(id), from, count);
    }
    return discarded_[id] = part;
  }
  // Whether a mask that comes back is computed again by an op that is repeated for its other result.
  bool is_made_again(TensorId id) const { return piece_.tensors[id].dtype == Dtype::uint8; }

  Piece& piece_;
  const std::vector<Op> forward_;  // without copies
  const std::size_t originals_;    // number of tensors before the rewrite
  std::vector<Kind> kinds_;        // by storage
  std::vector<TensorId> kept_, discarded_;
  ToHost to_host_;
  std::int64_t least_ = 0, swapped_ = 0;  // of the tensor with the fewest tokens
  std::vector<std::uint8_t> repeated_;    // by op of the forward
};

bool goes_with(const pipeline_parallel::Options& pipeline) {
  using pipeline_parallel::ScheduleKind;
  return pipeline.degree == 1 || pipeline.schedule == ScheduleKind::gpipe ||
         pipeline.schedule == ScheduleKind::one_f_one_b || pipeline.schedule == ScheduleKind::interleaved;
}

bool swaps(const Plan& plan) { return plan.memo.swap; }

constexpr bool (*kSwaps)(const AskedOf&) = [](const AskedOf& a) { return swaps(a.layers); };

constexpr FieldRule kIdle[]{keep({"memo_alpha"}, ", the default, unless memo is true", kSwaps)};
constexpr FieldRule kExcludes[]{
    keep({"memo"}, "unless the model is a decoder or an encoder of one sequence",
         [](const AskedOf& a) { return a.model.kind != ModelKind::decoder && a.model.kind != ModelKind::encoder; }),
    keep({"memo"}, "for a mixture of experts, whose rows do not run along the sequence",
         [](const AskedOf& a) { return a.model.experts > 0; }),
    keep({"memo"}, "for latent attention", [](const AskedOf& a) { return a.model.attention == AttentionKind::latent; }),
    keep({"memo"}, "for relative positions", [](const AskedOf& a) { return a.model.positions == Positions::relative; }),
    keep({"flash_attention"}, ": memo swaps activations by token, and stored scores belong to pairs of tokens", kSwaps),
    keep({"recompute"}, ": memo recomputes what it does not swap", kSwaps),
    keep({"activation_offload"}, ": memo swaps the activations already", kSwaps),
    keep({"tensor_parallel_overlap"}, ": memo does not swap with products that are divided along the sequence", kSwaps),
    keep({"precision"}, ", \"fp16\" or \"fp32\": memo swaps a part of the tokens, and a scale covers all",
         [](const AskedOf& a) {
           using precision::Mix;
           return swaps(a.layers) && (a.layers.precision.mix == Mix::fp8 || a.layers.precision.mix == Mix::nvfp4);
         }),
    keep({"context_parallel_type"}, ": memo needs activations that stay on the rank of their tokens",
         [](const AskedOf& a) {
           return swaps(a.layers) && a.plan.context.degree > 1 &&
                  !context_parallel::is_of_type(a.scenario, a.layers, context_parallel::kTypes);
         }),
    keep({"pipeline_schedule"},
         ", \"gpipe\" or \"interleaved\" with memo: its two buffers cannot wait for weight gradients",
         [](const AskedOf& a) { return any_plan(a.scenario, swaps) && !goes_with(a.plan.pipeline); })};

// The last two layers of a chunk: the backward begins with them, and they stay in the two buffers.
void plan_layers(const Scenario& scenario, LayerPlans& plans) {
  if (!any_plan(scenario, swaps)) return;
  pipeline_parallel::for_each_chunk(scenario, [&](std::int64_t begin, std::int64_t end) {
    plans.change(std::max(begin, end - kRoundingBuffers), end, 1, [](Plan& plan) { plan.memo = {}; });
  });
}

void rewrite_piece(const Scenario&, const Plan& plan, const Program&, Piece& piece) {
  if (!plan.memo.swap || !is_layer(piece) || is_joint(piece) || piece.backward.ops.empty()) return;
  TokenWise(piece, plan.memo.alpha).run();
}

constexpr PlanWord kWords[]{{"memo", [](const Scenario& s) { return any_plan(s, swaps); }}};

constexpr std::int64_t kParts = 8;  // alpha in eighths
constexpr SearchAxis kAxes[]{
    {.field = "memo",
     .label = "memo",
     .chosen_with = ChosenWith::activations,
     .set = [](Plan& plan, std::int64_t value) { plan.memo.swap = value != 0; },
     .values = [](const Scenario& chosen) -> AxisValues {
       Scenario swapping = chosen;
       swapping.plan.memo.swap = true;
       return flags(chosen.cluster.device.pcie_bytes_per_second > 0 && !is_refused(kExcludes, swapping));
     }},
    {.field = "memo_alpha",
     .label = "alpha",
     .chosen_with = ChosenWith::activations,
     .set = [](Plan& plan, std::int64_t value) { plan.memo.alpha = static_cast<double>(value) / kParts; },
     .values = [](const Scenario& chosen) -> AxisValues {
       AxisValues values(chosen.plan.memo.swap ? kParts : 0);
       std::iota(values.begin(), values.end(), 0);
       values.push_back(kParts);
       return values;
     },
     .acts = [](const Scenario& chosen) { return any_plan(chosen, swaps); }}};

}  // namespace

Strategy describe() {
  return {.name = "memo",
          .summary = "activations swapped to host memory token by token, the rest recomputed",
          .paper = "Zhao et al. 2024, arXiv 2407.12117",
          .excludes = kExcludes,
          .idle = kIdle,
          .rewrite_piece = rewrite_piece,
          .plan_layers = plan_layers,
          .disable = reset<&Plan::memo>,
          .relax = reset<&Plan::memo>,
          .spares_activations = swaps,
          .words = kWords,
          .search_axes = kAxes,
          .topics = topics()};
}

}  // namespace orrery::memo
