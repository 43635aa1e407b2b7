// Recognises schedules that form rows, by their slots and not by a name.
#include "sim/analytical/rows.h"

namespace orrery::rows {
namespace {

// The slots of a pattern by kind, at most one of each, in the order forward, backward, weight gradient.
struct Kinds {
  const Slot *f = nullptr, *b = nullptr, *w = nullptr;
  bool valid = false;
};
inline Kinds kinds_of(const Segment& segment) {
  Kinds k;
  const Slot *slot = segment.slots.data(), *end = slot + segment.size;
  if (slot != end && slot->kind == SlotKind::forward) k.f = slot++;
  if (slot != end && slot->kind == SlotKind::backward) k.b = slot++;
  if (slot != end && slot->kind == SlotKind::weight_gradient) k.w = slot++;
  k.valid = slot == end && segment.size > 0 && segment.repeats > 0;
  return k;
}

// Whether it is stage s of a single-chunk order. Forwards, backwards and weight gradients are each in the order of
// micro-batches. There are min(m, lead + i + 1) forwards before backward i. Weight gradient i follows backward min(m -
// 1, i + s), immediately unless that is the last.
bool is_single_chunk(const StageOrder& order, Index s, Index m, Index lead, bool split) {
  if (order.repeats > 0) return false;
  Index f = 0, b = 0, w = 0;
  const auto section = [&](std::span<const Segment> segments) {
    for (const Segment& segment : segments) {
      const Kinds k = kinds_of(segment);
      const Index n = segment.repeats;
      if (!k.valid || (k.w && !split)) return false;
      if ((k.f && k.f->micro_batch != f) || (k.b && k.b->micro_batch != b) || (k.w && k.w->micro_batch != w))
        return false;
      if (k.b) {
        if (k.f ? f != lead + b : f != m || lead + 1 + b < m) return false;
        if (k.w ? b - w != s : split && b + n > s) return false;
      } else if (k.f ? b > 0 || k.w : b != m) {
        return false;
      }
      if (k.f) f += n;
      if (k.b) b += n;
      if (k.w) w += n;
      if (f > m || b > m || w > m) return false;
    }
    return true;
  };
  return section(order.prologue) && section(order.epilogue) && f == m && b == m && w == (split ? m : 0);
}

// A count of virtual micro-batches that advances in runs.
struct VirtualCount {
  Index total = 0, place = 0, run = 0, first = 0;  // run `run` of chunks, at micro-batch first + place

  bool is(const Slot& slot, Index chunk, Index count, Index p) const {
    return slot.chunk == chunk && slot.micro_batch == first + place && place + count <= p;
  }
  void advance(Index count, Index p, Index v) {
    total += count;
    place += count;
    if (place < p) return;
    place = 0;
    if (++run == v) run = 0, first += p;
  }
};

// Whether it is a stage of the interleaved order with min(n, lead + i + 1) forwards before its backward i.
bool is_interleaved(const StageOrder& order, Index p, Index v, Index m, Index lead) {
  const Index period = p * v, n = m * v;
  VirtualCount f, b;
  const auto section = [&](std::span<const Segment> segments) {
    for (const Segment& segment : segments) {
      const Kinds k = kinds_of(segment);
      const Index count = segment.repeats;
      if (!k.valid || k.w) return false;
      if (k.f && !f.is(*k.f, f.run, count, p)) return false;
      if (k.b && !b.is(*k.b, v - 1 - b.run, count, p)) return false;
      if (k.b && (k.f ? f.total != lead + b.total : f.total != n || lead + 1 + b.total < n)) return false;
      if (!k.b && b.total > 0) return false;
      if (k.f) f.advance(count, p, v);
      if (k.b) b.advance(count, p, v);
    }
    return true;
  };
  if (!section(order.prologue)) return false;
  if (order.repeats > 0) {
    const Index f_before = f.total, b_before = b.total, skip = static_cast<Index>(order.repeats) - 1;
    if (order.advance != p || !section(order.body)) return false;
    if (f.total - f_before != period || b.total - b_before != period) return false;
    for (VirtualCount* count : {&f, &b}) count->total += skip * period, count->first += skip * p;
  }
  return section(order.epilogue) && f.total == n && b.total == n;
}

}  // namespace

Order recognise(const Schedule& schedule) {
  const Index p = static_cast<Index>(schedule.stages.size()), v = schedule.chunks, m = schedule.micro_batches;
  const std::int64_t* position = schedule.position.data();
  for (Index s = 0; s < p; ++s)
    for (Index c = 0; c < v; ++c)
      if (*position++ != c * p + s) return Order::other;
  const auto all = [&](auto&& is) {
    for (Index s = 0; s < p; ++s)
      if (!is(schedule.order(s), s)) return false;
    return true;
  };
  const bool split = schedule.split_backward, blocking = schedule.blocking_transfers;
  if (v == 1) {
    if (split && blocking) return Order::other;
    if (all([&](const StageOrder& o, Index s) { return is_single_chunk(o, s, m, p - 1 - s, split); }))
      return Order::one_f_one_b;
    if (!split && !blocking && all([&](const StageOrder& o, Index s) { return is_single_chunk(o, s, m, m, false); }))
      return Order::gpipe;
    return Order::other;
  }
  if (split || blocking || p < 2 || m % p != 0) return Order::other;
  if (all([&](const StageOrder& o, Index s) { return is_interleaved(o, p, v, m, 2 * (p - 1 - s) + (v - 1) * p); }))
    return Order::interleaved;
  if (all([&](const StageOrder& o, Index) { return is_interleaved(o, p, v, m, m * v); }))
    return Order::interleaved_forwards_first;
  return Order::other;
}

}  // namespace orrery::rows
