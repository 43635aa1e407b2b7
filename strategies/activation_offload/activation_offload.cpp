#include "strategies/activation_offload/activation_offload.h"

#include <algorithm>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "sim/program/liveness.h"
#include "sim/program/rewrite.h"
#include "strategies/pipeline_parallel/schedules.h"

namespace orrery::activation_offload {
namespace {

constexpr std::uint16_t kLayersAhead = 1;  // Megatron-Core loads one layer ahead

class ToHost {
 public:
  explicit ToHost(Piece& piece) : piece_(piece) {}

  void run() {
    Liveness lives;
    lives.find(piece_);
    std::vector<TensorId> kept;
    for (const TensorId id : lives.storages()) {
      const Tensor& t = piece_.tensors[id];
      const Life& life = lives.of(id);
      if (life.keeper == Keeper::blocks && (life.kept & bit_of_block(kForwardBlock)) != 0 &&
          t.category == Category::activation && t.place == Place::device && t.input == Input::none && !t.lent)
        kept.push_back(id);
    }
    std::vector<Op> up;
    returned_.assign(piece_.tensors.size(), kNoTensor);
    for (const TensorId id : kept) {
      const TensorId host = clone_tensor(piece_, id);
      piece_.tensors[host].place = Place::host;
      returned_[id] = clone_tensor(piece_, id);
      piece_.forward.ops.push_back(copy("activation.to_host", Stream::device_to_host, id, host, Phase::forward));
      Op back = copy("activation.to_device", Stream::host_to_device, host, returned_[id], Phase::input_gradient);
      back.free_running = true;
      back.prefetch = kLayersAhead;
      up.push_back(back);
    }
    return_views();
    for (Block* block : {&piece_.backward, &piece_.weight_gradient})
      for (Op& op : block->ops)
        for (TensorId& id : op.reads)
          if (id != kNoTensor && id < returned_.size() && returned_[id] != kNoTensor) id = returned_[id];
    piece_.backward.ops.insert(piece_.backward.ops.begin(), up.begin(), up.end());
  }

 private:
  static Op copy(const char* name, Stream stream, TensorId from, TensorId to, Phase phase) {
    Op op = communication(OpKind::copy, name, stream, {}, from, to);
    op.phase = phase;
    return op;
  }

  // Views of what comes back, for those of what has gone; a view of a view comes behind what it views.
  void return_views() {
    for (std::size_t id = 0; id < returned_.size(); ++id) {
      const TensorId base = piece_.tensors[id].alias_of;
      if (base == kNoTensor || base >= returned_.size() || returned_[base] == kNoTensor) continue;
      Tensor view = piece_.tensors[id];
      view.alias_of = returned_[base];
      returned_[id] = piece_.add(view);
    }
  }

  Piece& piece_;
  std::vector<TensorId> returned_;  // by what has gone to the host, and its views
};

}  // namespace

void check(const Scenario& scenario) {
  const Options& options = scenario.plan.activation_offload;
  if (!options.offload && options.layers != -1)
    throw InputError({"", "/plan/activation_offload_layers"}, std::to_string(options.layers),
                     "-1 unless activation_offload is true");
  if (options.layers > 0) {
    const std::vector<std::int64_t> chunks =
        pipeline_parallel::split_layers(scenario.model.total_layers(), scenario.plan.pipeline);
    const std::int64_t most = *std::max_element(chunks.begin(), chunks.end());
    if (options.layers > most)
      throw InputError({"", "/plan/activation_offload_layers"}, std::to_string(options.layers),
                       "at most the " + std::to_string(most) + " layers of a stage's chunk (-1: all of them)");
  }
  for_each_plan(scenario, [&](const Plan& plan, const std::string& at) {
    if (options.layers >= 0 && plan.activation_offload.offload != options.offload)
      throw InputError({"", at + "activation_offload"}, plan.activation_offload.offload ? "true" : "false",
                       "none for a range of layers together with activation_offload_layers: both choose layers");
  });
}

void plan_layers(const Scenario& scenario, LayerPlans& plans) {
  const Options& options = scenario.plan.activation_offload;
  if (!options.offload || options.layers < 0) return;
  std::int64_t begin = 0;
  for (const std::int64_t n : pipeline_parallel::split_layers(scenario.model.total_layers(), scenario.plan.pipeline)) {
    plans.change(begin + std::min(n, options.layers), begin + n, 1,
                 [](Plan& plan) { plan.activation_offload.offload = false; });
    begin += n;
  }
}

void rewrite_piece(const Scenario&, const Plan& plan, const Program&, Piece& piece) {
  if (!plan.activation_offload.offload || !is_layer(piece) || is_joint(piece) || piece.backward.ops.empty()) return;
  ToHost(piece).run();
}

void disable(Plan& plan) { plan.activation_offload = {}; }

std::span<const PlanWord> words() {
  static constexpr PlanWord kWords[]{{"activation-offload", [](const Scenario& s) {
                                        bool any = false;
                                        for_each_plan(s, [&](const Plan& plan, const std::string&) {
                                          any = any || plan.activation_offload.offload;
                                        });
                                        return any;
                                      }}};
  return kWords;
}

std::span<const SearchAxis> search_axes() {
  static constexpr SearchAxis kAxes[]{
      {.field = "activation_offload",
       .label = "act. offload",
       .turns = Turns::activations,
       .usual = false,
       .set = [](Plan& plan, std::int64_t value) { plan.activation_offload.offload = value != 0; },
       .values =
           [](const Scenario& chosen, std::vector<std::int64_t>& values) {
             append_flags(chosen.cluster.device.pcie_bytes_per_second > 0, values);
           }}};
  return kAxes;
}

}  // namespace orrery::activation_offload
