#include "sim/memory/caching_allocator.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace orrery {
namespace {

constexpr std::int64_t rounded_up(std::int64_t bytes, std::int64_t step) { return (bytes + step - 1) / step * step; }

}  // namespace

void CachingAllocator::note(Action action, std::int64_t address, std::int64_t bytes, int stream, std::uint32_t tag) {
  if (events_ != nullptr) events_->push_back({action, address, bytes, stream, tag});
}

void CachingAllocator::reserve(std::int64_t bytes) {
  statistics_.reserved += bytes;
  statistics_.peak_reserved = std::max(statistics_.peak_reserved, statistics_.reserved);
}

CachingAllocator::Free CachingAllocator::free_key(Pieces::const_iterator piece) const {
  const Segment& area = areas_.at(piece->second.segment);
  return {{area.stream, area.small}, piece->second.bytes, piece->first};
}

bool CachingAllocator::joins(Pieces::const_iterator a, Pieces::const_iterator b) const {
  return a->second.segment == b->second.segment && a->first + a->second.bytes == b->first;
}

std::optional<CachingAllocator::Pieces::iterator> CachingAllocator::find(const Pool& pool, std::int64_t bytes) {
  const auto found = free_.lower_bound({pool, bytes, 0});
  if (found == free_.end() || std::get<Pool>(*found) != pool) return std::nullopt;
  const auto piece = pieces_.find(std::get<2>(*found));
  free_.erase(found);
  return piece;
}

std::optional<CachingAllocator::Pieces::iterator> CachingAllocator::new_segment(const Pool& pool, std::int64_t bytes) {
  if (options_.expandable_segments) return expanded(pool, bytes);
  const std::int64_t size = pool.second                ? kSmallSegment
                            : bytes < kLeastOwnSegment ? kLargeSegment
                                                       : rounded_up(bytes, kSegmentStep);
  if (size > options_.capacity - statistics_.reserved) return std::nullopt;
  const std::int64_t address = next_address_;
  next_address_ += size;
  areas_[address] = {address, size, pool.first, pool.second, {}};
  ++statistics_.segments;
  reserve(size);
  note(Action::segment_alloc, address, size, pool.first);
  return pieces_.insert({address, {.address = address, .bytes = size, .segment = address}}).first;
}

// Adds pages at the end of the pool's segment, after the free part there.
std::optional<CachingAllocator::Pieces::iterator> CachingAllocator::expanded(const Pool& pool, std::int64_t bytes) {
  const auto [place, is_new] = expanding_.try_emplace(pool, next_address_);
  if (is_new) {
    next_address_ += kRoomToGrow;
    areas_[place->second] = {place->second, 0, pool.first, pool.second, {}};
    ++statistics_.segments;
  }
  Segment& area = areas_.at(place->second);
  const std::int64_t end = place->second + area.bytes;
  auto last = pieces_.lower_bound(end);
  std::int64_t free_at_end = 0;
  if (last != pieces_.begin()) {
    --last;
    if (last->second.segment == place->second && !last->second.allocated) free_at_end = last->second.bytes;
  }
  const std::int64_t more = rounded_up(bytes - free_at_end, pool.second ? kSmallSegment : kLargeSegment);
  if (more > options_.capacity - statistics_.reserved) return std::nullopt;
  area.bytes += more;
  reserve(more);
  note(Action::segment_alloc, end, more, pool.first);
  if (free_at_end == 0) return pieces_.insert({end, {.address = end, .bytes = more, .segment = place->second}}).first;
  free_.erase(free_key(last));
  last->second.bytes += more;
  return last;
}

