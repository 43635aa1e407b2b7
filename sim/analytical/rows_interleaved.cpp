#include "sim/analytical/rows.h"

namespace orrery::rows {
namespace {

// Interleaved 1F1B. Slots are counted by virtual micro-batch k, as in Megatron-LM: chunk (k mod pv) / p of micro-batch
// p (k / pv) + k mod p. On stage s, row t holds forward k = t - s and then backward k = t - offset + s. Each depends
// only on results of its neighbour on the ring of stages from row t - 1. Arrays run over u = p - 1 - s.
struct RingRows {
  Index p = 0, v = 0, n = 0, offset = 0;  // n = m v; decreases when rows are skipped
  Index last = 0;                         // n - 1 at the start
  double* own = nullptr;
  double *forward = nullptr, *backward = nullptr;          // [chunk * p + u]
  double *below = nullptr, *above = nullptr;  // [chunk * p + u]: hop from the position before, after
  double *forward_now = nullptr, *backward_now = nullptr;  // [u], for the chunks of the current row
  double *below_now = nullptr, *above_now = nullptr;       // the same
  // Seconds that the first and the last micro-batch take in addition to the usual one, [chunk * p + u].
  double *first_forward = nullptr, *last_forward = nullptr, *first_backward = nullptr, *last_backward = nullptr;
  const double* behind_last = nullptr;  // PipelineCosts::behind_last for p slots
  const std::int32_t* stage_class = nullptr;
  double* forward_tokens = nullptr;  // [k]
  double* backward_tokens = nullptr;    // [last - k]
  double* first_forward_end = nullptr;  // [u], filled
};

// The position of a virtual micro-batch: k = run * p + place, chunk `run mod v`. Advances without divisions.
struct Standing {
  Index place = 0, run = 0;  // run modulo v
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

// kEdge: some stages do not work on usual micro-batches, or not in both directions.
template <bool kEdge>
inline __attribute__((always_inline)) void run_ring_rows(RingRows& r, Index t_begin, Index t_end) {
  const Index p = r.p, v = r.v, n = r.n, period = p * v;
  Standing f(t_begin, p, v), b(t_begin - r.offset + p - 1, p, v);  // stage 0's forward, last stage's backward
  for (Index u = 0; u < p; ++u) {
    const Index f_at = (u < p - 1 - f.place ? f.run_before(v) : f.run) * p + u,
                b_at = (v - 1 - (u <= b.place ? b.run : b.run_before(v))) * p + u;
    r.forward_now[u] = r.forward[f_at], r.below_now[u] = r.below[f_at];
    r.backward_now[u] = r.backward[b_at], r.above_now[u] = r.above[b_at];
  }
  for (Index t = t_begin; t < t_end; ++t, f.next(p, v), b.next(p, v)) {
    // Row t has forward k = f0 + u and backward k = b0 - u.
    const Index f0 = t - p + 1, b0 = t - r.offset + p - 1;
    // Results that go around the ring to the next chunk.
    if (f.run > 0 && t < n) r.forward_tokens[t] = r.forward_tokens[t - p];
    if (b.run > 0 && b0 >= 0 && b0 < n) r.backward_tokens[r.last - b0] = r.backward_tokens[r.last - b0 + p];
    // In each row, one stage starts a new chunk in each direction: its slot has the first place of a run.
    const Index first_f = p - 1 - f.place, first_b = b.place;
    const Index f_row = f.run * p, b_row = (v - 1 - b.run) * p;
    r.forward_now[first_f] = r.forward[f_row + first_f], r.below_now[first_f] = r.below[f_row + first_f];
    r.backward_now[first_b] = r.backward[b_row + first_b], r.above_now[first_b] = r.above[b_row + first_b];
    if (!kEdge) {
      run_pairs(p, r.own, r.forward_tokens + f0, r.below_now, r.forward_now, r.backward_tokens + (r.last - b0),
                r.above_now, r.backward_now);
      continue;
    }
    const auto add = [&r](Index u, double& token, double more) { token += more, r.own[u] += more; };
    const auto slots = [&r](Index begin, Index end, double* tokens, Index at, const double* hop,
                            const double* seconds) {
      if (begin < end)
        run_slots<false>(end - begin, r.own + begin, tokens + (at + begin), hop + begin, seconds + begin, nullptr);
    };
    // Another stage has the last place of a run; it is the run before, unless that stage is the row's first.
    slots(std::max<Index>(0, -f0), std::min(p, n - f0), r.forward_tokens, f0, r.below_now,
          r.forward_now);
    const Index last_f = first_f == 0 ? p - 1 : first_f - 1;
    const Index last_f_row = first_f == 0 ? f_row : f.run_before(v) * p;
    if (const Index k = f0 + first_f; k >= 0 && k < period)
      add(first_f, r.forward_tokens[k], r.first_forward[f_row + first_f]);
    if (const Index k = f0 + last_f; k >= n - period && k < n)
      add(last_f, r.forward_tokens[k], r.last_forward[last_f_row + last_f]);
    if (t < p) r.first_forward_end[p - 1 - t] = r.forward_tokens[0];

    slots(std::max<Index>(0, b0 - n + 1), std::min(p, b0 + 1), r.backward_tokens, r.last - b0, r.above_now,
          r.backward_now);
    const Index last_b = first_b == p - 1 ? 0 : first_b + 1;
    const Index last_b_row = first_b == p - 1 ? b_row : (v - 1 - b.run_before(v)) * p;
    if (const Index k = b0 - first_b; k >= 0 && k < period)
      add(first_b, r.backward_tokens[r.last - k], r.first_backward[b_row + first_b]);
    if (const Index k = b0 - last_b; k >= n - period && k < n)
      add(last_b, r.backward_tokens[r.last - k], r.last_backward[last_b_row + last_b]);
    if (r.behind_last == nullptr) continue;
    // The last p micro-batches run after the last backward of the chunk above, which slows them.
    for (Index u = std::max<Index>(0, b0 - n + 1); u < p && b0 - u >= n - period + p; ++u) {
      const Index chunk_above = v - (u <= b.place ? b.run : b.run_before(v));
      const Index slot = b.place - u + (u <= b.place ? 0 : p);
      add(u, r.backward_tokens[r.last - (b0 - u)],
          r.behind_last[(r.stage_class[p - 1 - u] * v + chunk_above) * p + slot]);
    }
  }
}

ORRERY_VECTOR_CLONES void run_rows(RingRows& rows, Index t_begin, Index t_end, bool edge) {
  edge ? run_ring_rows<true>(rows, t_begin, t_end) : run_ring_rows<false>(rows, t_begin, t_end);
}

class Interleaved {
 public:
  Interleaved(const Schedule& schedule, const PipelineCosts& costs, RowStorage& storage, PipelineClock& out)
      : p_(static_cast<Index>(schedule.stages.size())),
        v_(schedule.chunks),
        m_(schedule.micro_batches),
        costs_(costs),
        storage_(storage),
        out_(out) {}

