#pragma once

#include <array>

#include "sim/base/fields.h"
#include "sim/program/collective_algorithm.h"

namespace orrery::framework {

// A training stack's generation: the kernels it fuses, how fast its host issues them, what memory it holds.
enum class Stack : std::uint8_t { megatron_core, megatron_2021, deepspeed, fsdp, fsdp_compiled, orrery };
inline constexpr std::array<std::string_view, 6> kStackNames{"megatron-core", "megatron-2021", "deepspeed",
                                                             "fsdp",          "fsdp-compiled", "orrery"};

struct Options {
  Stack stack = Stack::megatron_core;
  bool flash_attention = true;
  bool cuda_graphs = false;
  CollectiveAlgorithm collective_algorithm = CollectiveAlgorithm::automatic;
  CollectiveProtocol collective_protocol = CollectiveProtocol::automatic;

  void visit_fields(FieldVisitor& v) {
    v.field("framework", stack, kStackNames, "training stack: fused kernels, host issue rate, memory overheads");
    v.field("flash_attention", flash_attention, "fused attention that never stores the score matrix");
    v.field("cuda_graphs", cuda_graphs, "blocks are launched as graphs: the host's issue cost is paid once per block");
    v.field("collective_algorithm", collective_algorithm, kCollectiveAlgorithmNames,
            "of all collectives that have it, as NCCL_ALGO forces it; automatic: the fastest, as NCCL chooses");
    v.field("collective_protocol", collective_protocol, kCollectiveProtocolNames, "the same for NCCL_PROTO");
  }
};

}  // namespace orrery::framework
