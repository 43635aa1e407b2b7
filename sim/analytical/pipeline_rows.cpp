#include "sim/analytical/pipeline_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

// Rows are loops over stages without dependencies between them; wider vectors pay where the machine has them (AVX-512
// gains nothing over AVX2 here). (Sanitizers cannot run the resolver functions that this needs.)
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && defined(__OPTIMIZE__)
#define ORRERY_VECTOR_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define ORRERY_VECTOR_CLONES
#endif

namespace orrery {

namespace {

using Index = std::int64_t;
constexpr double kNever = -std::numeric_limits<double>::infinity();

// Detects that rows repeat. The state x_t of all stages after row t obeys x_{t+1} = A_t x_t in the max-plus algebra,
// with A_t of a fixed period. If x_t = x_r + lambda in every component, with t - r a multiple of that period, then
// x_{t + n(t-r)} = x_t + n lambda for all n (Baccelli et al. 1992, Synchronization and Linearity, section 3.7). If the
// components differ from lambda by at most e, the error grows to n e at the most, as max-plus maps do not expand
// distances; kTolerance keeps it below 1e-11 of the makespan.
class PeriodFinder {
 public:
  // Compares with two earlier states: one taken every 1, 2, 4, ... looks (finds short periods early), one every
  // `stages` looks (finds the period of a schedule that is bound by the round trip of its `stages` micro-batches).
  PeriodFinder(std::vector<double>& near, std::vector<double>& far, Index stages) : near_{near}, far_{far, 0, stages} {}

  // The state is the two arrays one after the other. True when it repeats the state `looks()` looks ago.
  bool look(const double* a, Index na, const double* b, Index nb) {
    ++now_;
    for (Snapshot* then : {&near_, &far_}) {
      if (now_ == 0) {
        take(*then, now_, a, na, b, nb);
      } else if (repeats(*then, a, na, b, nb)) {
        looks_ = now_ - then->at;
        return true;
      }
    }
    if (now_ - near_.at == near_.looks) take(near_, now_, a, na, b, nb), near_.looks *= 2;
    if (now_ - far_.at == far_.looks) take(far_, now_, a, na, b, nb);
    return false;
  }
  Index looks() const { return looks_; }
  double lambda() const { return lambda_; }

 private:
  static constexpr double kTolerance = 1e-11;

  struct Snapshot {
    std::vector<double>& state;
    Index at = 0, looks = 1;    // taken at this look, kept for so many
    Index differs[2] = {0, 0};  // where each array last differed: likely to differ again near by
    bool second = false;        // it was the second array
  };

  static void take(Snapshot& into, Index now, const double* a, Index na, const double* b, Index nb) {
    into.at = now;
    into.state.assign(a, a + na);
    into.state.insert(into.state.end(), b, b + nb);
  }
  static bool differs(const double* now, const double* then, Index n, double lambda, Index& where) {
    Index i = where > 0 ? where - 1 : 0;
    for (Index k = 0; k < n; ++k, i = i + 1 == n ? 0 : i + 1)
      if (!(std::abs(now[i] - then[i] - lambda) <= kTolerance * lambda)) return where = i, true;
    return false;
  }
  bool repeats(Snapshot& then, const double* a, Index na, const double* b, Index nb) {
    lambda_ = a[0] - then.state[0];
    const auto first_differs = [&] { return differs(a, then.state.data(), na, lambda_, then.differs[0]); };
    const auto second_differs = [&] { return differs(b, then.state.data() + na, nb, lambda_, then.differs[1]); };
    if (then.second ? second_differs() : first_differs()) return false;
    if (then.second ? first_differs() : second_differs()) return then.second = !then.second, false;
    return true;
  }

  Snapshot near_, far_;
  Index now_ = -1, looks_ = 0;
  double lambda_ = 0;
};

// Hands out arrays from one growing block.
class Arena {
 public:
  Arena(std::vector<double>& values, Index size) : values_(values) {
    values_.assign(static_cast<std::size_t>(size), 0.0);
  }
  double* take(Index n) {
    double* at = values_.data() + used_;
    used_ += n;
    return at;
  }

