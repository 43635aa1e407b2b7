// 1F1B, with or without split backwards.
#include "sim/analytical/rows.h"

namespace orrery::rows {
namespace {

// One chunk per stage in 1F1B's order, with or without split backwards (1f1b, zb-h1). For stages of t's parity, row t
// holds the forward of micro-batch (t - s) / 2; for the others the backward of micro-batch (t - 2p + 1 + s) / 2. Each
// depends only on results of its neighbour from row t - 1.
struct Half {  // the stages s = 2u + parity
  Index count = 0;
  double* own = nullptr;   // when the stage is free; kNever before the first stage and after the last
  double* next = nullptr;  // the same one row later, when two rows are run together
  double *forward = nullptr, *backward = nullptr;
  double *below = nullptr, *above = nullptr;                   // hop from the stage below, from the stage above
  double *after_forward = nullptr, *after_backward = nullptr;  // time occupied after it: sends, weight gradients
};

struct ParityRows {
  Index p = 0, m = 0;  // m decreases when rows are skipped
  bool split = false, blocking = false;
  Half half[2];
  Index last = 0;                     // m - 1 at the start
  double* forward_tokens = nullptr;   // [last - micro-batch]: end of its latest forward
  double* backward_tokens = nullptr;  // [micro-batch]
  // By stage: seconds that the first and the last micro-batch take in addition to the usual one.
  double *first_forward = nullptr, *last_forward = nullptr, *first_backward = nullptr, *last_backward = nullptr;
  double *weight_gradient = nullptr, *first_weight_gradient = nullptr;
  double last_weight_gradient = 0;                                    // in addition, on stage 0
  const double* hop = nullptr;                                        // by stage
  bool after() const { return split || blocking; }                    // whether stages are occupied after a slot
  double *first_forward_end = nullptr, *last_backward_end = nullptr;  // by stage, filled
};

// kAfter: after_forward and after_backward are not all zero. kEdge: rows with first or last micro-batches, or in which
// these change.
template <bool kAfter, bool kEdge>
inline __attribute__((always_inline)) void run_parity_rows(ParityRows& rows, Index t_begin, Index t_end) {
  const Index p = rows.p, m = rows.m;
  const auto exists = [p](Index s) { return static_cast<std::uint64_t>(s) < static_cast<std::uint64_t>(p); };
  const auto at = [&rows](Index s) -> Half& { return rows.half[s & 1]; };
  for (Index t = t_begin; t < t_end; ++t) {
    // The stages with the first and the last forward, and with the first and the last backward.
    const Index first_f = t, last_f = t - 2 * (m - 1), first_b = 2 * p - 1 - t, last_b = 2 * m + 2 * p - 3 - t;
    const Index first_w = t - 2 * p + 1;  // the stage with the backward after which weight gradients begin
    if (kAfter && kEdge) {
      if (rows.split && exists(first_w)) at(first_w).after_backward[first_w >> 1] = rows.first_weight_gradient[first_w];
      if (rows.split && last_b == 0 && m > 1) rows.half[0].after_backward[0] += rows.last_weight_gradient;
      if (rows.blocking) {
        // The forward that is followed by the first backward, and the last forward: their sends are parts of an
        // exchange.
        const Index pairs = 2 * p - 2 - t;
        if (exists(pairs)) at(pairs).after_forward[pairs >> 1] = 0;
        if (exists(last_f)) at(last_f).after_forward[last_f >> 1] = 0;
        // From the backward on that no forward follows, the send is exposed.
        const Index drain = t - 2 * m + 1;
        if (exists(drain) && drain > 0 && drain >= p - m) at(drain).after_backward[drain >> 1] = rows.hop[drain - 1];
        if (exists(first_b) && first_b > 0 && first_b < p - m)
          at(first_b).after_backward[first_b >> 1] = rows.hop[first_b - 1];
      }
    }
    const Index q = t & 1;
    const Half &f = rows.half[q], &b = rows.half[1 - q];
    const Index up = (t - q) >> 1, down = (t - 2 * p + 2 - q) >> 1;  // micro-batches at u: up - u, down + u
    // The stages that have a slot in the row: all of them except at the edges.
    const Index f_begin = kEdge ? std::max<Index>(0, up - m + 1) : 0;
    const Index b_begin = kEdge ? std::max<Index>(0, -down) : 0;
    const Index f_count = (kEdge ? std::min(f.count, up + 1) : f.count) - f_begin;
    const Index b_count = (kEdge ? std::min(b.count, m - down) : b.count) - b_begin;
    if (f_count > 0)
      run_slots<kAfter>(f_count, f.own + f_begin, rows.forward_tokens + (rows.last - up + f_begin), f.below + f_begin,
                        f.forward + f_begin, f.after_forward + f_begin);
    if (b_count > 0)
      run_slots<kAfter>(b_count, b.own + b_begin, rows.backward_tokens + (down + b_begin), b.above + b_begin,
                        b.backward + b_begin, b.after_backward + b_begin);
    if (kEdge) {
      const auto add = [&at](Index s, double& token, double more) { at(s).own[s >> 1] += more, token += more; };
      if (exists(first_f)) {
        double& token = rows.forward_tokens[rows.last];
        add(first_f, token, rows.first_forward[first_f]);
        rows.first_forward_end[first_f] = token;
      }
      if (exists(last_f)) add(last_f, rows.forward_tokens[rows.last - m + 1], rows.last_forward[last_f]);
      if (exists(first_b)) add(first_b, rows.backward_tokens[0], rows.first_backward[first_b]);
      if (exists(last_b)) {
        double& token = rows.backward_tokens[m - 1];
        add(last_b, token, rows.last_backward[last_b]);
        rows.last_backward_end[last_b] = token;
      }
      if (kAfter && rows.split && exists(first_w))
        at(first_w).after_backward[first_w >> 1] = rows.weight_gradient[first_w];
    }
  }
}

// Half a row of usual slots without additional times. Tokens need not be stored: the input of a slot is its neighbour's
// end in the row before.
inline __attribute__((always_inline)) void run_row(Index count, const double* __restrict free,
                                                   const double* __restrict input, const double* __restrict hop,
                                                   const double* __restrict seconds, double* __restrict end) {
  for (Index u = 0; u < count; ++u) {
    const double arrived = input[u] + hop[u];
    end[u] = (arrived > free[u] ? arrived : free[u]) + seconds[u];
  }
}

// Runs an even row (forwards of even stages, backwards of odd ones) and the odd row after it, many times.
ORRERY_VECTOR_CLONES void run_row_pairs(const ParityRows& rows, Index pairs) {
  const Half &even = rows.half[0], &odd = rows.half[1];
  const Index n = even.count;  // there may be one odd stage fewer
  for (Index i = 0; i < pairs; ++i) {
    run_row(n, even.own, odd.own - 1, even.below, even.forward, even.next);
    run_row(n, odd.own, even.own + 1, odd.above, odd.backward, odd.next);
    run_row(n, odd.next, even.next, odd.below, odd.forward, odd.own);
    run_row(n, even.next, odd.next, even.above, even.backward, even.own);
  }
}

ORRERY_VECTOR_CLONES void run_rows(ParityRows& rows, Index t_begin, Index t_end, bool edge) {
  if (!rows.after())
    run_parity_rows<false, true>(rows, t_begin, t_end);
  else
    edge ? run_parity_rows<true, true>(rows, t_begin, t_end) : run_parity_rows<true, false>(rows, t_begin, t_end);
}

class SingleChunk {
 public:
  SingleChunk(const Schedule& schedule, const PipelineCosts& costs, RowStorage& storage, PipelineClock& out)
      : split_(schedule.split_backward),
        blocking_(schedule.blocking_transfers),
        p_(static_cast<Index>(schedule.stages.size())),
        m_(schedule.micro_batches),
        costs_(costs),
        storage_(storage),
        out_(out) {}

