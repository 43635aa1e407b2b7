// Scenarios for the tests, built in code.
#pragma once

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "models/read_model.h"
#include "sim/base/error.h"
#include "sim/hardware/read_cluster.h"
#include "sim/memory/memory.h"
#include "sim/program/check.h"
#include "sim/program/work.h"
#include "strategies/lower.h"

namespace orrery {

inline Scenario scenario_of(const char* model, const char* node, std::int64_t nodes) {
  Scenario s;
  s.model = read_model(model, {});
  s.cluster = read_cluster({{"node", node}, {"nodes", nodes}}, {});
  return s;
}

// The megatron model of Korthikanti et al. 2022, table 3, row 1, on one DGX A100: s = 2048, b = 4.
inline Scenario megatron_22b() {
  Scenario s = scenario_of("megatron-22B", "dgx-a100", 1);
  s.workload.sequence_length = 2048;
  s.workload.global_batch_size = 4;
  s.plan.batch.micro_batch_size = 4;
  s.plan.data.degree = 1;
  s.plan.tensor.degree = 8;
  s.plan.framework.flash_attention = false;
  s.plan.precision.mix = precision::Mix::fp16;
  return s;
}

// GPT-2 on nodes of eight, 64 sequences a step one by one: 16-bit parameters and gradients, ZeRO-3 as DeepSpeed has it.
inline Scenario zero3_of_deepspeed(std::int64_t nodes) {
  Scenario s = scenario_of("gpt2-1.5b", "dgx-a100", nodes);
  s.workload = {1024, 0, 64};
  s.plan.batch.micro_batch_size = 1;
  s.plan.precision.gradients = precision::GradientDtype::bf16;
  s.plan.framework.stack = framework::Stack::deepspeed;
  s.plan.data.zero_stage = 3;
  return s;
}

// What lowering it is refused with; "nothing" where it is not.
inline std::string refusal_of(const Scenario& scenario) {
  Program program;
  try {
    lower(scenario, program);
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing";
}

// The scenario's Program, proven.
inline Program proven(const Scenario& scenario) {
  Program program;
  lower(scenario, program);
  for (const Violation& v : check(program)) ADD_FAILURE() << v.text;
  return program;
}
inline const Piece& piece_named(const Program& program, std::string_view name) {
  for (const Piece& piece : program.pieces)
    if (name == piece.name) return piece;
  throw std::runtime_error("no such piece");
}
// The layer that the stages really run (recomputed variants come after the plain one).
inline const Piece& running_layer(const Program& program) {
  for (const auto& run : program.stages[0][0].runs)
    if (std::string_view(program.pieces[run.piece].name) == "layer") return program.pieces[run.piece];
  throw std::runtime_error("no layer");
}

inline int count_ops(const Block& block, OpKind kind) {
  int n = 0;
  for (const Op& op : block.ops) n += op.kind == kind;
  return n;
}

inline double saved_bytes(const Piece& piece) { return device_bytes(piece_memory(piece, 1).saved); }

}  // namespace orrery
