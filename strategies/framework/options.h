#pragma once

#include <array>
#include <string>

#include "sim/base/fields.h"
#include "sim/program/op.h"

namespace orrery::framework {

// A version of a training framework: the kernels it fuses, how fast its host issues them, how much memory it holds.
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

// A generation of fused attention kernels; automatic: the stack's.
enum class AttentionKernel : std::uint8_t { automatic, flash_attention_1, flash_attention_2, flash_attention_3, cudnn };
inline constexpr std::array<std::string_view, 5> kAttentionKernelNames{
    "automatic", "flash_attention_1", "flash_attention_2", "flash_attention_3", "cudnn"};

// How the loss handles the logits; automatic: as the stack does.
//   unfused  PyTorch's cross_entropy as it is: fp32 logits, their log-softmax and both gradients are tensors
//   fp32     one kernel each way on a copy of the logits in fp32 (Megatron-LM's vocab_parallel_cross_entropy)
//   fused    one kernel each way on the logits as they are (torch.compile, Liger)
enum class CrossEntropy : std::uint8_t { automatic, unfused, fp32, fused };
inline constexpr std::array<std::string_view, 4> kCrossEntropyNames{"automatic", "unfused", "fp32", "fused"};

// Axes from neighbouring ranks outwards; Megatron's default.
inline constexpr const char* kMeshOrder = "tp-cp-ep-dp-pp";

struct Options {
  Stack stack = Stack::megatron_core;
  bool flash_attention = true;
  AttentionKernel attention_kernel = AttentionKernel::automatic;
  CrossEntropy cross_entropy = CrossEntropy::automatic;
  bool cuda_graphs = false, graphs_hold_experts = false;
  CollectiveAlgorithm collective_algorithm = CollectiveAlgorithm::automatic;
  CollectiveProtocol collective_protocol = CollectiveProtocol::automatic;
  std::string mesh_order = kMeshOrder;

  void visit_fields(FieldVisitor& v) {
    v.field("framework", stack, kStackNames, "training stack: fused kernels, host issue rate, memory overheads");
    v.field("flash_attention", flash_attention, "fused attention that never stores the score matrix", Scope::layer);
    v.field("attention_kernel", attention_kernel, kAttentionKernelNames,
            "version of the fused attention kernels; automatic: the framework's. Devices without measurements of it "
            "use their default");
    v.field("cross_entropy", cross_entropy, kCrossEntropyNames,
            "the loss: PyTorch's own on fp32 logits (unfused), one kernel each way on fp32 logits (fp32) or on the "
            "logits as they are (fused); automatic: the framework's");
    v.field("cuda_graphs", cuda_graphs, "blocks are launched as graphs: the host's issue cost is paid once per block");
    v.field(
        "cuda_graphs_of_experts", graphs_hold_experts,
        "the graphs hold dropless experts as well, whose shapes routing decides (full-iteration graphs with room for "
        "any number of tokens); false: the host issues these kernels");
    v.field("collective_algorithm", collective_algorithm, kForcedAlgorithmNames,
            "algorithm of all collectives that support it, like NCCL_ALGO; automatic: the fastest");
    v.field("collective_protocol", collective_protocol, kCollectiveProtocolNames,
            "protocol of all collectives that support it, like NCCL_PROTO; automatic: the fastest");
    v.field("mesh_order", mesh_order,
            "axes from neighbouring ranks outwards, as Megatron-LM writes them; tp-cp-ep-pp-dp is its "
            "--use-tp-pp-dp-mapping",
            Scope::mesh);
  }
};

}  // namespace orrery::framework
