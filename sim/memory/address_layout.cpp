#include "sim/memory/address_layout.h"

#include <algorithm>
#include <utility>

namespace orrery {

std::int64_t most_alive(std::span<const StorageLife> lives) {
  std::vector<std::pair<std::size_t, std::int64_t>> changes;
  for (const StorageLife& life : lives) {
    if (life.begin >= life.end) continue;
    changes.emplace_back(life.begin, life.bytes);
    changes.emplace_back(life.end, -life.bytes);
  }
  std::ranges::sort(changes);  // at the same instant, ends come first
  std::int64_t now = 0, most = 0;
  for (const auto& [instant, bytes] : changes) most = std::max(most, now += bytes);
  return most;
}

AddressLayout best_fit(std::span<const StorageLife> lives) {
  return best_fit_around(lives, std::vector<std::int64_t>(lives.size(), -1));
}

AddressLayout best_fit_around(std::span<const StorageLife> lives, std::vector<std::int64_t> placed) {
  AddressLayout layout;
  layout.least_bytes = most_alive(lives);
  std::vector<std::size_t> order, done;
  for (std::size_t i = 0; i < lives.size(); ++i) {
    (placed[i] < 0 ? order : done).push_back(i);
    if (placed[i] >= 0) layout.bytes = std::max(layout.bytes, placed[i] + lives[i].bytes);
  }
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return lives[a].bytes > lives[b].bytes; });
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;  // (begin, end) of the storages that it meets
  for (const std::size_t storage : order) {
    const StorageLife& life = lives[storage];
    taken.clear();
    for (const std::size_t other : done)
      if (life.meets(lives[other])) taken.emplace_back(placed[other], placed[other] + lives[other].bytes);
    std::ranges::sort(taken);
    std::int64_t top = 0, best = -1, smallest = 0;
    for (const auto& [begin, end] : taken) {
      const std::int64_t gap = begin - top;
      if (gap >= life.bytes && (best < 0 || gap < smallest)) best = top, smallest = gap;
      top = std::max(top, end);
    }
    placed[storage] = best >= 0 ? best : top;
    layout.bytes = std::max(layout.bytes, placed[storage] + life.bytes);
    done.push_back(storage);
  }
  layout.addresses = std::move(placed);
  return layout;
}

}  // namespace orrery