 private:
  std::vector<double>& values_;
  Index used_ = 0;
};

// Seconds of micro-batches [begin, end).
double range_seconds(const SlotSeconds& s, Index begin, Index end, Index m) {
  if (begin >= end) return 0;
  double sum = static_cast<double>(end - begin) * s.usual;
  if (begin == 0) sum += s.first - s.usual;
  if (end == m) sum += s.last - s.usual;
  return sum;
}

// ---------------------------------------------------------------------------------------------------------------------
// GPipe: all forwards, then all backwards. The ends e(i) of one stage's pass over its micro-batches i obey
// e(i) = max(e(i-1), a(i)) + d with a(i) the arrivals. If a is a maximum of lines over the usual micro-batches, so is
// e: the same lines moved by d, and one line of slope d through the first of them (a is convex, so between waiting for
// a(i) and having been busy since the first nothing else counts).
class GpipePass {
 public:
  explicit GpipePass(Index m) : m_(m) {}

  // The next stage along the pass, which is free at `free` and `hop` away.
  void stage(double hop, double free, const SlotSeconds& d) {
    const double first = std::max(free, first_ + hop) + seconds_of(d, 0, m_);
    double before_last = first;
    if (m_ > 2) {
      const double second = std::max(first, lines_.empty() ? kNever : lines_.back().value + moved_ + hop) + d.usual;
      moved_ += hop + d.usual;
      while (!lines_.empty() && lines_.back().slope <= d.usual) lines_.pop_back();
      lines_.push_back({d.usual, second - moved_});
      before_last = kNever;
      for (const Line& line : lines_)
        before_last = std::max(before_last, line.value + static_cast<double>(m_ - 3) * line.slope);
      before_last += moved_;
    }
    first_ = first;
    last_ = m_ == 1 ? first : std::max(before_last, last_ + hop) + d.last;
  }
  double first() const { return first_; }  // end of the first micro-batch
  double last() const { return last_; }

