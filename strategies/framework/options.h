#pragma once

#include <array>

#include "sim/base/fields.h"
#include "sim/program/collective_algorithm.h"

namespace orrery::framework {

// A training stack's generation: the kernels it fuses, how fast its host issues them, what memory it holds.
enum class Stack : std::uint8_t {
  megatron_core,
  megatron_2021,
  megatron_deepspeed,
  deepspeed,
  fsdp,
  fsdp_compiled,
  nanotron,
  jax,
  orrery
};
inline constexpr std::array<std::string_view, 9> kStackNames{"megatron-core", "megatron-2021", "megatron-deepspeed",
                                                             "deepspeed",     "fsdp",          "fsdp-compiled",
                                                             "nanotron",      "jax",           "orrery"};

// A generation of fused attention kernels; automatic: that of the stack.
enum class AttentionKernel : std::uint8_t { automatic, flash_attention_1, flash_attention_2, flash_attention_3, cudnn };
inline constexpr std::array<std::string_view, 5> kAttentionKernelNames{
    "automatic", "flash_attention_1", "flash_attention_2", "flash_attention_3", "cudnn"};

struct Options {
  Stack stack = Stack::megatron_core;
  bool flash_attention = true;
  AttentionKernel attention_kernel = AttentionKernel::automatic;
  bool cuda_graphs = false;
  CollectiveAlgorithm collective_algorithm = CollectiveAlgorithm::automatic;
  CollectiveProtocol collective_protocol = CollectiveProtocol::automatic;

  void visit_fields(FieldVisitor& v) {
    v.field("framework", stack, kStackNames, "training stack: fused kernels, host issue rate, memory overheads");
    v.field("flash_attention", flash_attention, "fused attention that never stores the score matrix", Scope::layer);
    v.field(
        "attention_kernel", attention_kernel, kAttentionKernelNames,
        "generation of the fused attention kernels; automatic: the stack's. A device without measurements of it keeps "
        "its default");
    v.field("cuda_graphs", cuda_graphs, "blocks are launched as graphs: the host's issue cost is paid once per block");
    v.field("collective_algorithm", collective_algorithm, kCollectiveAlgorithmNames,
            "of all collectives that have it, as NCCL_ALGO forces it; automatic: the fastest, as NCCL chooses");
    v.field("collective_protocol", collective_protocol, kCollectiveProtocolNames, "the same for NCCL_PROTO");
  }
};

}  // namespace orrery::framework
