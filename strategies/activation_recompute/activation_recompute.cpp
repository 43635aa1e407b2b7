#include "strategies/activation_recompute/activation_recompute.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "sim/base/error.h"
#include "sim/program/rewrite.h"

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

// The ops between the QKV projection and the output projection, forward or backward.
bool in_attention_core(const Op& op) {
  const std::string_view name = op.name;
  return name == "attention_scores" || name == "attention_bias" || name == "attention_mask" ||
         name == "attention_softmax" || name == "attention_dropout" || name == "attention_context";
}

// `copies` instances of a layer as one piece, each reading what the one before wrote.
void concatenate(Piece& piece, std::int64_t copies) {
  const Piece one = piece;
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
    // The gradient of what the next instance read is the gradient of what this one wrote.
    for (std::size_t id = 0; id < one.tensors.size(); ++id)
      if (const TensorId base = one.tensors[id].alias_of; base != kNoTensor)
        piece.tensors[map[id]].alias_of = map[base];
    names.push_back(std::move(map));
  }
  const auto append = [&](Block& block, const Block& from, const std::vector<TensorId>& map) {
    for (Op op : from.ops) {
      for (TensorId& id : op.reads)
        if (id != kNoTensor) id = map[id];
      for (TensorId& id : op.writes)
        if (id != kNoTensor) id = map[id];
      block.ops.push_back(op);
    }
  };
  // Instance c's output gradient is instance c+1's input gradient.
  for (std::size_t c = 0; c + 1 < names.size(); ++c) {
    names[c][one.output_gradient] = names[c + 1][one.input_gradient];
    for (const SideStream& side : one.sides)
      if (side.input != kNoTensor) names[c][side.output_gradient] = names[c + 1][side.input_gradient];
  }
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
    for (const ParameterGradient& p : one.parameters) piece.parameters.push_back({map[p.parameter], map[p.gradient]});
  piece.output = names.back()[one.output];
  piece.output_gradient = names.back()[one.output_gradient];
  piece.input_gradient = names.front()[one.input_gradient];
  for (SideStream& side : piece.sides) {
    if (side.input == kNoTensor) continue;
    side.output_gradient = names.back()[side.output_gradient];
    side.input_gradient = names.front()[side.input_gradient];
  }
}

constexpr auto everything = [](const Op&) { return true; };

}  // namespace

void check(const Scenario& scenario) {
  const Options& options = scenario.plan.recompute;
  const auto fail = [](const char* field, const std::string& found, const std::string& expected) {
    throw InputError({"", std::string("/plan/") + field}, found, expected);
  };
  if (options.mode != Mode::full) {
    if (options.every != 1) fail("recompute_every", std::to_string(options.every), "1 unless recompute is \"full\"");
    if (options.layers != -1)
      fail("recompute_layers", std::to_string(options.layers), "-1 unless recompute is \"full\"");
    return;
  }
  if (options.every > 1 && options.layers >= 0)
    fail("recompute_every", std::to_string(options.every),
         "1 together with recompute_layers: the two are different methods");
  if (options.every > 64) fail("recompute_every", std::to_string(options.every), "at most 64 layers");
}

void rewrite(const Scenario& scenario, Program& program) {
  const Options& options = scenario.plan.recompute;
  if (options.mode == Mode::none) return;
  if (options.mode == Mode::selective) {
    if (scenario.plan.framework.flash_attention) return;
    for (Piece& piece : program.pieces)
      if (is_layer(piece)) recompute(piece, in_attention_core);
    return;
  }

  // Full, each layer from its own input: no stage runs the piece as it was.
  if (options.every == 1 && options.layers < 0) {
    for (Piece& piece : program.pieces)
      if (is_layer(piece)) recompute(piece, everything);
    return;
  }

  // Which runs of each chunk stay as they are, which are recomputed, singly or `every` at a time.
  struct Variant {
    std::uint16_t of = 0;
    std::int64_t copies = 1;
    std::uint16_t piece = 0;
  };
  std::vector<Variant> variants;
  std::vector<Run> runs;
  const std::size_t plain = program.pieces.size();
  const auto recomputed = [&](std::uint16_t of, std::int64_t copies) {
    for (const Variant& v : variants)
      if (v.of == of && v.copies == copies) return v.piece;
    Piece piece = program.pieces[of];
    if (copies > 1) concatenate(piece, copies);
    recompute(piece, everything);
    program.pieces.push_back(std::move(piece));
    variants.push_back({of, copies, static_cast<std::uint16_t>(program.pieces.size() - 1)});
    return variants.back().piece;
  };
  for (auto& stage : program.stages) {
    for (Chunk& chunk : stage) {
      runs.clear();
      std::int64_t left = options.layers < 0 ? std::numeric_limits<std::int64_t>::max() : options.layers;
      for (const Run& run : chunk.runs) {
        if (run.piece >= plain || !is_layer(program.pieces[run.piece])) {
          runs.push_back(run);
          continue;
        }
        const std::int64_t repeated = std::min(run.count, left);
        left -= repeated;
        const std::int64_t group = std::min(options.every, repeated);
        if (repeated > 0) runs.push_back({recomputed(run.piece, group), repeated / group});
        if (repeated > 0 && repeated % group != 0) runs.push_back({recomputed(run.piece, repeated % group), 1});
        if (run.count > repeated) runs.push_back({run.piece, run.count - repeated});
      }
      chunk.runs = runs;
    }
  }
}

}  // namespace orrery::activation_recompute