 private:
  struct Line {
    double slope, value;  // at the second micro-batch, less moved_
  };
  Index m_;
  double first_ = kNever, last_ = kNever, moved_ = 0;
  std::vector<Line> lines_;
};

// ---------------------------------------------------------------------------------------------------------------------
// `count` stages of a row, each with the token it works on. Returns with tokens and `own` at the ends of the slots.
template <bool kAfter>
inline __attribute__((always_inline)) void run_slots(Index count, double* __restrict own, double* __restrict token,
                                                     const double* __restrict hop, const double* __restrict seconds,
                                                     const double* __restrict after) {
  for (Index u = 0; u < count; ++u) {
    const double input = token[u] + hop[u], free = own[u];
    const double done = (input > free ? input : free) + seconds[u];
    token[u] = done;
    own[u] = kAfter ? done + after[u] : done;
  }
}

// One chunk per stage in 1F1B's order, with or without split backwards (1f1b, zb-h1). Row t holds, for the stages of
// t's parity, the forward of micro-batch (t - s) / 2; for the others the backward of micro-batch (t - 2p + 1 + s) / 2.
// Each needs only what its neighbour left in row t - 1.
struct Half {  // the stages s = 2u + parity
  Index count = 0;
  double* own = nullptr;   // when the stage is free; kNever before the first stage and behind the last
  double* next = nullptr;  // the same one row later, in a pair of rows
  double *forward = nullptr, *backward = nullptr;
  double *below = nullptr, *above = nullptr;                   // hop from the stage below, above
  double *after_forward = nullptr, *after_backward = nullptr;  // occupied after the slot: sends, weight gradients
};

struct ParityRows {
  Index p = 0, m = 0;  // m shrinks when rows are skipped
  bool split = false, blocking = false;
  Half half[2];
  Index last = 0;                     // m - 1 as it was at the start
  double* forward_tokens = nullptr;   // [last - micro-batch]: end of its latest forward
  double* backward_tokens = nullptr;  // [micro-batch]
  // What the first and the last micro-batch take more than the usual one, [stage].
  double *first_forward = nullptr, *last_forward = nullptr, *first_backward = nullptr, *last_backward = nullptr;
  double *weight_gradient = nullptr, *first_weight_gradient = nullptr;
  double last_weight_gradient = 0;                                    // more, of stage 0
  const double* hop = nullptr;                                        // [stage]
  bool after() const { return split || blocking; }                    // stages are occupied after a slot
  double *first_forward_end = nullptr, *last_backward_end = nullptr;  // [stage], filled
};

// kAfter: after_forward and after_backward are not all zero. kEdge: rows with first or last micro-batches, or in which
// the extras change.
template <bool kAfter, bool kEdge>
inline __attribute__((always_inline)) void run_parity_rows(ParityRows& rows, Index t_begin, Index t_end) {
  const Index p = rows.p, m = rows.m;
  const auto exists = [p](Index s) { return static_cast<std::uint64_t>(s) < static_cast<std::uint64_t>(p); };
  const auto at = [&rows](Index s) -> Half& { return rows.half[s & 1]; };
  for (Index t = t_begin; t < t_end; ++t) {
    // Stages with the first and the last forward, the first and the last backward.
    const Index first_f = t, last_f = t - 2 * (m - 1), first_b = 2 * p - 1 - t, last_b = 2 * m + 2 * p - 3 - t;
    const Index first_w = t - 2 * p + 1;  // with the backward after which the weight gradients begin
    if (kAfter && kEdge) {
      if (rows.split && exists(first_w)) at(first_w).after_backward[first_w >> 1] = rows.first_weight_gradient[first_w];
      if (rows.split && last_b == 0 && m > 1) rows.half[0].after_backward[0] += rows.last_weight_gradient;
      if (rows.blocking) {
        // The forward that the first backward follows, and the last one: their send is part of an exchange.
        const Index pairs = 2 * p - 2 - t;
        if (exists(pairs)) at(pairs).after_forward[pairs >> 1] = 0;
        if (exists(last_f)) at(last_f).after_forward[last_f >> 1] = 0;
        // From the backward that no forward follows on, its send is seen.
        const Index drain = t - 2 * m + 1;
        if (exists(drain) && drain > 0 && drain >= p - m) at(drain).after_backward[drain >> 1] = rows.hop[drain - 1];
        if (exists(first_b) && first_b > 0 && first_b < p - m)
          at(first_b).after_backward[first_b >> 1] = rows.hop[first_b - 1];
      }
    }
    const Index q = t & 1;
    const Half &f = rows.half[q], &b = rows.half[1 - q];
    const Index up = (t - q) >> 1, down = (t - 2 * p + 2 - q) >> 1;  // the micro-batch at u is up - u, down + u
    // Stages that have a slot in the row: all of them but at the edges.
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

// Half a row of usual slots without extras. Tokens need not be kept: a slot's input is its neighbour's end in the row
// before.
inline __attribute__((always_inline)) void run_row(Index count, const double* __restrict free,
                                                   const double* __restrict input, const double* __restrict hop,
                                                   const double* __restrict seconds, double* __restrict end) {
  for (Index u = 0; u < count; ++u) {
    const double arrived = input[u] + hop[u];
    end[u] = (arrived > free[u] ? arrived : free[u]) + seconds[u];
  }
}

// An even row (forwards of the even stages, backwards of the odd ones) and the odd one behind it, many times.
ORRERY_VECTOR_CLONES void run_row_pairs(const ParityRows& rows, Index pairs) {
  const Half &even = rows.half[0], &odd = rows.half[1];
  const Index n = even.count;  // odd stages may be one fewer
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

  void walk_gpipe() {
    GpipePass forward(m_), backward(m_);
    for (Index s = 0; s < p_; ++s) {
      const SlotSeconds& d = seconds(s, SlotKind::forward);
      forward.stage(s > 0 ? hop(s - 1) : 0, 0, d);
      out_.stages[s].first_forward_begin = forward.first() - seconds_of(d, 0, m_);
      out_.stages[s].finish = forward.last();
    }
    for (Index s = p_; s-- > 0;) {
      StageClock& clock = out_.stages[s];
      backward.stage(s + 1 < p_ ? hop(s) : 0, clock.finish, seconds(s, SlotKind::backward));
      clock.finish = clock.last_backward_end = backward.last();
    }
  }

  void walk_one_f_one_b() {
    prepare();
    // Rows in which every stage works on a usual micro-batch, with the extras as they stay.
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
      // A micro-batch's end at its latest stage is that stage's `own` up to a constant, so `own` is the whole state.
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
      double weight_gradients = 0;  // those that ran after no backward
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
  // What micro-batch i takes more than the usual one.
  double more(const SlotSeconds& d, Index i) const { return seconds_of(d, i, m_) - d.usual; }

  // Pairs of rows leave no tokens behind: puts what row t, an even one, reads where the other rows look for it.
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
      for (double** array : {&half.next, &half.forward, &half.backward, &half.below, &half.above, &half.after_forward,
                             &half.after_backward})
        *array = arena.take(n);
      half.own = arena.take(n + 2) + 1;
      half.own[-1] = half.own[n] = kNever;
      if (half.count < n) half.own[half.count] = half.below[half.count] = half.above[half.count] = kNever;
    }
    for (double** array :
         {&rows_.first_forward, &rows_.last_forward, &rows_.first_backward, &rows_.last_backward,
          &rows_.weight_gradient, &rows_.first_weight_gradient, &rows_.first_forward_end, &rows_.last_backward_end})
      *array = arena.take(p_);
    for (Index s = 0; s < p_; ++s) {
      Half& half = rows_.half[s & 1];
      const Index u = s >> 1;
      const SlotSeconds &f = seconds(s, SlotKind::forward), &b = seconds(s, SlotKind::backward);
      const double below = s > 0 ? hop(s - 1) : 0, above = s + 1 < p_ ? hop(s) : 0;
      half.forward[u] = f.usual + (blocking_ ? below : 0);
      half.backward[u] = b.usual + (blocking_ ? above : 0);
      half.below[u] = blocking_ ? 0 : below;
      half.above[u] = blocking_ ? 0 : above;
      half.after_forward[u] = blocking_ ? above : 0;  // until a backward is next
      rows_.first_forward[s] = more(f, 0);
      rows_.first_backward[s] = more(b, 0);
      if (m_ > 1) {
        rows_.last_forward[s] = more(f, m_ - 1);
        rows_.last_backward[s] = more(b, m_ - 1);
      }
      if (split_) {
        const SlotSeconds& w = seconds(s, SlotKind::weight_gradient);
        rows_.weight_gradient[s] = w.usual;
        rows_.first_weight_gradient[s] = w.usual + more(w, 0);
        if (s == 0) rows_.last_weight_gradient = more(w, m_ - 1);
      }
    }
    // The first stage waits for nothing: time 0.
    storage_.forward_tokens.assign(static_cast<std::size_t>(m_), 0.0);
    storage_.backward_tokens.assign(static_cast<std::size_t>(m_), 0.0);
    rows_.forward_tokens = storage_.forward_tokens.data();
    rows_.backward_tokens = storage_.backward_tokens.data();
  }

  // Receives, and the sends that no exchange hides.
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

// ---------------------------------------------------------------------------------------------------------------------
// Interleaved 1F1B. Slots are counted as Megatron-LM does, by virtual micro-batch k: chunk (k mod pv) / p of
// micro-batch p (k / pv) + k mod p. Row t holds, on stage s, forward k = t - s and then backward k = t - offset + s.
// Each needs only what its neighbour on the ring of stages left in row t - 1. Arrays run over u = p - 1 - s.
struct RingRows {
  Index p = 0, v = 0, n = 0, offset = 0;  // n = m v; shrinks when rows are skipped
  Index last = 0;                         // n - 1 as it was at the start
  double* own = nullptr;
  double *below = nullptr, *above = nullptr;               // hop from the previous stage on the ring, from the next
  double *forward = nullptr, *backward = nullptr;          // [chunk * p + u]
  double *forward_now = nullptr, *backward_now = nullptr;  // [u], of the chunks of the row at hand
  // What the first and the last micro-batch take more than the usual one, [chunk * p + u].
  double *first_forward = nullptr, *last_forward = nullptr, *first_backward = nullptr, *last_backward = nullptr;
  double* forward_tokens = nullptr;     // [k]
  double* backward_tokens = nullptr;    // [last - k]
  double* first_forward_end = nullptr;  // [u], filled
};

// Where a virtual micro-batch stands: k = run * p + place, chunk `run mod v`. Moves without divisions.
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

// kEdge: not all stages work on usual micro-batches, or not all in both directions.
template <bool kEdge>
inline __attribute__((always_inline)) void run_ring_rows(RingRows& r, Index t_begin, Index t_end) {
  const Index p = r.p, v = r.v, n = r.n, period = p * v;
  Standing f(t_begin, p, v), b(t_begin - r.offset + p - 1, p, v);  // of stage 0's forward, of the last stage's backward
  for (Index u = 0; u < p; ++u) {
    r.forward_now[u] = r.forward[(u < p - 1 - f.place ? f.run_before(v) : f.run) * p + u];
    r.backward_now[u] = r.backward[(v - 1 - (u <= b.place ? b.run : b.run_before(v))) * p + u];
  }
  for (Index t = t_begin; t < t_end; ++t, f.next(p, v), b.next(p, v)) {
    // Forward k = f0 + u and backward k = b0 - u of this row.
    const Index f0 = t - p + 1, b0 = t - r.offset + p - 1;
    // What goes round the ring to its next chunk.
    if (f.run > 0 && t < n) r.forward_tokens[t] = r.forward_tokens[t - p];
    if (b.run > 0 && b0 >= 0 && b0 < n) r.backward_tokens[r.last - b0] = r.backward_tokens[r.last - b0 + p];
    // In each row one stage comes to a new chunk in each direction: it has the first place of a run.
    const Index first_f = p - 1 - f.place, first_b = b.place;
    const Index f_row = f.run * p, b_row = (v - 1 - b.run) * p;
    r.forward_now[first_f] = r.forward[f_row + first_f];
    r.backward_now[first_b] = r.backward[b_row + first_b];
    if (!kEdge) {
      run_pairs(p, r.own, r.forward_tokens + f0, r.below, r.forward_now, r.backward_tokens + (r.last - b0), r.above,
                r.backward_now);
      continue;
    }
    const auto add = [&r](Index u, double& token, double more) { token += more, r.own[u] += more; };
    const auto slots = [&r](Index begin, Index end, double* tokens, Index at, const double* hop,
                            const double* seconds) {
      if (begin < end)
        run_slots<false>(end - begin, r.own + begin, tokens + (at + begin), hop + begin, seconds + begin, nullptr);
    };
    // Another stage has the last place of a run, of the run before unless that stage is the row's first.
    slots(std::max<Index>(0, -f0), std::min(p, n - f0), r.forward_tokens, f0, r.below, r.forward_now);
    const Index last_f = first_f == 0 ? p - 1 : first_f - 1;
    const Index last_f_row = first_f == 0 ? f_row : f.run_before(v) * p;
    if (const Index k = f0 + first_f; k >= 0 && k < period)
      add(first_f, r.forward_tokens[k], r.first_forward[f_row + first_f]);
    if (const Index k = f0 + last_f; k >= n - period && k < n)
      add(last_f, r.forward_tokens[k], r.last_forward[last_f_row + last_f]);
    if (t < p) r.first_forward_end[p - 1 - t] = r.forward_tokens[0];

    slots(std::max<Index>(0, b0 - n + 1), std::min(p, b0 + 1), r.backward_tokens, r.last - b0, r.above, r.backward_now);
    const Index last_b = first_b == p - 1 ? 0 : first_b + 1;
    const Index last_b_row = first_b == p - 1 ? b_row : (v - 1 - b.run_before(v)) * p;
    if (const Index k = b0 - first_b; k >= 0 && k < period)
      add(first_b, r.backward_tokens[r.last - k], r.first_backward[b_row + first_b]);
    if (const Index k = b0 - last_b; k >= n - period && k < n)
      add(last_b, r.backward_tokens[r.last - k], r.last_backward[last_b_row + last_b]);
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
      // State: when each stage is free, which is also the end of its latest backward, and of its latest forward.
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
    rows_.offset = 2 * (p_ - 1) + (v_ - 1) * p_;
    // Forward n-1 of stage s is in row n-1+s, its backward 0 in row offset-s.
    if (forwards_first) rows_.offset = std::max(rows_.offset, rows_.n - 1 + 2 * (p_ - 1));
    Arena arena(storage_.values, (6 + 6 * v_) * p_);
    for (double** array :
         {&rows_.own, &rows_.below, &rows_.above, &rows_.first_forward_end, &rows_.forward_now, &rows_.backward_now})
      *array = arena.take(p_);
    for (double** array : {&rows_.forward, &rows_.backward, &rows_.first_forward, &rows_.last_forward,
                           &rows_.first_backward, &rows_.last_backward})
      *array = arena.take(v_ * p_);
    const double wrap = p_ > 2 ? costs_.hop_seconds[p_ - 1] : costs_.hop_seconds[0];
    for (Index s = 0; s < p_; ++s) {
      const Index u = p_ - 1 - s;
      rows_.below[u] = s > 0 ? costs_.hop_seconds[s - 1] : wrap;
      rows_.above[u] = s + 1 < p_ ? costs_.hop_seconds[s] : wrap;
      for (Index c = 0; c < v_; ++c) {
        const SlotSeconds &f = seconds(s, c, SlotKind::forward), &b = seconds(s, c, SlotKind::backward);
        const Index at = c * p_ + u;
        rows_.forward[at] = f.usual;
        rows_.backward[at] = b.usual;
        rows_.first_forward[at] = f.first - f.usual;  // m is at least p, which is at least 2
        rows_.last_forward[at] = f.last - f.usual;
        rows_.first_backward[at] = b.first - b.usual;
        rows_.last_backward[at] = b.last - b.usual;
      }
    }
    // The model's first chunk waits for nothing; nor does its last one's backward, but for its own forward.
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

// ---------------------------------------------------------------------------------------------------------------------
// Recognition: every segment is compared with what the rows assume.
enum class Order { other, gpipe, one_f_one_b, interleaved, interleaved_forwards_first };

// Which kinds a pattern holds, at most one each, in the order forward, backward, weight gradient.
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

// Stage s of a single-chunk order: forwards, backwards and weight gradients each in the order of micro-batches;
// min(m, lead + i + 1) forwards before backward i; weight gradient i after backward min(m - 1, i + s), at once if not
// the last.
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

// A count of virtual micro-batches that moves in runs.
struct VirtualCount {
  Index total = 0, place = 0, run = 0, first = 0;  // chunk run `run`, at micro-batch first + place

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

// A stage of the interleaved order with min(n, lead + i + 1) forwards before its backward i.
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

Order recognise(const Schedule& schedule) {
  const Index p = static_cast<Index>(schedule.stages.size()), v = schedule.chunks, m = schedule.micro_batches;
  for (Index s = 0; s < p; ++s)
    for (Index c = 0; c < v; ++c)
      if (schedule.position_of(s, c) != c * p + s) return Order::other;
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

}  // namespace

bool walk_rows(const Schedule& schedule, const PipelineCosts& costs, RowStorage& storage, PipelineClock& out) {
  const Order order = recognise(schedule);
  if (order == Order::other) return false;
  out.stages.assign(schedule.stages.size(), {});
  switch (order) {
    case Order::gpipe:
      SingleChunk(schedule, costs, storage, out).walk_gpipe();
      break;
    case Order::one_f_one_b:
      SingleChunk(schedule, costs, storage, out).walk_one_f_one_b();
      break;
    default:
      Interleaved(schedule, costs, storage, out).walk(order == Order::interleaved_forwards_first);
  }
  return true;
}

}  // namespace orrery
