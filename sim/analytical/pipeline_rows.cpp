#include "sim/analytical/pipeline_rows.h"

#include <algorithm>
#include <limits>

#include "sim/base/vector_clones.h"

namespace orrery {
namespace {

using Index = std::int64_t;
using Rows = RowWalker::Rows;
constexpr double kNever = -std::numeric_limits<double>::infinity();

// The slots of a pattern by kind, at most one of each, in the order forward, backward, weight gradient.
struct Kinds {
  const Slot *f = nullptr, *b = nullptr, *w = nullptr;
  bool valid = false;
};
Kinds kinds_of(const Segment& segment) {
  Kinds k;
  const Slot *slot = segment.slots.data(), *end = slot + segment.size;
  if (slot != end && slot->kind == SlotKind::forward) k.f = slot++;
  if (slot != end && slot->kind == SlotKind::backward) k.b = slot++;
  if (slot != end && slot->kind == SlotKind::weight_gradient) k.w = slot++;
  k.valid = slot == end && segment.size > 0 && segment.repeats > 0;
  return k;
}

// A count of forwards or backwards that advances within runs. kOne: there is one run, of one chunk.
template <bool kOne>
struct VirtualCount {
  Index total = 0, place = 0, run = 0, first = 0;  // run `run` of chunks, at micro-batch first + place