  void walk() {
    prepare();
    // Rows in which every stage works on a usual micro-batch, and additional times do not change.
    const Index steady_begin = split_ ? 3 * p_ - 1 : 2 * p_;
    const auto steady_end = [&] { return 2 * rows_.m - 2; };
    const auto end = [&] { return 2 * rows_.m + 2 * p_ - 2; };
    double skipped = 0;
    Index t = std::min(steady_begin, end());
    run_rows(rows_, 0, t, true);
    const auto run_usual = [&](Index until) {
      if (rows_.after())
        run_rows(rows_, t, until, false);
      else
        run_row_pairs(rows_, (until - t) / 2);
      t = until;
    };
    PeriodFinder period(storage_.snapshot, storage_.far_snapshot, p_);
    while (t + 2 <= steady_end()) {
      run_usual(t + 2);
      // The end of a micro-batch at its latest stage is that stage's `own` up to a constant, so that `own` is the whole
      // state.
      if (period.look(rows_.half[0].own, rows_.half[0].count, rows_.half[1].own, rows_.half[1].count)) {
        const Index times = std::max<Index>(0, (steady_end() - t) / (2 * period.looks()));
        rows_.m -= times * period.looks();
        skipped = static_cast<double>(times) * period.lambda();
        break;
      }
    }
    if (t < steady_end()) run_usual(steady_end());
    if (t > steady_begin && !rows_.after()) place_tokens(t);
    run_rows(rows_, t, end(), true);
    for (Index s = 0; s < p_; ++s) {
      StageClock& clock = out_.stages[s];
      double weight_gradients = 0;  // those that run after no backward
      if (split_) weight_gradients = range_seconds(seconds(s, SlotKind::weight_gradient), m_ - std::min(s, m_), m_, m_);
      clock.first_forward_begin = rows_.first_forward_end[s] - seconds_of(seconds(s, SlotKind::forward), 0, m_);
      clock.last_backward_end = rows_.last_backward_end[s] + skipped;
      clock.finish = rows_.half[s & 1].own[s >> 1] + skipped + weight_gradients;
      if (blocking_) clock.transfer_seconds = transfer_seconds(s);
    }
  }

