#include "strategies/activation_recompute/activation_recompute.h"

#include <algorithm>
#include <string>

#include "sim/base/error.h"
#include "sim/program/rewrite.h"
#include "strategies/pipeline_parallel/schedules.h"

namespace orrery::activation_recompute {
namespace {

// What an op of the forward fills once for all micro-batches (fp8 copies of the weights) is still there in the
// backward.
bool stays(const Piece& piece, const Op& op) {
  const TensorId id = op.writes[0];
  return id != kNoTensor && piece.tensors[id].resident;
}

// Prepends to the backward a copy of the forward ops that `wanted` picks, on fresh tensors, and lets the backward of
// the chosen ops read those. What only they needed is then no longer kept; what they handed on is (as
// torch.utils.checkpoint).
template <class Wanted>
void recompute(Piece& piece, Wanted wanted) {
  const auto chosen = [&](const Op& op) { return wanted(op) && !stays(piece, op); };
  std::vector<TensorId> copy(piece.tensors.size(), kNoTensor);
  const std::size_t originals = piece.tensors.size();
  for (const Op& op : piece.forward.ops) {
    if (!chosen(op)) continue;
    for (TensorId id : op.writes) {
      if (id == kNoTensor) continue;
      // A tensor written part by part (overlapped products) is copied whole: its parts are views of the one copy.
      const TensorId root = storage_of(piece, id);
      if (copy[root] == kNoTensor) copy[root] = clone_tensor(piece, root);
    }
  }
  // Views of copied tensors are views of the copies.
  for (std::size_t id = 0; id < originals; ++id) {
    const TensorId base = piece.tensors[id].alias_of;
    if (base == kNoTensor || copy[base] == kNoTensor || copy[id] != kNoTensor) continue;
    Tensor view = piece.tensors[id];
    view.alias_of = copy[base];
    copy[id] = piece.add(view);
  }
  const auto renamed = [&](TensorId id) { return id == kNoTensor || copy[id] == kNoTensor ? id : copy[id]; };
  for (Op& op : piece.backward.ops)
    if (wanted(op))
      for (TensorId& id : op.reads) id = renamed(id);
  const auto repeated = std::count_if(piece.forward.ops.begin(), piece.forward.ops.end(), chosen);
  auto place = piece.backward.ops.insert(piece.backward.ops.begin(), static_cast<std::size_t>(repeated), Op{});
  for (const Op& op : piece.forward.ops) {
    if (!chosen(op)) continue;
    Op& again = *place++ = op;
    for (TensorId& id : again.reads) id = renamed(id);
    for (TensorId& id : again.writes) id = renamed(id);
    again.phase = Phase::recompute;
  }
}

// `copies` instances of a layer as one piece, each reading what the one before wrote.
void concatenate(Piece& piece, std::int64_t copies) {
  const Piece one = piece;
  piece.layers *= copies;
  piece.variant_of = kNoPiece;  // of other parameters
  std::vector<std::vector<TensorId>> names{{}};
  names[0].resize(one.tensors.size());
  for (std::size_t id = 0; id < one.tensors.size(); ++id) names[0][id] = static_cast<TensorId>(id);
  for (std::int64_t c = 1; c < copies; ++c) {
    std::vector<TensorId> map(one.tensors.size(), kNoTensor);
    for (std::size_t id = 0; id < one.tensors.size(); ++id) {
      const auto t = static_cast<TensorId>(id);
      const bool side_input =
          std::any_of(one.sides.begin(), one.sides.end(), [t](const SideStream& side) { return side.input == t; });
      if (t == one.input) {
        map[id] = names.back()[one.output];
      } else if (side_input) {
        map[id] = t;
      } else {
        map[id] = piece.add(one.tensors[id]);
      }
    }
    names.push_back(std::move(map));
  }
  const auto renamed = [](const std::vector<TensorId>& map, TensorId id) { return id == kNoTensor ? id : map[id]; };
  const auto append = [&](Block& block, const Block& from, const std::vector<TensorId>& map) {
    for (Op op : from.ops) {
      for (TensorId& id : op.reads) id = renamed(map, id);
      for (TensorId& id : op.writes) id = renamed(map, id);
      block.ops.push_back(op);
    }
  };
  // Instance c's output gradient is instance c+1's input gradient. Of what is frozen in front of them no side stream
  // has gradients.
  for (std::size_t c = 0; c + 1 < names.size(); ++c) {
    names[c][one.output_gradient] = names[c + 1][one.input_gradient];
    for (const SideStream& side : one.sides)
      if (side.input != kNoTensor && side.output_gradient != kNoTensor)
        names[c][side.output_gradient] = renamed(names[c + 1], side.input_gradient);
  }
  for (const auto& map : names)
    for (std::size_t id = 0; id < one.tensors.size(); ++id)
      if (const TensorId base = one.tensors[id].alias_of; base != kNoTensor)
        piece.tensors[map[id]].alias_of = map[base];
  for (Block Piece::*block : {&Piece::forward, &Piece::update}) {
    (piece.*block).ops.clear();
    for (const auto& map : names) append(piece.*block, one.*block, map);
  }
  for (Block Piece::*block : {&Piece::backward, &Piece::weight_gradient}) {
    (piece.*block).ops.clear();
    for (std::size_t c = names.size(); c-- > 0;) append(piece.*block, one.*block, names[c]);
  }
  piece.parameters.clear();
  for (const auto& map : names)
    for (const ParameterGradient& p : one.parameters)
      piece.parameters.push_back({map[p.parameter], renamed(map, p.gradient), p.set});
  piece.packed.clear();
  for (const auto& map : names)
    for (PackedGradients packed : one.packed) {
      packed.buffer = map[packed.buffer];
      for (TensorId& id : packed.gradients) id = map[id];
      piece.packed.push_back(std::move(packed));
    }
  piece.output = names.back()[one.output];
  piece.output_gradient = names.back()[one.output_gradient];
  piece.input_gradient = names.front()[one.input_gradient];
  for (SideStream& side : piece.sides) {
    if (side.input == kNoTensor) continue;
    side.output_gradient = renamed(names.back(), side.output_gradient);
    side.input_gradient = renamed(names.front(), side.input_gradient);
  }
}

bool keeps_activations(const Piece& piece) {
  return is_layer(piece) && !is_joint(piece) && !piece.backward.ops.empty();
}

constexpr auto everything = [](const Op&) { return true; };
constexpr auto in_core_attention = [](const Op& op) { return op.core_attention; };

}  // namespace

void check(const Scenario& scenario) {
  const Options& options = scenario.plan.recompute;
  const auto fail = [](const std::string& field, const std::string& found, const std::string& expected) {
    throw InputError({"", field}, found, expected);
  };
  bool full = false;
  for_each_plan(scenario, [&](const Plan& plan, const std::string& at) {
    const Options& own = plan.recompute;
    const bool of_range = &plan != &scenario.plan, inherited = of_range && own.every == options.every;
    full = full || own.mode == Mode::full;
    if (own.mode != Mode::full && own.every != 1 && of_range && !inherited)
      fail(at + "recompute_every", std::to_string(own.every), "1 unless recompute is \"full\"");
    if (own.every > 64) fail(at + "recompute_every", std::to_string(own.every), "at most 64 layers");
    if (options.layers >= 0 && own.every > 1)
      fail(at + "recompute_every", std::to_string(own.every),
           "1 together with recompute_layers: the two are different methods");
    if (options.layers >= 0 && of_range && own.mode != options.mode)
      fail(at + "recompute", '"' + std::string(kModeNames[static_cast<std::size_t>(own.mode)]) + '"',
           "no recompute for a range of layers together with recompute_layers: both choose layers");
  });
  if (!full && options.every != 1)
    fail("/plan/recompute_every", std::to_string(options.every), "1 unless recompute is \"full\"");
  if (options.mode != Mode::full && options.layers != -1)
    fail("/plan/recompute_layers", std::to_string(options.layers), "-1 unless recompute is \"full\"");
}

// recompute_layers: the first so many of each chunk.
void plan_layers(const Scenario& scenario, LayerPlans& plans) {
  const Options& options = scenario.plan.recompute;
  if (options.mode != Mode::full || options.layers < 0) return;
  std::int64_t begin = 0;
  for (const std::int64_t n : pipeline_parallel::split_layers(scenario.model.total_layers(), scenario.plan.pipeline)) {
    plans.change(begin + std::min(n, options.layers), begin + n, 1,
                 [](Plan& plan) { plan.recompute.mode = Mode::none; });
    begin += n;
  }
}

void rewrite_piece(const Scenario&, const Plan& plan, const Program&, Piece& piece) {
  const Options& options = plan.recompute;
  if (options.mode == Mode::none || !keeps_activations(piece)) return;
  if (options.mode == Mode::selective) {
    recompute(piece, in_core_attention);
  } else if (options.every == 1) {  // each layer from its own input
    recompute(piece, everything);
  }
}

// recompute_every: within each chunk, so many instances as one piece.
void rewrite(const Scenario& scenario, Program& program) {
  bool grouped = false;
  for_each_plan(scenario, [&](const Plan& plan, const std::string&) {
    grouped = grouped || (plan.recompute.mode == Mode::full && plan.recompute.every > 1);
  });
  if (!grouped) return;
  const LayerPlans plans = layer_plans(scenario);
  struct Group {
    std::uint16_t of = 0;
    std::int64_t copies = 1;
    std::uint16_t piece = 0;
  };
  std::vector<Group> groups;
  std::vector<Run> runs;
  const auto group = [&](std::uint16_t of, std::int64_t copies) {
    for (const Group& g : groups)
      if (g.of == of && g.copies == copies) return g.piece;
    Piece piece = program.pieces[of];
    if (copies > 1) concatenate(piece, copies);
    recompute(piece, everything);
    program.pieces.push_back(std::move(piece));
    groups.push_back({of, copies, static_cast<std::uint16_t>(program.pieces.size() - 1)});
    return groups.back().piece;
  };
  for (auto& stage : program.stages) {
    for (Chunk& chunk : stage) {
      runs.clear();
      for (const Run& run : chunk.runs) {
        const Piece& piece = program.pieces[run.piece];
        const Options& options = plans.of(piece).recompute;
        if (!keeps_activations(piece) || options.mode != Mode::full || options.every == 1) {
          runs.push_back(run);
          continue;
        }
        const std::int64_t copies = std::min(options.every, run.count);
        runs.push_back({group(run.piece, copies), run.count / copies});
        if (run.count % copies != 0) runs.push_back({group(run.piece, run.count % copies), 1});
      }
      chunk.runs = runs;
    }
  }
}

void disable(Plan& plan) { plan.recompute = {}; }

namespace {

bool recomputes(const Scenario& scenario, Mode mode) {
  bool any = false;
  for_each_plan(scenario, [&](const Plan& plan, const std::string&) { any = any || plan.recompute.mode == mode; });
  return any;
}

}  // namespace

std::span<const PlanWord> words() {
  static constexpr PlanWord kWords[]{
      {"recompute-selective", [](const Scenario& s) { return recomputes(s, Mode::selective); }},
      {"recompute-full", [](const Scenario& s) { return recomputes(s, Mode::full); }}};
  return kWords;
}

}  // namespace orrery::activation_recompute
