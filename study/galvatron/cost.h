// Galvatron's first cost model: time and memory of a layer under a hybrid, memory outside the layers, and the price of
// a change of hybrid between layers. README.md has the formulas and their sources.
#pragma once

#include <cstdint>
#include <vector>

#include "study/galvatron/hybrid.h"
#include "study/galvatron/profile.h"

namespace orrery::galvatron {

// Micro-batches of a replica with `samples` samples. They need not be whole.
double micro_batches(const Profile& profile, double samples, const Hybrid& hybrid);

// A layer's part of a step. Throws nothing: a profile has what its cluster's hybrids need.
double layer_seconds(const Profile& profile, const Layers& layers, const Hybrid& hybrid, std::int64_t batch);

struct LayerMemory {
  double states_mib = 0, activation_mib = 0;
  double total_mib() const { return states_mib + activation_mib; }
};
LayerMemory layer_memory(const Profile& profile, const Layers& layers, const Hybrid& hybrid, std::int64_t batch);

// Memory of a GPU besides layers, by stage.
std::vector<double> outside_mib(const Profile& profile, const Hybrid& hybrid, std::int64_t batch);

// Seconds between two layers of one stage.
double change_seconds(const Profile& profile, const Hybrid& from, const Hybrid& to, std::int64_t batch);

}  // namespace orrery::galvatron
