// Plans to test with.
#pragma once

#include <nlohmann/json.hpp>

#include "study/capacity/capacity_plan.h"

namespace orrery {

// Llama 3 8B on two clusters in three sizes: 32, 64, 128 devices.
inline nlohmann::json example_plan() {
  return nlohmann::json::parse(R"({
    "model": "llama-3-8b", "workload": {"sequence_length": 8192, "global_batch_size": 128},
    "tokens": 1e11, "deadline_days": 30, "budget": {"amount": 1e6, "currency": "USD"},
    "all_candidates": {
      "devices": {"least": 32, "most": 128}, "failures": "llama-3-405b", "repair_seconds": 86400,
      "restarts": "megascale", "storage": "nvidia-su-256-h100", "site": "google", "grid": "united-states",
      "plan": {"tensor_parallel": 8, "sequence_parallel": true, "zero_stage": 1, "recompute": "selective"}},
    "candidates": [
      {"name": "old", "cluster": {"node": "dgx-a100", "nodes": 4}, "price": "lambda-a100-80gb",
       "power": "a100-node-rated"},
      {"name": "new", "cluster": {"node": "dgx-h100", "nodes": 4}, "price": "lambda-h100",
       "power": "h100-node-rated"}]})");
}

inline CapacityPlan read_plan(const nlohmann::json& document) {
  return read_capacity_plan(document, {"plan.json", {}});
}

}  // namespace orrery
