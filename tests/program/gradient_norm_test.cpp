// Does a gradient norm count every element of the model once, however it is laid out?
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/program/step_end.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"
#include "strategies/strategy.h"

namespace orrery {
namespace {

Scenario scenario_of(const char* model, const char* plan) {
  nlohmann::json document = nlohmann::json::parse(R"({
    "model": {"layers": 4, "hidden": 36, "ffn": 60, "heads": 4, "vocab": 512, "max_positions": 16},
    "cluster": {"node": "dgx-h100", "nodes": 2},
    "workload": {"sequence_length": 16, "global_batch_size": 8},
    "plan": {"precision": "fp32", "data_parallel": 1}})");
  document["model"].merge_patch(nlohmann::json::parse(model));
  document["plan"].merge_patch(nlohmann::json::parse(plan));
  return read_scenario(document, {});
}

std::int64_t trained(const Program& one_rank) {
  std::int64_t elements = 0;
  for (const PieceRun& run : one_rank.line)
    for (const ParameterGradient& p : one_rank.pieces[run.piece].parameters) {
      const Tensor& t = one_rank.pieces[run.piece].tensors[p.parameter];
      if (p.gradient != kNoTensor && !t.shared) elements += run.count * t.elements();
    }
  return elements;
}

MeshGroup summed_over(const Piece& piece) {
  for (const Op& op : piece.update.ops)
    if (op.kind == OpKind::gradient_norm)
      for (const Op& sum : piece.update.ops)
        if (is_communication(sum.kind) && sum.reads[0] == op.writes[0]) return sum.group;
  return {};
}

// What one rank counts of an instance of a piece.
std::int64_t counted(const Program& program, const Piece& piece, std::int64_t rank) {
  const Mesh& mesh = program.mesh;
  std::int64_t elements = 0;
  std::vector<std::int64_t> begin;
  for (const ParameterSet& set : piece.sets) {
    const Tensor& own = piece.tensors[set.own_parameters];
    begin.push_back(-part_of(own.over[0], mesh, rank) * own.sizes[0]);
  }
  for (const ParameterGradient& p : piece.parameters) {
    const Tensor& t = piece.tensors[p.parameter];
    if (t.shared) continue;
    const ParameterSet& set = piece.sets[p.set];
    const std::int64_t first = begin[p.set];
    begin[p.set] += t.elements();
    if (p.gradient == kNoTensor) continue;
    const CountedInNorm count = counted_in_norm(program, piece, p, set.own_gradients, summed_over(piece));
    if (!count.here || mesh.coordinate(rank, count.first_of) != 0) continue;
    const bool all = mesh.coordinate(rank, count.first_of_behind) == 0;
    for (std::int64_t e = 0; e < t.elements(); ++e)
      if (first + e >= 0 && first + e < piece.tensors[set.own_gradients].sizes[0])
        elements += all || !is_behind_query_heads(t, e);
  }
  return elements;
}

// What all ranks count.
std::int64_t counted(const Program& program) {
  const MeshGroup stages = program.mesh.group(MeshAxis::pp);
  std::int64_t all = 0;
  for (std::int64_t rank = 0; rank < program.mesh.ranks(); ++rank)
    for (const Chunk& chunk : program.stages[static_cast<std::size_t>(program.mesh.coordinate(rank, stages))])
      for (const PieceRun& run : chunk.runs) all += run.count * counted(program, program.pieces[run.piece], rank);
  return all;
}

// Ranks over which the norm is not summed: they hold the same, and each group of the others counts all of it.
std::int64_t groups(const Program& program) {
  MeshGroup every, summed;
  for (std::size_t d = 0; d < program.mesh.digits().size(); ++d)
    every = every | MeshGroup::of_digit(static_cast<int>(d));
  for (const Piece& piece : program.pieces) summed = summed | summed_over(piece);
  return program.mesh.size(every.without(summed));
}

TEST(GradientNorm, CountsEveryElementOnce) {
  constexpr const char *kGpt = "{}", *kUntied = R"({"tied_embeddings": false, "kv_heads": 2})",
                       *kT5 = R"({"kind": "encoder_decoder", "layers": 2, "decoder_layers": 2, "positions": "relative",
                                  "relative_buckets": 8, "norm": "rmsnorm", "linear_bias": false})";
  for (const char* model : {kGpt, kUntied, kT5})
    for (const char* plan :
         {"{}", R"({"data_parallel": 4})", R"({"data_parallel": 4, "zero_stage": 1})",
          R"({"data_parallel": 4, "zero_stage": 3, "zero_shard_degree": 2})",
          R"({"data_parallel": 2, "zero_stage": 2, "tensor_parallel": 2, "sequence_parallel": true})",
          R"({"tensor_parallel": 4})", R"({"tensor_parallel": 4, "data_parallel": 2, "zero_stage": 3})",
          R"({"pipeline_parallel": 2})", R"({"pipeline_parallel": 4, "data_parallel": 2, "zero_stage": 1})",
          R"({"pipeline_parallel": 2, "tensor_parallel": 2, "freeze_head": true,
              "layers": [{"from": 3, "freeze": true}]})"}) {
      SCOPED_TRACE(std::string(model) + plan);
      if (model != kUntied && std::string_view(plan).find("freeze_head") != std::string_view::npos) continue;
      const Scenario scenario = scenario_of(model, plan);
      Program program, one_rank;
      lower(scenario, program);
      lower(on_one_rank(scenario), one_rank);
      EXPECT_EQ(counted(program), trained(one_rank) * groups(program));
    }
}

}  // namespace
}  // namespace orrery