// Returns segments without allocated blocks to the device; for expandable segments, the free pages at their ends.
void CachingAllocator::give_back() {
  for (auto next = areas_.begin(); next != areas_.end();) {
    const auto area = next++;
    const auto end = pieces_.lower_bound(area->first + area->second.bytes);
    if (area->second.bytes == 0 || end == pieces_.begin()) continue;
    const auto last = std::prev(end);
    Block& piece = last->second;
    if (piece.segment != area->first || piece.allocated) continue;
    if (!options_.expandable_segments && last->first != area->first) continue;
    const std::int64_t page = area->second.small ? kSmallSegment : kLargeSegment,
                       less = options_.expandable_segments ? piece.bytes / page * page : piece.bytes;
    if (less == 0) continue;
    free_.erase(free_key(last));
    piece.bytes -= less;
    area->second.bytes -= less;
    statistics_.reserved -= less;
    note(Action::segment_free, area->first + area->second.bytes, less, area->second.stream);
    if (piece.bytes > 0)
      free_.insert(free_key(last));
    else
      pieces_.erase(last);
    if (options_.expandable_segments) continue;
    --statistics_.segments;
    areas_.erase(area);
  }
}

std::optional<std::int64_t> CachingAllocator::allocate(std::int64_t bytes, int stream, std::uint32_t tag) {
  if (bytes == 0) return 0;
  const std::int64_t size = rounded_up(bytes, kLeastBlock);
  const Pool pool{stream, size <= kSmallRequest};
  std::optional<Pieces::iterator> found = find(pool, size);
  if (!found) found = new_segment(pool, size);
  if (!found) {
    ++statistics_.retries;
    give_back();
    found = find(pool, size);  // the rest of the last page that an expandable segment keeps
    if (!found) found = new_segment(pool, size);
    if (!found) return std::nullopt;
  }
  const Pieces::iterator piece = *found;
  const std::int64_t left = piece->second.bytes - size;
  const bool splits = pool.second || options_.expandable_segments ? left >= kLeastBlock : left > kSmallRequest;
  if (splits) {
    piece->second.bytes = size;
    const std::int64_t rest = piece->first + size;
    free_.insert(
        free_key(pieces_.insert({rest, {.address = rest, .bytes = left, .segment = piece->second.segment}}).first));
  }
  piece->second.allocated = true;
  piece->second.requested = bytes;
  piece->second.tag = tag;
  Statistics& s = statistics_;
  s.requested += bytes;
  s.allocated += piece->second.bytes;
  s.peak_requested = std::max(s.peak_requested, s.requested);
  s.peak_allocated = std::max(s.peak_allocated, s.allocated);
  note(Action::alloc, piece->first, bytes, stream, tag);
  return piece->first;
}

void CachingAllocator::free(std::int64_t address) {
  if (address == 0) return;
  auto piece = pieces_.find(address);
  if (piece == pieces_.end() || !piece->second.allocated) throw std::logic_error("what is freed is not allocated");
  statistics_.requested -= piece->second.requested;
  statistics_.allocated -= piece->second.bytes;
  note(Action::free, address, piece->second.requested, areas_.at(piece->second.segment).stream, piece->second.tag);
  piece->second.allocated = false;
  if (const auto behind = std::next(piece);
      behind != pieces_.end() && !behind->second.allocated && joins(piece, behind)) {
    free_.erase(free_key(behind));
    piece->second.bytes += behind->second.bytes;
    pieces_.erase(behind);
  }
  if (piece != pieces_.begin())
    if (const auto before = std::prev(piece); !before->second.allocated && joins(before, piece)) {
      free_.erase(free_key(before));
      before->second.bytes += piece->second.bytes;
      pieces_.erase(piece);
      piece = before;
    }
  free_.insert(free_key(piece));
}

std::vector<CachingAllocator::Segment> CachingAllocator::segments() const {
  std::vector<Segment> all;
  for (const auto& [address, area] : areas_) {
    Segment& segment = all.emplace_back(area);
    for (auto piece = pieces_.lower_bound(address); piece != pieces_.end() && piece->second.segment == address; ++piece)
      segment.blocks.push_back(piece->second);
  }
  return all;
}

}  // namespace orrery
