// The list of strategies, in the order in which they rewrite a Program.
#include "strategies/activation_offload/activation_offload.h"
#include "strategies/activation_recompute/activation_recompute.h"
#include "strategies/all_gather_context/all_gather_context.h"
#include "strategies/batch/batch.h"
#include "strategies/context_parallel/context_parallel.h"
#include "strategies/data_parallel/data_parallel.h"
#include "strategies/dts_gate/dts_gate.h"
#include "strategies/expert_parallel/expert_parallel.h"
#include "strategies/flexmoe/flexmoe.h"
#include "strategies/fpdt/fpdt.h"
#include "strategies/framework/framework.h"
#include "strategies/freeze/freeze.h"
#include "strategies/fsmoe/fsmoe.h"
#include "strategies/gradient_accumulation/gradient_accumulation.h"
#include "strategies/loongtrain/loongtrain.h"
#include "strategies/memo/memo.h"
#include "strategies/mics/mics.h"
#include "strategies/offload/offload.h"
#include "strategies/optimizer/optimizer.h"
#include "strategies/packed_documents/packed_documents.h"
#include "strategies/pipeline_parallel/pipeline_parallel.h"
#include "strategies/precision/precision.h"
#include "strategies/strategy.h"
#include "strategies/tensor_parallel/tensor_parallel.h"
#include "strategies/usp/usp.h"
#include "strategies/zeppelin/zeppelin.h"
#include "strategies/zeropp/zeropp.h"