  // `forwards_first`: no backward before the last forward.
  void walk(bool forwards_first) {
    prepare(forwards_first);
    const Index period = p_ * v_, last_run = (v_ - 1) * p_;
    // Rows in which every stage works on usual micro-batches in both directions.
    const Index steady_begin = std::max(last_run + p_, rows_.offset + last_run + 1);
    const auto steady_end = [&] { return rows_.n - period + p_ - 1; };
    const auto end = [&] { return rows_.n + rows_.offset; };
    double skipped = 0;
    Index t = std::min(steady_begin, end());
    run_rows(rows_, 0, t, true);
    PeriodFinder finder(storage_.snapshot, storage_.far_snapshot, p_);
    for (; t + period <= steady_end(); t += period) {
      // The state: when each stage is free (also the end of its latest backward), and the end of its latest forward.
      if (finder.look(rows_.own, p_, rows_.forward_tokens + (t - p_), p_)) {
        const Index rows = finder.looks() * period, times = std::max<Index>(0, (steady_end() - t) / rows);
        rows_.n -= times * rows;
        skipped = static_cast<double>(times) * finder.lambda();
        break;
      }
      run_rows(rows_, t, t + period, false);
    }
    if (t < steady_end()) run_rows(rows_, t, steady_end(), false), t = steady_end();
    run_rows(rows_, t, end(), true);
    for (Index s = 0; s < p_; ++s) {
      StageClock& clock = out_.stages[s];
      clock.first_forward_begin =
          rows_.first_forward_end[p_ - 1 - s] - seconds_of(seconds(s, 0, SlotKind::forward), 0, m_);
      clock.finish = clock.last_backward_end = rows_.own[p_ - 1 - s] + skipped;
    }
  }