  bool is(const Slot& slot, Index chunk, Index count, Index places) const {
    if (kOne) return slot.chunk == 0 && slot.micro_batch == total;
    return slot.chunk == chunk && slot.micro_batch == first + place && place + count <= places;
  }
  void advance(Index count, Index places, Index chunks) {
    total += count;
    if (kOne) return;
    place += count;
    if (place < places) return;
    place = 0;
    if (++run == chunks) run = 0, first += places;
  }
};

// Whether it is the order of stage s: min(slots, lead + i + 1) forwards before backward i. If backwards are split,
// weight gradient i follows backward min(slots - 1, i + s), immediately unless that is the last.
template <bool kOne>
bool is_stage_of(const RowOrder& of, const StageOrder& order, Index s, bool split) {
  const Index n = of.slots, lead = of.lead(s), places = of.run(), chunks = of.chunks;
  VirtualCount<kOne> f, b;
  Index w = 0;
  const auto section = [&](std::span<const Segment> segments) __attribute__((always_inline)) {
    for (const Segment& segment : segments) {
      const Kinds k = kinds_of(segment);
      const Index count = segment.repeats;
      if (!k.valid || (k.w && (!split || k.w->chunk != 0 || k.w->micro_batch != w))) return false;
      if (k.f && !f.is(*k.f, f.run, count, places)) return false;
      if (k.b && !b.is(*k.b, chunks - 1 - b.run, count, places)) return false;
      if (k.b) {
        if (k.f ? f.total != lead + b.total : f.total != n || lead + 1 + b.total < n) return false;
        if (k.w ? b.total - w != s : split && b.total + count > s) return false;
      } else if (k.f ? b.total > 0 || k.w : b.total != n) {
        return false;
      }
      if (k.f) f.advance(count, places, chunks);
      if (k.b) b.advance(count, places, chunks);
      if (k.w) w += count;
    }
    return true;
  };
  if (!section(order.prologue)) return false;
  if (order.repeats > 0) {
    const Index f_before = f.total, b_before = b.total, skip = static_cast<Index>(order.repeats) - 1;
    if (order.advance != places || !section(order.body)) return false;
    if (f.total - f_before != of.period() || b.total - b_before != of.period()) return false;
    for (VirtualCount<kOne>* count : {&f, &b}) count->total += skip * of.period(), count->first += skip * places;
  }
  return section(order.epilogue) && f.total == n && b.total == n && w == (split ? n : 0);
}

// Finds the order of the schedule. Returns false if it is none that forms rows.
bool find_order(const Schedule& schedule, RowOrder& of) {
  const Index p = static_cast<Index>(schedule.stages.size()), v = schedule.chunks, m = schedule.micro_batches;
  const std::int64_t* position = schedule.position.data();
  for (Index s = 0; s < p; ++s)
    for (Index c = 0; c < v; ++c)
      if (*position++ != c * p + s) return false;
  const bool split = schedule.split_backward, blocking = schedule.blocking_transfers;
  if (split && blocking) return false;
  if (v > 1 && (split || blocking || p < 2 || m % p != 0)) return false;
  const auto is_order = [&] {
    for (Index s = 0; s < p; ++s)
      if (const StageOrder& order = schedule.order(static_cast<std::size_t>(s));
          !(v == 1 ? is_stage_of<true>(of, order, s, split) : is_stage_of<false>(of, order, s, split)))
        return false;
    return true;
  };
  of = {p, v, m * v, v == 1 ? 2 : 1, v == 1 ? 2 * p - 1 : 2 * (p - 1) + (v - 1) * p};
  if (is_order()) return true;
  // All forwards come first.
  of.turn = 1;
  of.offset = of.slots - 1 + 2 * (p - 1);
  return !split && !blocking && is_order();
}

// The place of forward or backward k in a run of chunks: k = run * p + place, chunk `run mod v`. Advances without
// divisions.
struct Standing {
  Index place = 0, run = 0;  // run modulo v
  Standing() = default;
  Standing(Index k, Index p, Index v) {
    Index r = k / p;
    place = k % p;
    if (place < 0) place += p, --r;
    run = r % v;
    if (run < 0) run += v;
  }
  void next(Index p, Index v) {
    if (++place < p) return;
    place = 0;
    if (++run == v) run = 0;
  }
  Index run_before(Index v) const { return run == 0 ? v - 1 : run - 1; }
};

// Runs stages [begin, end) of a row, each with the token that it works on. On return, tokens are the ends of the slots.
template <bool kAfter>
inline __attribute__((always_inline)) void run_slots(Index begin, Index end, double* __restrict own,
                                                     double* __restrict token, const double* __restrict hop,
                                                     const double* __restrict seconds, const double* __restrict after) {
  for (Index u = begin; u < end; ++u) {
    const double input = token[u] + hop[u], free = own[u];
    const double done = (input > free ? input : free) + seconds[u];
    token[u] = done;
    own[u] = kAfter ? done + after[u] : done;
  }
}

// Runs the forward and then the backward of each of `count` stages: one loop where run_slots would need two.
inline __attribute__((always_inline)) void run_pairs(Index count, double* __restrict own, double* __restrict f_token,
                                                     const double* __restrict below, const double* __restrict forward,
                                                     double* __restrict b_token, const double* __restrict above,
                                                     const double* __restrict backward) {
  for (Index u = 0; u < count; ++u) {
    const double f_input = f_token[u] + below[u], free = own[u];
    const double f_done = (f_input > free ? f_input : free) + forward[u];
    f_token[u] = f_done;
    const double b_input = b_token[u] + above[u];
    const double b_done = (b_input > f_done ? b_input : f_done) + backward[u];
    b_token[u] = b_done;
    own[u] = b_done;
  }
}

// kEdge: some stages do not work on usual micro-batches, or not in both directions. kRing: stages have several chunks;
// then every stage has a turn in each row. kAfter: sends or weight gradients follow slots.
template <bool kEdge, bool kRing, bool kAfter>
inline __attribute__((always_inline)) void run_rows_of(Rows& r, Index t_begin, Index t_end) {
  const RowOrder& of = r.order;
  const bool blocking = kAfter && r.blocking, split = kAfter && r.split;
  const Index p = of.stages, v = of.chunks, n = of.slots, period = kRing ? of.period() : n, turn = kRing ? 1 : of.turn;
  double *const forward_tokens = r.forward_tokens.data(), *const backward_tokens = r.backward_tokens.data();
  Standing f, b;  // stage 0's forward, the last stage's backward
  if constexpr (kRing) {
    f = Standing(t_begin, p, v), b = Standing(t_begin - of.offset + p - 1, p, v);
    for (Index u = 0; u < p; ++u) {
      const Index f_at = (u < p - 1 - f.place ? f.run_before(v) : f.run) * p + u,
                  b_at = (v - 1 - (u <= b.place ? b.run : b.run_before(v))) * p + u;
      r.forward_now[u] = r.forward[f_at], r.below_now[u] = r.below[f_at];
      r.backward_now[u] = r.backward[b_at], r.above_now[u] = r.above[b_at];
    }
  }
  for (Index t = t_begin; t < t_end; ++t) {
    // Stages p - 1 - f_parity - turn * i run forward f0 + i. Stages p - 1 - b_parity - turn * i run backward b0 - i.
    const Index f_parity = (p - 1 - t) & (turn - 1), f_lane = r.lane(f_parity), f_count = r.count(f_parity);
    const Index b_parity = (t - of.offset + p - 1) & (turn - 1), b_lane = r.lane(b_parity);
    const Index b_count = r.count(b_parity);
    const Index f0 = of.by_turn(t - p + 1 + f_parity), b0 = of.by_turn(t - of.offset + p - 1 - b_parity);
    // The stages with the first and the last micro-batch of a chunk, and where the seconds of their chunks begin.
    Index first_f = -f0, last_f = n - 1 - f0, first_b = b0, last_b = b0 - n + 1;
    Index first_f_row = f_lane, last_f_row = f_lane, first_b_row = b_lane, last_b_row = b_lane;
    if constexpr (kRing) {
      if (t > t_begin) f.next(p, v), b.next(p, v);
      // Results that go around the ring to the next chunk.
      if (f.run > 0 && t < n) forward_tokens[t] = forward_tokens[t - p];
      if (b.run > 0 && b0 >= 0 && b0 < n) backward_tokens[r.last - b0] = backward_tokens[r.last - b0 + p];
      // In each row, one stage starts a new chunk in each direction: its slot has the first place of a run. Another
      // stage has the last place of a run; it is the run before, unless that stage is the row's first.
      first_f = p - 1 - f.place, first_b = b.place;
      first_f_row = f.run * p, first_b_row = (v - 1 - b.run) * p;
      last_f = first_f == 0 ? p - 1 : first_f - 1, last_b = first_b == p - 1 ? 0 : first_b + 1;
      last_f_row = first_f == 0 ? first_f_row : f.run_before(v) * p;
      last_b_row = first_b == p - 1 ? first_b_row : (v - 1 - b.run_before(v)) * p;
      r.forward_now[first_f] = r.forward[first_f_row + first_f], r.below_now[first_f] = r.below[first_f_row + first_f];
      r.backward_now[first_b] = r.backward[first_b_row + first_b];
      r.above_now[first_b] = r.above[first_b_row + first_b];
    }
    double *const f_own = r.own.data() + f_lane, *const b_own = r.own.data() + b_lane;
    double *const f_token = forward_tokens + f0, *const b_token = backward_tokens + (r.last - b0);
    double *const f_after = r.after_forward.data() + f_lane, *const b_after = r.after_backward.data() + b_lane;
    const auto forwards = [&](Index begin, Index end) __attribute__((always_inline)) {
      const double *const hop = (kRing ? r.below_now : r.below).data() + f_lane,
                          *const seconds = (kRing ? r.forward_now : r.forward).data() + f_lane;
      if (blocking)
        run_slots<true>(begin, end, f_own, f_token, hop, seconds, f_after);
      else
        run_slots<false>(begin, end, f_own, f_token, hop, seconds, nullptr);
    };
    const auto backwards = [&](Index begin, Index end) __attribute__((always_inline)) {
      const double *const hop = (kRing ? r.above_now : r.above).data() + b_lane,
                          *const seconds = (kRing ? r.backward_now : r.backward).data() + b_lane;
      if (blocking || split)
        run_slots<true>(begin, end, b_own, b_token, hop, seconds, b_after);
      else
        run_slots<false>(begin, end, b_own, b_token, hop, seconds, nullptr);
    };
    if constexpr (!kEdge && kRing) {
      run_pairs(p, f_own, f_token, r.below_now.data(), r.forward_now.data(), b_token, r.above_now.data(),
                r.backward_now.data());
      continue;
    }
    if (!kEdge) {
      forwards(0, f_count);
      backwards(0, b_count);
      continue;
    }
    // Adds what stage i of a lane takes in addition.
    const auto add =
        [](Index i, Index count, double* own, double* token, const double* more) __attribute__((always_inline)) {
      if (i >= 0 && i < count) token[i] += more[i], own[i] += more[i];
    };
    const auto is_first = [period](Index k) { return k >= 0 && k < period; };
    const auto is_last = [n, period](Index k) { return k >= n - period && k < n; };

    const Index f_begin = std::max<Index>(0, -f0), f_end = std::min(f_count, n - f0);
    if (f_begin < f_end) {
      // Sends are exposed until the first backward follows; that of the last forward is part of an exchange, too.
      if (blocking)
        for (const Index hidden : {f0 - f_parity, last_f})
          if (hidden >= 0 && hidden < f_count) f_after[hidden] = 0;
      forwards(f_begin, f_end);
      if (is_first(f0 + first_f)) add(first_f, f_count, f_own, f_token, r.first_forward.data() + first_f_row);
      if (is_last(f0 + last_f)) add(last_f, f_count, f_own, f_token, r.last_forward.data() + last_f_row);
      if (t < p) r.first_forward_end[t] = forward_tokens[0];
    }
    // A send is exposed from the last forward on, and stage s runs weight gradients from backward s on.
    const Index first_w = p - 1 - b_parity - b0;
    const Index followed = blocking ? n - 1 - b_parity - b0 : split ? first_w : b_count;
    if (followed >= 0 && followed < b_count) b_after[followed] = r.behind_backward[b_lane + followed];
    const Index b_begin = std::max<Index>(0, b0 - n + 1), b_end = std::min(b_count, b0 + 1);
    if (b_begin >= b_end) continue;
    backwards(b_begin, b_end);
    if (is_first(b0 - first_b)) add(first_b, b_count, b_own, b_token, r.first_backward.data() + first_b_row);
    if (is_last(b0 - last_b)) add(last_b, b_count, b_own, b_token, r.last_backward.data() + last_b_row);
    if (split && first_w >= b_begin && first_w < b_end) b_own[first_w] += r.first_weight_gradient[b_lane + first_w];
    if (split && p - 1 - b_parity == 2 * last_b && n > 1) b_own[last_b] += r.last_weight_gradient;
    // The last p micro-batches run after the last backward of the chunk above, which slows them.
    const Index first_slowed = n - period + p;
    for (Index u = b_begin; kRing && r.behind_last != nullptr && u < p && b0 - u >= first_slowed; ++u) {
      const Index chunk_above = v - (u <= b.place ? b.run : b.run_before(v));
      const Index slot = b.place - u + (u <= b.place ? 0 : p);
      const double more = r.behind_last[(r.stage_class[p - 1 - u] * v + chunk_above) * p + slot];
      b_token[u] += more, b_own[u] += more;
    }
    const Index last_s = turn * (n - 1) + of.offset - t;  // the stage that ends its last backward
    if (last_s < p) r.last_backward_end[last_s] = backward_tokens[r.last - n + 1];
  }
}

template <bool kRing, bool kAfter>
inline __attribute__((always_inline)) void run_rows_of(Rows& r, Index t_begin, Index t_end, bool edge) {
  edge ? run_rows_of<true, kRing, kAfter>(r, t_begin, t_end) : run_rows_of<false, kRing, kAfter>(r, t_begin, t_end);
}

ORRERY_VECTOR_CLONES void run_rows(Rows& rows, Index t_begin, Index t_end, bool edge) {
  if (rows.order.chunks > 1)
    run_rows_of<true, false>(rows, t_begin, t_end, edge);
  else if (rows.blocking || rows.split)
    run_rows_of<false, true>(rows, t_begin, t_end, edge);
  else
    run_rows_of<false, false>(rows, t_begin, t_end, edge);
}

// Seconds of the slots of a stage: its `chunks` rows of `seconds`, its rows of PipelineCosts::behind_last.
double busy_seconds(std::span<const ChunkSeconds> chunks, std::size_t kinds, double usual_ones,
                    std::span<const double> behind_last) {
  double busy = 0;
  for (const ChunkSeconds& seconds : chunks)
    for (const SlotSeconds& slot : std::span(seconds).first(kinds))
      busy += slot.first + slot.last + usual_ones * slot.usual;
  for (const double more : behind_last) busy += more;
  return busy;
}

// Seconds of receives, and of sends that no exchange hides, on stage s of p for m micro-batches.
double transfer_seconds(Index s, Index p, Index m, std::span<const double> hops) {
  double sum = 0;
  if (s > 0) sum += static_cast<double>(m + std::min(m, p - s)) * hops[s - 1];
  if (s + 1 < p) sum += static_cast<double>(m + std::min(m - 1, p - 1 - s)) * hops[s];
  return sum;
}

}  // namespace

bool RowWalker::walk(const Schedule& schedule, const PipelineCosts& costs, PipelineClock& out) {
  RowOrder& of = rows_.order;
  if (!find_order(schedule, of)) return false;
  prepare(schedule, costs);
  const Index p = of.stages, v = of.chunks, m = schedule.micro_batches, looked_at = v == 1 ? of.turn : of.period();
  const bool split = schedule.split_backward;
  // Rows in which every stage works on usual micro-batches in both directions, and what follows its slots is the same.
  const Index steady_begin = of.offset + of.turn * ((v - 1) * of.run() + 1) + (split ? p - 1 : 0);
  const auto steady_end = [&] { return of.turn * (of.slots - of.period() + of.run() - 1); };
  const auto end = [&] { return of.turn * (of.slots - 1) + of.offset + 1; };
  double skipped = 0;
  Index t = std::min(steady_begin, end());
  run_rows(rows_, 0, t, true);
  PeriodFinder finder(near_, far_, p);
  for (; t + looked_at <= steady_end(); t += looked_at) {
    // The state: when each stage is free, and the ends of the last row's forwards. The end of a stage's latest backward
    // is the former up to a constant.
    const Index last_u = (p - t) & (of.turn - 1);
    if (finder.look(rows_.own.data(), p, rows_.forward_tokens.data() + of.by_turn(t - p + last_u),
                    of.by_turn(p - 1 - last_u) + 1)) {
      const Index rows = finder.looks() * looked_at, times = std::max<Index>(0, (steady_end() - t) / rows);
      of.slots -= of.by_turn(times * rows);
      skipped = static_cast<double>(times) * finder.lambda();
      break;
    }
    run_rows(rows_, t, t + looked_at, false);
  }
  if (t < steady_end()) run_rows(rows_, t, steady_end(), false), t = steady_end();
  run_rows(rows_, t, end(), true);
  out.stages.assign(static_cast<std::size_t>(p), {});
  for (Index s = 0; s < p; ++s) {
    StageClock& clock = out.stages[s];
    const std::size_t first = static_cast<std::size_t>(costs.stage_class[s] * v), chunks = static_cast<std::size_t>(v);
    const ChunkSeconds& seconds = costs.seconds[first];
    // The rows of all chunks but the model's first: after the first chunk's last backward, a stage has no slots.
    const auto behind_last = costs.behind_last.empty() ? costs.behind_last
                                                       : costs.behind_last.subspan((first + 1) * costs.slots_behind,
                                                                                   (chunks - 1) * costs.slots_behind);
    clock.busy_seconds =
        busy_seconds(costs.seconds.subspan(first, chunks), split ? 3 : 2, static_cast<double>(m - 2), behind_last);
    clock.first_forward_begin = rows_.first_forward_end[s] - seconds_of(seconds[0], 0, m);
    clock.last_backward_end = rows_.last_backward_end[s] + skipped;
    clock.finish = rows_.own[rows_.at(s)] + skipped;
    if (schedule.blocking_transfers) clock.transfer_seconds = transfer_seconds(s, p, m, costs.hop_seconds);
    // Weight gradients that run after no backward.
    for (Index i = split ? m - std::min(s, m) : m; i < m; ++i) clock.finish += seconds_of(seconds[2], i, m);
  }
  return true;
}

void RowWalker::prepare(const Schedule& schedule, const PipelineCosts& costs) {
  Rows& r = rows_;
  const RowOrder& of = r.order;
  const Index p = of.stages, v = of.chunks, m = schedule.micro_batches;
  r.last = of.slots - 1;
  r.split = schedule.split_backward;
  r.blocking = schedule.blocking_transfers;
  r.behind_last = v == 1 || costs.behind_last.empty() ? nullptr : costs.behind_last.data();
  r.stage_class = costs.stage_class.data();
  r.own.assign(static_cast<std::size_t>(p), 0.0);
  for (std::vector<double>* array :
       {&r.forward_now, &r.backward_now, &r.below_now, &r.above_now, &r.first_forward_end, &r.last_backward_end,
        &r.after_forward, &r.after_backward, &r.behind_backward, &r.first_weight_gradient})
    array->resize(static_cast<std::size_t>(p));
  for (std::vector<double>* array : {&r.forward, &r.backward, &r.first_forward, &r.last_forward, &r.first_backward,
                                     &r.last_backward, &r.below, &r.above})
    array->resize(static_cast<std::size_t>(v * p));
  for (Index s = 0; s < p; ++s)
    for (Index c = 0; c < v; ++c) {
      const ChunkSeconds& seconds = costs.seconds[costs.stage_class[s] * v + c];
      const auto& [f, b, w] = seconds;
      const Index stage = r.at(s), at = c * p + stage, position = c * p + s;
      const double below = position > 0 ? costs.hop_seconds[position - 1] : 0,
                   above = position + 1 < p * v ? costs.hop_seconds[position] : 0;
      // A stage that blocks receives for the hop.
      r.forward[at] = f.usual + (r.blocking ? below : 0);
      r.backward[at] = b.usual + (r.blocking ? above : 0);
      r.below[at] = r.blocking ? 0 : below;
      r.above[at] = r.blocking ? 0 : above;
      r.first_forward[at] = seconds_of(f, 0, m) - f.usual;
      r.first_backward[at] = seconds_of(b, 0, m) - b.usual;
      r.last_forward[at] = m > 1 ? f.last - f.usual : 0;
      r.last_backward[at] = m > 1 ? b.last - b.usual : 0;
      if (c > 0 || !(r.blocking || r.split)) continue;
      r.after_forward[stage] = r.blocking ? above : 0;
      r.after_backward[stage] = 0;
      r.behind_backward[stage] = r.split ? w.usual : below;
      r.first_weight_gradient[stage] = seconds_of(w, 0, m) - w.usual;
      if (s == 0) r.last_weight_gradient = w.last - w.usual;
    }
  // The model's first chunk waits for nothing. The backward of its last chunk waits only for its own forward.
  r.forward_tokens.assign(static_cast<std::size_t>(of.slots), kNever);
  r.backward_tokens.assign(static_cast<std::size_t>(of.slots), kNever);
}

}  // namespace orrery