namespace orrery {
namespace {

// For strategies that only rewrite pieces.
void nothing(const Scenario&, Program&) {}
// For strategies whose every plan can be lowered.
void accepted(const Scenario&) {}

constexpr Strategy kStrategies[] = {
    {.name = "batch",
     .summary = "the global batch as replicas x micro-batches, with gradient accumulation",
     .paper = "-",
     .check = batch::check,
     .rewrite = batch::rewrite,
     .search_axes = batch::search_axes},
    {.name = "framework",
     .summary = "the training stack: fused kernels, host issue rate, memory overheads",
     .paper = "-",
     .check = framework::check,
     .rewrite = framework::rewrite,
     .search_axes = framework::search_axes},
    {.name = "freeze",
     .summary = "parameters that are not trained: layers, embedding, head",
     .paper = "-",
     .check = freeze::check,
     .rewrite = freeze::rewrite,
     .words = freeze::words},
    {.name = "precision",
     .summary = "bf16, fp16, fp32, fp8 and nvfp4 mixes",
     .paper = "Micikevicius et al. 2017, arXiv 1710.03740",
     .check = precision::check,
     .rewrite = precision::rewrite,
     .rewrite_piece = precision::rewrite_piece,
     .check_runnable = precision::check_runnable},
    {.name = "tensor_parallel",
     .summary = "matrices divided over ranks, with sequence parallelism",
     .paper = "Shoeybi et al. 2019, arXiv 1909.08053; Korthikanti et al. 2022, arXiv 2205.05198",
     .check = tensor_parallel::check,
     .rewrite = nothing,
     .rewrite_piece = tensor_parallel::rewrite_piece,
     .add_digits = tensor_parallel::add_digits,
     .disable = tensor_parallel::disable,
     .ranks = tensor_parallel::ranks,
     .words = tensor_parallel::words,
     .check_runnable = tensor_parallel::check_runnable,
     .search_axes = tensor_parallel::search_axes},
    {.name = "context_parallel",
     .summary = "sequences divided over ranks, ring attention",
     .paper = "Liu et al. 2023, arXiv 2310.01889",
     .check = context_parallel::check,
     .rewrite = nothing,
     .rewrite_piece = context_parallel::rewrite_piece,
     .add_digits = context_parallel::add_digits,
     .disable = context_parallel::disable,
     .ranks = context_parallel::ranks,
     .words = context_parallel::words,
     .context_types = context_parallel::kTypes,
     .check_runnable = context_parallel::check_runnable,
     .search_axes = context_parallel::search_axes},
    {.name = "usp",
     .summary = "sequences divided over ranks that exchange heads for positions, alone or in rings",
     .paper = "Jacobs et al. 2023, arXiv 2309.14509; Fang & Zhao 2024, arXiv 2405.07719",
     .check = usp::check,
     .rewrite = nothing,
     .rewrite_piece = usp::rewrite_piece,
     .add_digits = usp::add_digits,
     .disable = usp::disable,
     .words = usp::words,
     .context_types = usp::kTypes},
    {.name = "loongtrain",
     .summary = "rings of rings: keys pass round an inner ring while those of the next are in transfer",
     .paper = "Gu et al. 2024, arXiv 2406.18485",
     .check = loongtrain::check,
     .rewrite = nothing,
     .disable = loongtrain::disable,
     .words = loongtrain::words,
     .search_axes = loongtrain::search_axes},
    {.name = "fpdt",
     .summary = "sequences in chunks that exchange heads, attend online and are kept in host memory",
     .paper = "Yao et al. 2024, arXiv 2408.16978",
     .check = fpdt::check,
     .rewrite = nothing,
     .rewrite_piece = fpdt::rewrite_piece,
     .add_digits = fpdt::add_digits,
     .disable = fpdt::disable,
     .words = fpdt::words,
     .context_types = fpdt::kTypes},
    {.name = "zeppelin",
     .summary = "documents on one rank, the ranks of a node or several nodes, depending on their length",
     .paper = "arXiv 2509.21841",
     .check = zeppelin::check,
     .rewrite = zeppelin::rewrite,
     .add_digits = zeppelin::add_digits,
     .disable = zeppelin::disable,
     .words = zeppelin::words,
     .context_types = zeppelin::kTypes,
     .check_runnable = zeppelin::check_runnable},
    {.name = "all_gather_context",
     .summary = "sequences divided over ranks that gather all keys and values",
     .paper = "Llama Team 2024, arXiv 2407.21783",
     .check = all_gather_context::check,
     .rewrite = nothing,
     .rewrite_piece = all_gather_context::rewrite_piece,
     .add_digits = all_gather_context::add_digits,
     .words = all_gather_context::words,
     .context_types = all_gather_context::kTypes},
    {.name = "expert_parallel",
     .summary = "experts divided over ranks, with tokens sent to them and back",
     .paper = "Lepikhin et al. 2020, arXiv 2006.16668; Liu et al. 2025, arXiv 2504.14960",
     .check = expert_parallel::check,
     .rewrite = expert_parallel::rewrite,
     .control = expert_parallel::control,
     .rewrite_piece = expert_parallel::rewrite_piece,
     .fold = expert_parallel::fold,
     .disable = expert_parallel::disable,
     .words = expert_parallel::words,
     .make_runnable = expert_parallel::make_runnable,
     .check_runnable = expert_parallel::check_runnable,
     .search_axes = expert_parallel::search_axes},
    {.name = "fsmoe",
     .summary = "layers with experts in chunks: all-to-alls, gathers within nodes and experts overlap",
     .paper = "Pan et al. 2025, arXiv 2501.10714; Hwang et al. 2023, arXiv 2206.03382 (Tutel)",
     .check = fsmoe::check,
     .rewrite = nothing,
     .rewrite_piece = fsmoe::rewrite_piece,
     .shard = fsmoe::shard,
     .disable = fsmoe::disable,
     .check_runnable = fsmoe::check_runnable,
     .search_axes = fsmoe::search_axes},
    {.name = "dts_gate",
     .summary = "a gate that sends tokens to nearly all experts at first, and to one in the end",
     .paper = "Nie et al. 2021, arXiv 2112.14397",
     .check = dts_gate::check,
     .rewrite = nothing,
     .settle = dts_gate::settle,
     .control = dts_gate::control,
     .rewrite_piece = dts_gate::rewrite_piece,
     .make_runnable = dts_gate::make_runnable,
     .begins_anew = dts_gate::begins_anew,
     .check_runnable = dts_gate::check_runnable},
    {.name = "flexmoe",
     .summary = "copies of busy experts, moved between steps",
     .paper = "Nie et al. 2023, arXiv 2304.03946; Skiadopoulos et al. 2025, arXiv 2504.19925 (SYMI)",
     .check = flexmoe::check,
     .rewrite = flexmoe::rewrite,
     .settle = flexmoe::settle,
     .control = flexmoe::control,
     .disable = flexmoe::disable,
     .make_runnable = flexmoe::make_runnable,
     .begins_anew = flexmoe::begins_anew,
     .check_runnable = flexmoe::check_runnable},
    {.name = "pipeline_parallel",
     .summary = "layers divided into stages: GPipe, 1F1B, interleaved, ZB-H1, ZB-V",
     .paper = "Narayanan et al. 2021, arXiv 2104.04473; Qi et al. 2023, arXiv 2401.10241",
     .check = pipeline_parallel::check,
     .rewrite = pipeline_parallel::rewrite,
     .add_digits = pipeline_parallel::add_digits,
     .disable = pipeline_parallel::disable,
     .ranks = pipeline_parallel::ranks,
     .words = pipeline_parallel::words,
     .notes = pipeline_parallel::notes,
     .write_out = pipeline_parallel::write_out,
     .search_axes = pipeline_parallel::search_axes},
    {.name = "activation_recompute",
     .summary = "activations recomputed in the backward",
     .paper = "Chen et al. 2016, arXiv 1604.06174; Korthikanti et al. 2022",
     .check = activation_recompute::check,
     .rewrite = activation_recompute::rewrite,
     .rewrite_piece = activation_recompute::rewrite_piece,
     .plan_layers = activation_recompute::plan_layers,
     .disable = activation_recompute::disable,
     .words = activation_recompute::words,
     .search_axes = activation_recompute::search_axes},
    {.name = "activation_offload",
     .summary = "activations kept in host memory until the backward",
     .paper = "-",
     .check = activation_offload::check,
     .rewrite = nothing,
     .rewrite_piece = activation_offload::rewrite_piece,
     .plan_layers = activation_offload::plan_layers,
     .disable = activation_offload::disable,
     .words = activation_offload::words,
     .search_axes = activation_offload::search_axes},
    {.name = "memo",
     .summary = "activations swapped to host memory token by token, the rest recomputed",
     .paper = "Zhao et al. 2024, arXiv 2407.12117",
     .check = memo::check,
     .rewrite = nothing,
     .rewrite_piece = memo::rewrite_piece,
     .plan_layers = memo::plan_layers,
     .disable = memo::disable,
     .words = memo::words,
     .search_axes = memo::search_axes},
    {.name = "gradient_accumulation",
     .summary = "gradients of micro-batches accumulated by products or by separate kernels",
     .paper = "-",
     .check = accepted,
     .rewrite = nothing,
     .rewrite_piece = gradient_accumulation::rewrite_piece},
    {.name = "optimizer",
     .summary = "Adam and SGD with their states",
     .paper = "Kingma & Ba 2014, arXiv 1412.6980",
     .check = optimizer::check,
     .rewrite = optimizer::rewrite,
     .check_runnable = optimizer::check_runnable},
    {.name = "zeropp",
     .summary = "ZeRO++: a second copy of the weights in a smaller group (hpZ)",
     .paper = "Wang et al. 2023, arXiv 2306.10209",
     .check = zeropp::check,
     .rewrite = nothing,
     .shard = zeropp::shard,
     .add_digits = zeropp::add_digits,
     .disable = zeropp::disable,
     .words = zeropp::words,
     .search_axes = zeropp::search_axes},
    {.name = "mics",
     .summary = "MiCS: states sharded over partition groups, gradients reduced in two hops",
     .paper = "Zhang et al. 2022, arXiv 2205.00119",
     .check = mics::check,
     .rewrite = nothing,
     .shard = mics::shard,
     .add_digits = mics::add_digits,
     .disable = mics::disable,
     .words = mics::words},
    {.name = "data_parallel",
     .summary = "replicas, ZeRO-1/2/3, FSDP and HSDP",
     .paper = "Rajbhandari et al. 2020, arXiv 1910.02054; Zhao et al. 2023, arXiv 2304.11277",
     .check = data_parallel::check,
     .rewrite = nothing,
     .rewrite_piece = data_parallel::rewrite_piece,
     .add_digits = data_parallel::add_digits,
     .disable = data_parallel::disable,
     .words = data_parallel::words,
     .check_runnable = data_parallel::check_runnable,
     .search_axes = data_parallel::search_axes},
    {.name = "offload",
     .summary = "optimizer states in host memory and updates on the CPU",
     .paper = "Ren et al. 2021, arXiv 2101.06840",
     .check = offload::check,
     .rewrite = offload::rewrite,
     .disable = offload::disable,
     .words = offload::words,
     .search_axes = offload::search_axes},
    // After all others: it copies what they have made of the layers.
    {.name = "packed_documents",
     .summary = "sequences packed from documents of unequal length, which attention does not leave",
     .paper = "Krell et al. 2021, arXiv 2107.02027",
     .check = packed_documents::check,
     .rewrite = packed_documents::rewrite,
     .control = packed_documents::control,
     .begins_anew = packed_documents::begins_anew},
};

}  // namespace

std::span<const Strategy> all_strategies() { return kStrategies; }

std::span<const std::string_view> context_parallel::type_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const Strategy& strategy : kStrategies)
      all.insert(all.end(), strategy.context_types.begin(), strategy.context_types.end());
    return all;
  }();
  return names;
}