 private:
  const SlotSeconds& seconds(Index s, Index chunk, SlotKind kind) const {
    return costs_.seconds[costs_.stage_class[s] * v_ + chunk][static_cast<std::size_t>(kind)];
  }

  void prepare(bool forwards_first) {
    rows_.p = p_;
    rows_.v = v_;
    rows_.n = m_ * v_;
    rows_.last = rows_.n - 1;
    rows_.behind_last = costs_.behind_last.empty() ? nullptr : costs_.behind_last.data();
    rows_.stage_class = costs_.stage_class.data();
    rows_.offset = 2 * (p_ - 1) + (v_ - 1) * p_;
    // Forward n-1 of stage s is in row n-1+s, backward 0 in row offset-s.
    if (forwards_first) rows_.offset = std::max(rows_.offset, rows_.n - 1 + 2 * (p_ - 1));
    Arena arena(storage_.values, (6 + 8 * v_) * p_);
    for (double** array : {&rows_.own, &rows_.first_forward_end, &rows_.forward_now, &rows_.backward_now,
                           &rows_.below_now, &rows_.above_now})
      *array = arena.take(p_);
    for (double** array : {&rows_.forward, &rows_.backward, &rows_.first_forward, &rows_.last_forward,
                           &rows_.first_backward, &rows_.last_backward, &rows_.below, &rows_.above})
      *array = arena.take(v_ * p_);
    for (Index s = 0; s < p_; ++s) {
      const Index u = p_ - 1 - s;
      for (Index c = 0; c < v_; ++c) {
        const SlotSeconds &f = seconds(s, c, SlotKind::forward), &b = seconds(s, c, SlotKind::backward);
        const Index at = c * p_ + u, position = c * p_ + s;
        rows_.below[at] = position > 0 ? costs_.hop_seconds[position - 1] : 0;
        rows_.above[at] = costs_.hop_seconds[position];
        rows_.forward[at] = f.usual;
        rows_.backward[at] = b.usual;
        rows_.first_forward[at] = f.first - f.usual;  // m >= p >= 2
        rows_.last_forward[at] = f.last - f.usual;
        rows_.first_backward[at] = b.first - b.usual;
        rows_.last_backward[at] = b.last - b.usual;
      }
    }
    // The model's first chunk waits for nothing. The backward of its last chunk waits only for its own forward.
    storage_.forward_tokens.assign(static_cast<std::size_t>(rows_.n), kNever);
    storage_.backward_tokens.assign(static_cast<std::size_t>(rows_.n), kNever);
    rows_.forward_tokens = storage_.forward_tokens.data();
    rows_.backward_tokens = storage_.backward_tokens.data();
  }

  Index p_, v_, m_;
  const PipelineCosts& costs_;
  RowStorage& storage_;
  PipelineClock& out_;
  RingRows rows_;
};

}  // namespace

void walk_interleaved(const Schedule& schedule, const PipelineCosts& costs, RowStorage& storage, PipelineClock& out,
                      bool forwards_first) {
  Interleaved(schedule, costs, storage, out).walk(forwards_first);
}

}  // namespace orrery::rows