 private:
  const SlotSeconds& seconds(Index s, SlotKind kind) const {
    return costs_.seconds[costs_.stage_class[s]][static_cast<std::size_t>(kind)];
  }
  double hop(Index s) const { return costs_.hop_seconds[s]; }
  // Seconds that micro-batch i takes in addition to the usual one.
  double more(const SlotSeconds& d, Index i) const { return seconds_of(d, i, m_) - d.usual; }

  // Seconds of a stage's slots; for the first and the last micro-batch the additional seconds.
  struct Stage {
    double forward = 0, backward = 0;
    double first_forward = 0, last_forward = 0, first_backward = 0, last_backward = 0;
  };
  Stage stage(Index s) const {
    const SlotSeconds &f = seconds(s, SlotKind::forward), &b = seconds(s, SlotKind::backward);
    Stage of{.forward = f.usual, .backward = b.usual, .first_forward = more(f, 0), .first_backward = more(b, 0)};
    if (m_ > 1) {
      of.last_forward = more(f, m_ - 1);
      of.last_backward = more(b, m_ - 1);
    }
    return of;
  }

  // Pairs of rows store no tokens: puts the inputs of the even row t where the other rows read them.
  void place_tokens(Index t) {
    const Half &even = rows_.half[0], &odd = rows_.half[1];
    double* forward = rows_.forward_tokens + (rows_.last - t / 2);
    double* backward = rows_.backward_tokens + (t / 2 - p_ + 1);
    for (Index u = 1; u < even.count; ++u) {
      forward[u] = odd.own[u - 1];
      backward[u - 1] = even.own[u];
    }
  }

