#include "study/answers/program_json.h"

#include <array>
#include <nlohmann/json.hpp>
#include <span>

#include "sim/program/liveness.h"
#include "sim/program/work.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

// In the order of the enumerators.
constexpr std::array<const char*, 3> kWhenNames{"every_micro_batch", "first_micro_batch", "last_micro_batch"};

constexpr std::array<const char*, 3> kCoversNames{"own", "before", "last"};

OrderedJson id_json(TensorId id) { return id == kNoTensor ? OrderedJson() : OrderedJson(id); }

OrderedJson numbers_of(std::span<const TensorId> ids) {
  OrderedJson list = OrderedJson::array();
  for (const TensorId id : ids)
    if (id != kNoTensor) list.push_back(id);
  return list;
}

}  // namespace

// The library finds these beside the types, also for elements of lists.
static void to_json(OrderedJson& json, const Tensor& tensor) {
  OrderedJson sizes = OrderedJson::array(), axes = OrderedJson::array();
  for (int d = 0; d < tensor.rank; ++d) {
    sizes.push_back(tensor.sizes[d]);
    axes.push_back(name_of(tensor.axes[d]));
  }
  json = {{"name", tensor.name},     {"dtype", name_of(tensor.dtype)},       {"sizes", std::move(sizes)},
          {"axes", std::move(axes)}, {"category", name_of(tensor.category)}, {"place", name_of(tensor.place)},
          {"bytes", tensor.bytes()}, {"resident", tensor.resident},          {"alias_of", id_json(tensor.alias_of)}};
}
static void to_json(OrderedJson& json, const ParameterGradient& of) {
  json = {{"parameter", id_json(of.parameter)}, {"gradient", id_json(of.gradient)}};
}
static void to_json(OrderedJson& json, const PieceRun& run) { json = {{"piece", run.piece}, {"count", run.count}}; }
static void to_json(OrderedJson& json, const Chunk& chunk) { json = chunk.runs; }
static void to_json(OrderedJson& json, const MicroBatchClass& other) {
  json = {{"line", other.line}, {"stages", other.stages}};
}
static void to_json(OrderedJson& json, const Digit& digit) {
  json = {{"name", digit.name}, {"axis", name_of(digit.axis)}, {"size", digit.size}, {"stride", digit.stride}};
}

namespace {

OrderedJson op_json(const Program& program, const Piece& piece, const Op& op) {
  OrderedJson group = OrderedJson::array(), turns = OrderedJson::array(), stages = OrderedJson::array();
  const std::span<const Digit> digits = program.mesh.digits();
  for (std::size_t d = 0; d < digits.size(); ++d) {
    if (op.group.contains(static_cast<int>(d))) group.push_back(digits[d].name);
    if (op.turns.contains(static_cast<int>(d))) turns.push_back(digits[d].name);
  }
  if (op.stages.has_value()) stages = program.stage_groups[op.stages.value()];
  return {{"kind", name_of(op.kind)},
          {"name", op.name},
          {"phase", name_of(op.phase)},
          {"stream", name_of(op.stream)},
          {"when", kWhenNames[static_cast<std::size_t>(op.when)]},
          {"reads", numbers_of(op.reads)},
          {"writes", numbers_of(op.writes)},
          {"group", std::move(group)},
          {"turns", std::move(turns)},
          {"stages", std::move(stages)},
          {"every", op.every},
          {"count", op.count},
          {"covers", kCoversNames[static_cast<std::size_t>(op.covers)]},
          {"piece", op.is_part ? op.share : 0.0},
          {"flops", flops(op, piece.tensors)},
          {"bytes", bytes(op, piece.tensors)}};
}

OrderedJson piece_json(const Program& program, std::size_t number) {
  const Piece& piece = program.pieces[number];
  OrderedJson blocks;
  for (std::size_t b = 0; b < kBlocks.size(); ++b) {
    OrderedJson& ops = blocks[kBlockNames[b]] = OrderedJson::array();
    for (const Op& op : (piece.*kBlocks[b]).ops) ops.push_back(op_json(program, piece, op));
  }
  return {{"name", piece_title(program, number)},
          {"layers", piece.layers},
          {"tensors", piece.tensors},
          {"blocks", std::move(blocks)},
          {"parameters", piece.parameters}};
}

}  // namespace

OrderedJson program_json(const Program& program) {
  OrderedJson pieces = OrderedJson::array();
  for (std::size_t p = 0; p < program.pieces.size(); ++p) pieces.push_back(piece_json(program, p));
  const ModelWork& model = program.model;
  OrderedJson work = {{"flops_per_step", model.flops_per_step},
                      {"executed_flops_per_step", model.executed_flops_per_step},
                      {"tokens_per_step", model.tokens_per_step},
                      {"sequences_per_step", model.sequences_per_step},
                      {"parameters", model.parameters}};
  if (model.active_parameters < model.parameters) work["active_parameters"] = model.active_parameters;
  OrderedJson json = {{"mesh", {{"ranks", program.mesh.ranks()}, {"digits", program.mesh.digits()}}},
                      {"pieces", std::move(pieces)},
                      {"line", program.line},
                      {"stages", program.stages},
                      {"schedule",
                       {{"micro_batches", program.schedule.micro_batches},
                        {"chunks", program.schedule.chunks},
                        {"split_backward", program.schedule.split_backward}}},
                      {"model", std::move(work)}};
  if (program.other_classes.empty()) return json;
  json["micro_batch_class"] = program.micro_batch_class;
  json["other_classes"] = program.other_classes;
  return json;
}

}  // namespace orrery
