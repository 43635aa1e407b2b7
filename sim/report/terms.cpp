#include "sim/report/terms.h"

namespace orrery {
namespace {

constexpr std::array<const char*, kCategories> kCategoryLabels{
    "parameters", "gradients", "optimizer states", "activations", "communication buffers", "workspace"};

}  // namespace

double TimeBreakdown::total() const {
  double seconds = matmul + attention + memory_bound + recompute + host_issue + bubble + optimizer;
  for (const double waiting : exposed) seconds += waiting;
  return seconds;
}

std::vector<Term> terms_of(const TimeBreakdown& time) {
  std::vector<Term> terms{{"matmul", "matrix products", time.matmul},
                          {"attention", "attention", time.attention},
                          {"memory_bound", "memory-bound kernels", time.memory_bound},
                          {"recompute", "recomputation", time.recompute},
                          {"host_issue", "waiting for the host to launch", time.host_issue}};
  for (const StreamRow& row : kStreamRows)
    if (is_account(row.stream))
      terms.push_back({std::string("exposed_") + row.name, std::string("exposed ") + row.label,
                       time.exposed[static_cast<std::size_t>(row.stream)]});
  terms.push_back({"bubble", "pipeline bubble", time.bubble});
  terms.push_back({"optimizer", "optimizer", time.optimizer});
  return terms;
}

std::vector<MemoryTerm> terms_of(const CategoryBytes& bytes) {
  std::vector<MemoryTerm> terms;
  for (std::size_t c = 0; c < kCategories; ++c)
    terms.push_back({name_of(static_cast<Category>(c)), kCategoryLabels[c], bytes[c]});
  return terms;
}

std::vector<MemoryTerm> terms_of(const MemoryBreakdown& memory) {
  std::vector<MemoryTerm> terms = terms_of(memory.bytes.at(Place::device));
  terms.push_back({"framework", "framework", memory.framework_bytes});
  terms.push_back({"fragmentation", "fragmentation", memory.fragmentation_bytes});
  terms.push_back({name_of(Place::host), "in host memory", memory.bytes.in(Place::host)});
  terms.push_back({name_of(Place::storage), "in storage", memory.bytes.in(Place::storage)});
  return terms;
}

std::string_view flop_convention() {
  return "model FLOPs: forward and backward without recomputation; causal attention counts the lower triangle only";
}

}  // namespace orrery
