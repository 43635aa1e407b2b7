#include "study/answers/program_json.h"

#include <array>
#include <nlohmann/json.hpp>
#include <span>

#include "sim/program/work.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

// In the order of the enumerators.
constexpr std::array<const char*, 3> kWhenNames{"every_micro_batch", "first_micro_batch", "last_micro_batch"};

constexpr std::array<const char*, 3> kCoversNames{"own", "before", "last"};

OrderedJson number_of(TensorId id) { return id == kNoTensor ? OrderedJson() : OrderedJson(id); }

OrderedJson numbers_of(std::span<const TensorId> ids) {
  OrderedJson list = OrderedJson::array();
  for (const TensorId id : ids)
    if (id != kNoTensor) list.push_back(id);
  return list;
}

OrderedJson tensor_json(const Tensor& tensor) {
  OrderedJson sizes = OrderedJson::array(), axes = OrderedJson::array();
  for (int d = 0; d < tensor.rank; ++d) {
    sizes.push_back(tensor.sizes[d]);
    axes.push_back(name_of(tensor.axes[d]));
  }
  return {{"name", tensor.name},     {"dtype", name_of(tensor.dtype)},       {"sizes", std::move(sizes)},
          {"axes", std::move(axes)}, {"category", name_of(tensor.category)}, {"place", name_of(tensor.place)},
          {"bytes", tensor.bytes()}, {"resident", tensor.resident},          {"alias_of", number_of(tensor.alias_of)}};
}

OrderedJson op_json(const Program& program, const Piece& piece, const Op& op) {
  OrderedJson group = OrderedJson::array();
  const std::span<const Digit> digits = program.mesh.digits();
  for (std::size_t d = 0; d < digits.size(); ++d)
    if (op.group.contains(static_cast<int>(d))) group.push_back(digits[d].name);
  OrderedJson stages = OrderedJson::array();
  if (op.stages.has_value())
    for (const std::uint16_t stage : program.stage_groups[op.stages.value()]) stages.push_back(stage);
  return {{"kind", name_of(op.kind)},
          {"name", op.name},
          {"phase", name_of(op.phase)},
          {"stream", name_of(op.stream)},
          {"when", kWhenNames[static_cast<std::size_t>(op.when)]},
          {"reads", numbers_of(op.reads)},
          {"writes", numbers_of(op.writes)},
          {"group", std::move(group)},
          {"stages", std::move(stages)},
          {"every", op.every},
          {"count", op.count},
          {"covers", kCoversNames[static_cast<std::size_t>(op.covers)]},
          {"piece", op.is_part ? op.share : 0.0},
          {"flops", flops(op, piece.tensors)},
          {"bytes", bytes(op, piece.tensors)}};
}

OrderedJson block_json(const Program& program, const Piece& piece, const Block& block) {
  OrderedJson ops = OrderedJson::array();
  for (const Op& op : block.ops) ops.push_back(op_json(program, piece, op));
  return ops;
}

OrderedJson piece_json(const Program& program, std::size_t number) {
  const Piece& piece = program.pieces[number];
  OrderedJson tensors = OrderedJson::array(), parameters = OrderedJson::array();
  for (const Tensor& tensor : piece.tensors) tensors.push_back(tensor_json(tensor));
  for (const ParameterGradient& of : piece.parameters)
    parameters.push_back({{"parameter", number_of(of.parameter)}, {"gradient", number_of(of.gradient)}});
  return {{"name", piece_title(program, number)},
          {"layers", piece.layers},
          {"tensors", std::move(tensors)},
          {"blocks",
           {{"forward", block_json(program, piece, piece.forward)},
            {"backward", block_json(program, piece, piece.backward)},
            {"weight_gradient", block_json(program, piece, piece.weight_gradient)},
            {"update", block_json(program, piece, piece.update)}}},
          {"parameters", std::move(parameters)}};
}

OrderedJson runs_json(std::span<const PieceRun> runs) {
  OrderedJson list = OrderedJson::array();
  for (const PieceRun& run : runs) list.push_back({{"piece", run.piece}, {"count", run.count}});
  return list;
}

OrderedJson stages_json(const std::vector<std::vector<Chunk>>& stages) {
  OrderedJson list = OrderedJson::array();
  for (const std::vector<Chunk>& stage : stages) {
    OrderedJson chunks = OrderedJson::array();
    for (const Chunk& chunk : stage) chunks.push_back(runs_json(chunk.runs));
    list.push_back(std::move(chunks));
  }
  return list;
}

}  // namespace

OrderedJson program_json(const Program& program) {
  OrderedJson digits = OrderedJson::array(), pieces = OrderedJson::array();
  for (const Digit& digit : program.mesh.digits())
    digits.push_back(
        {{"name", digit.name}, {"axis", name_of(digit.axis)}, {"size", digit.size}, {"stride", digit.stride}});
  for (std::size_t p = 0; p < program.pieces.size(); ++p) pieces.push_back(piece_json(program, p));
  const ModelWork& model = program.model;
  OrderedJson work = {{"flops_per_step", model.flops_per_step},
                      {"executed_flops_per_step", model.executed_flops_per_step},
                      {"tokens_per_step", model.tokens_per_step},
                      {"sequences_per_step", model.sequences_per_step},
                      {"parameters", model.parameters}};
  if (model.active_parameters < model.parameters) work["active_parameters"] = model.active_parameters;
  OrderedJson json = {{"mesh", {{"ranks", program.mesh.ranks()}, {"digits", std::move(digits)}}},
                      {"pieces", std::move(pieces)},
                      {"line", runs_json(program.line)},
                      {"stages", stages_json(program.stages)},
                      {"schedule",
                       {{"micro_batches", program.schedule.micro_batches},
                        {"chunks", program.schedule.chunks},
                        {"split_backward", program.schedule.split_backward}}},
                      {"model", std::move(work)}};
  if (program.other_classes.empty()) return json;
  json["micro_batch_class"] = program.micro_batch_class;
  OrderedJson& others = json["other_classes"] = OrderedJson::array();
  for (const MicroBatchClass& other : program.other_classes)
    others.push_back({{"line", runs_json(other.line)}, {"stages", stages_json(other.stages)}});
  return json;
}

}  // namespace orrery
