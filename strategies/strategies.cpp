// The list of strategies, in the order in which they rewrite a Program.
#include "strategies/activation_recompute/activation_recompute.h"
#include "strategies/batch/batch.h"
#include "strategies/context_parallel/context_parallel.h"
#include "strategies/data_parallel/data_parallel.h"
#include "strategies/framework/framework.h"
#include "strategies/offload/offload.h"
#include "strategies/optimizer/optimizer.h"
#include "strategies/pipeline_parallel/pipeline_parallel.h"
#include "strategies/precision/precision.h"
#include "strategies/strategy.h"
#include "strategies/tensor_parallel/tensor_parallel.h"

namespace orrery {
namespace {

// Of strategies that rewrite pieces only.
void nothing(const Scenario&, Program&) {}

constexpr Strategy kStrategies[] = {
    {"batch", "the global batch as replicas x micro-batches, with gradient accumulation", "-", batch::check,
     batch::rewrite},
    {"framework", "the training stack: fused kernels, host issue rate, memory overheads", "-", framework::check,
     framework::rewrite},
    {"precision", "bf16, fp16, fp32 and fp8 mixes", "Micikevicius et al. 2017, arXiv 1710.03740", precision::check,
     nothing, precision::rewrite_piece},
    {"tensor_parallel", "matrices divided over ranks, with sequence parallelism",
     "Shoeybi et al. 2019, arXiv 1909.08053; Korthikanti et al. 2022, arXiv 2205.05198", tensor_parallel::check,
     nothing, tensor_parallel::rewrite_piece},
    {"context_parallel", "sequences divided over ranks, ring attention", "Liu et al. 2023, arXiv 2310.01889",
     context_parallel::check, context_parallel::rewrite},
    {"pipeline_parallel", "layers divided into stages: GPipe, 1F1B, interleaved, ZB-H1, ZB-V",
     "Narayanan et al. 2021, arXiv 2104.04473; Qi et al. 2023, arXiv 2401.10241", pipeline_parallel::check,
     pipeline_parallel::rewrite},
    {"activation_recompute", "activations recomputed in the backward",
     "Chen et al. 2016, arXiv 1604.06174; Korthikanti et al. 2022", activation_recompute::check,
     activation_recompute::rewrite, activation_recompute::rewrite_piece, activation_recompute::plan_layers},
    {"optimizer", "Adam and SGD with their states", "Kingma & Ba 2014, arXiv 1412.6980", optimizer::check,
     optimizer::rewrite},
    {"data_parallel", "replicas, ZeRO-1/2/3, FSDP and HSDP",
     "Rajbhandari et al. 2020, arXiv 1910.02054; Zhao et al. 2023, arXiv 2304.11277", data_parallel::check, nothing,
     data_parallel::rewrite_piece},
    {"offload", "optimizer states and update on the CPU", "Ren et al. 2021, arXiv 2101.06840", offload::check,
     offload::rewrite},
};

}  // namespace

std::span<const Strategy> all_strategies() { return kStrategies; }

}  // namespace orrery