Scenario on_one_rank(const Scenario& scenario) {
  Scenario one = scenario;
  for (const Strategy& strategy : kStrategies)
    if (strategy.disable != nullptr) {
      strategy.disable(one.plan);
      for (LayerRange& range : one.plan.layers) strategy.disable(range.plan);
    }
  // The loss compares loads over the tokens of all replicas together.
  if (one.model.aux_loss > 0 && one.model.load_balancing == LoadBalancing::global_aux_loss)
    one.plan.batch.micro_batch_size *= data_parallel_degree(scenario);
  return one;
}

Scenario runnable(const Scenario& scenario) {
  Scenario run = scenario;
  for (const Strategy& strategy : kStrategies)
    if (strategy.make_runnable != nullptr) strategy.make_runnable(run);
  return run;
}

bool begins_anew(const Scenario& scenario) {
  return std::ranges::any_of(kStrategies, [&](const Strategy& strategy) {
    return strategy.begins_anew != nullptr && strategy.begins_anew(scenario);
  });
}

std::vector<std::string_view> all_plan_words() {
  std::vector<std::string_view> words;
  for (const Strategy& strategy : kStrategies)
    if (strategy.words != nullptr)
      for (const PlanWord& word : strategy.words()) words.push_back(word.word);
  return words;
}

std::vector<std::string> plan_words(const Scenario& scenario) {
  std::vector<std::string> words;
  for (const Strategy& strategy : kStrategies)
    if (strategy.words != nullptr)
      for (const PlanWord& word : strategy.words())
        if (word.used(scenario)) words.emplace_back(word.word);
  return words;
}

}  // namespace orrery
