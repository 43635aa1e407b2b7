#include "sim/memory/address_layout.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "sim/program/liveness.h"

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

// In programs with the solver, the definitions in sim/memory/cbc take the place of these.
[[gnu::weak]] bool built_with_cbc() { return false; }
[[gnu::weak]] AddressLayout smallest_layout(std::span<const StorageLife>, const LayoutLimits&) {
  throw std::logic_error("this program is built without COIN-OR CBC; orrery-des has it");
}

namespace {

constexpr std::size_t kNever = static_cast<std::size_t>(-1);

std::vector<StorageLife> lives_of(const AllocationTrace& trace, std::int64_t granule) {
  std::vector<StorageLife> lives;
  for (const Allocation& a : trace.allocations)
    lives.push_back({(a.bytes + granule - 1) / granule * granule, kNever, trace.events.size()});
  for (std::size_t e = 0; e < trace.events.size(); ++e) {
    const auto [allocation, frees] = trace.events[e];
    if (frees) {
      lives[allocation].end = e;
    } else {
      lives[allocation].begin = e;
    }
  }
  return lives;
}

}  // namespace

BiLevelLayout bi_level_plan(const Program& program, const AllocationTrace& trace, std::int64_t granule,
                            const LayOut& lay_out) {
  const std::vector<StorageLife> lives = lives_of(trace, granule);
  BiLevelLayout plan;
  plan.alive_bytes = most_alive(lives);
  plan.addresses.assign(lives.size(), 0);

  // Storages that live for the whole step lie side by side.
  for (std::size_t a = 0; a < lives.size(); ++a) {
    if (lives[a].begin >= trace.step_begin) continue;
    plan.addresses[a] = plan.resident_bytes;
    plan.resident_bytes += lives[a].bytes;
  }

  // Level 1.
  using Asked = std::vector<std::pair<std::int64_t, std::pair<std::size_t, std::size_t>>>;  // bytes, lifetimes
  std::map<std::pair<std::pair<std::uint16_t, std::uint8_t>, Asked>, std::size_t> known;
  std::vector<std::uint8_t> inside(lives.size());
  std::vector<StorageLife> of_step;
  std::vector<std::vector<std::uint32_t>> holds;  // by storage of level 2: its allocations
  std::vector<std::size_t> layout_of;             // by storage of level 2: kNever, or the index of the block's layout
  for (const AllocationTrace::BlockRun& run : trace.blocks) {
    if (program.pieces[run.piece].layers == 0 || run.block == kUpdateBlock) continue;
    std::vector<StorageLife> of_block;
    std::vector<std::uint32_t> allocations;
    Asked asked;
    for (std::size_t e = run.begin; e < run.end; ++e) {
      const auto [allocation, frees] = trace.events[e];
      const StorageLife& life = lives[allocation];
      if (frees || life.end >= run.end) continue;
      of_block.push_back({life.bytes, life.begin - run.begin, life.end - run.begin});
      allocations.push_back(allocation);
      inside[allocation] = 1;
      asked.emplace_back(life.bytes, std::pair(of_block.back().begin, of_block.back().end));
    }
    if (of_block.empty()) continue;
    const auto [found, fresh] = known.try_emplace({{run.piece, run.block}, std::move(asked)}, plan.blocks.size());
    if (fresh) plan.blocks.push_back({run.piece, run.block, 0, of_block.size(), lay_out(of_block)});
    BlockLayout& block = plan.blocks[found->second];
    ++block.instances;
    of_step.push_back({block.layout.bytes, run.begin, run.end});
    holds.push_back(std::move(allocations));
    layout_of.push_back(found->second);
  }

  // Level 2.
  for (std::size_t a = 0; a < lives.size(); ++a) {
    if (inside[a] != 0 || lives[a].begin < trace.step_begin) continue;
    of_step.push_back(lives[a]);
    holds.push_back({static_cast<std::uint32_t>(a)});
    layout_of.push_back(kNever);
  }
  plan.storages = of_step.size();
  plan.step = lay_out(of_step);
  for (std::size_t s = 0; s < of_step.size(); ++s)
    for (std::size_t i = 0; i < holds[s].size(); ++i) {
      const std::int64_t within = layout_of[s] == kNever ? 0 : plan.blocks[layout_of[s]].layout.addresses[i];
      plan.addresses[holds[s][i]] = plan.resident_bytes + plan.step.addresses[s] + within;
    }
  return plan;
}

Replay replay(const AllocationTrace& trace, const BiLevelLayout& plan, std::int64_t granule) {
  constexpr std::int64_t kSegment = std::int64_t{1} << 32;  // so that no address is 0
  Replay result;
  CachingAllocator::Statistics& s = result.statistics;
  std::map<std::int64_t, CachingAllocator::Block> held;  // by address
  for (std::size_t e = 0; e < trace.events.size(); ++e) {
    const auto [number, frees] = trace.events[e];
    const std::int64_t requested = trace.allocations[number].bytes, address = kSegment + plan.addresses[number],
                       bytes = (requested + granule - 1) / granule * granule;
    if (bytes == 0) continue;
    s.requested += frees ? -requested : requested;
    s.allocated += frees ? -bytes : bytes;
    s.peak_requested = std::max(s.peak_requested, s.requested);
    s.peak_allocated = std::max(s.peak_allocated, s.allocated);
    if (frees) {
      held.erase(address);
    } else {
      held[address] = {address, bytes, requested, true, number};
    }
    if (e < trace.step_begin) continue;
    using enum CachingAllocator::Action;
    result.events.push_back({frees ? free : alloc, address, bytes, 0, number});
  }
  s.reserved = s.peak_reserved = plan.bytes();
  s.segments = 1;
  CachingAllocator::Segment segment{.address = kSegment, .bytes = plan.bytes(), .blocks = {}};
  std::int64_t end = kSegment;
  const auto gap = [&](std::int64_t until) {
    if (until > end) segment.blocks.push_back({.address = end, .bytes = until - end});
  };
  for (const auto& [address, block] : held) {
    gap(address);
    segment.blocks.push_back(block);
    end = address + block.bytes;
  }
  gap(kSegment + plan.bytes());
  result.segments.push_back(std::move(segment));
  return result;
}

}  // namespace orrery