  void prepare() {
    rows_.p = p_;
    rows_.m = m_;
    rows_.split = split_;
    rows_.blocking = blocking_;
    rows_.last = m_ - 1;
    rows_.hop = costs_.hop_seconds.data();
    const Index n = (p_ + 1) / 2;
    Arena arena(storage_.values, 16 * n + 4 + 8 * p_);
    for (Index q = 0; q < 2; ++q) {
      Half& half = rows_.half[q];
      half.count = (p_ - q + 1) / 2;
      for (double** array : {&half.next, &half.forward, &half.backward, &half.below, &half.above, &half.after_forward})
        *array = arena.take_unset(n);
      half.after_backward = arena.take(n);
      half.own = arena.take(n + 2) + 1;
      half.own[-1] = half.own[n] = kNever;
      if (half.count == n) continue;
      half.own[half.count] = half.below[half.count] = half.above[half.count] = kNever;
      half.forward[half.count] = half.backward[half.count] = 0;
    }
    for (double** array :
         {&rows_.first_forward, &rows_.last_forward, &rows_.first_backward, &rows_.last_backward,
          &rows_.weight_gradient, &rows_.first_weight_gradient, &rows_.first_forward_end, &rows_.last_backward_end})
      *array = arena.take_unset(p_);
    Stage like;  // a stage of the same class
    for (Index s = 0; s < p_; ++s) {
      if (s == 0 || costs_.stage_class[s] != costs_.stage_class[s - 1]) like = stage(s);
      Half& half = rows_.half[s & 1];
      const Index u = s >> 1;
      const double below = s > 0 ? hop(s - 1) : 0, above = s + 1 < p_ ? hop(s) : 0;
      half.forward[u] = like.forward + (blocking_ ? below : 0);
      half.backward[u] = like.backward + (blocking_ ? above : 0);
      half.below[u] = blocking_ ? 0 : below;
      half.above[u] = blocking_ ? 0 : above;
      half.after_forward[u] = blocking_ ? above : 0;  // until a backward is next
      rows_.first_forward[s] = like.first_forward;
      rows_.first_backward[s] = like.first_backward;
      rows_.last_forward[s] = like.last_forward;
      rows_.last_backward[s] = like.last_backward;
      if (split_) {
        const SlotSeconds& w = seconds(s, SlotKind::weight_gradient);
        rows_.weight_gradient[s] = w.usual;
        rows_.first_weight_gradient[s] = w.usual + more(w, 0);
        if (s == 0) rows_.last_weight_gradient = more(w, m_ - 1);
      }
    }
    // The first stage waits for nothing: its inputs arrive at time 0.
    storage_.forward_tokens.assign(static_cast<std::size_t>(m_), 0.0);
    storage_.backward_tokens.assign(static_cast<std::size_t>(m_), 0.0);
    rows_.forward_tokens = storage_.forward_tokens.data();
    rows_.backward_tokens = storage_.backward_tokens.data();
  }

  // Seconds of receives, and of sends that no exchange hides.
  double transfer_seconds(Index s) const {
    const double m = static_cast<double>(m_);
    double sum = 0;
    if (s > 0) sum += (m + static_cast<double>(std::min(m_, p_ - s))) * hop(s - 1);
    if (s + 1 < p_) sum += (m + static_cast<double>(std::min(m_ - 1, p_ - 1 - s))) * hop(s);
    return sum;
  }

  bool split_, blocking_;
  Index p_, m_;
  const PipelineCosts& costs_;
  RowStorage& storage_;
  PipelineClock& out_;
  ParityRows rows_;
};

}  // namespace

void walk_one_f_one_b(const Schedule& schedule, const PipelineCosts& costs, RowStorage& storage, PipelineClock& out) {
  SingleChunk(schedule, costs, storage, out).walk();
}

}  // namespace orrery::rows
