// Helpers shared by the walks over rows of slots. Internal to sim/analytical; pipeline_rows.h uses them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "sim/analytical/pipeline_rows.h"

// Rows are loops over stages without dependencies between them. Wider vectors pay if the machine has them (AVX-512
// gains nothing over AVX2 here). Sanitizers cannot run the resolver functions that this needs.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && defined(__OPTIMIZE__)
#define ORRERY_VECTOR_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define ORRERY_VECTOR_CLONES
#endif

namespace orrery::rows {

using Index = std::int64_t;
inline constexpr double kNever = -std::numeric_limits<double>::infinity();

// Detects that rows repeat. The state x_t of all stages after row t satisfies x_{t+1} = A_t x_t in the max-plus
// algebra, where A_t has a fixed period. If x_t = x_r + lambda in every component, and t - r is a multiple of that
// period, then x_{t + n(t-r)} = x_t + n lambda for all n (Baccelli et al. 1992, Synchronization and Linearity, section
// 3.7). If the components differ from lambda by at most e, the error grows to at most n e, because max-plus maps do not
// expand distances; kTolerance keeps it below 1e-11 of the makespan.
class PeriodFinder {
 public:
  // Compares with two earlier states. One is taken every 1, 2, 4, ... looks and finds short periods early. The other is
  // taken every `stages` looks and finds the period of a schedule that is bound by the round trip of its `stages`
  // micro-batches.
  PeriodFinder(std::vector<double>& near, std::vector<double>& far, Index stages) : near_{near}, far_{far, 0, stages} {}

  // The state is the two arrays one after the other. Returns true if it repeats the state `looks()` looks ago.
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
    Index at = 0, looks = 1;    // number of the look at which it was taken; looks for which it is kept
    Index differs[2] = {0, 0};  // where each array last differed: it is likely to differ nearby again
    bool second = false;        // whether the second array differed
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
  Arena(std::vector<double>& values, Index size) : values_(values) { values_.resize(static_cast<std::size_t>(size)); }
  double* take(Index n) {
    double* at = take_unset(n);
    std::fill_n(at, n, 0.0);
    return at;
  }
  double* take_unset(Index n) {  // not initialised
    double* at = values_.data() + used_;
    used_ += n;
    return at;
  }

 private:
  std::vector<double>& values_;
  Index used_ = 0;
};

// Seconds of micro-batches [begin, end) of m.
inline double range_seconds(const SlotSeconds& s, Index begin, Index end, Index m) {
  if (begin >= end) return 0;
  double sum = static_cast<double>(end - begin) * s.usual;
  if (begin == 0) sum += s.first - s.usual;
  if (end == m) sum += s.last - s.usual;
  return sum;
}

// Runs `count` stages of a row, each with the token it works on. On return, tokens and `own` are the ends of the slots.
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

// The orders that have rows. Every segment of a schedule is compared with the assumptions of the rows.
enum class Order { other, gpipe, one_f_one_b, interleaved, interleaved_forwards_first };
Order recognise(const Schedule& schedule);

// REQUIRES: a schedule of that order.
void walk_gpipe(const Schedule& schedule, const PipelineCosts& costs, PipelineClock& out);
void walk_one_f_one_b(const Schedule& schedule, const PipelineCosts& costs, RowStorage& storage, PipelineClock& out);
// `forwards_first`: no backward before the last forward.
void walk_interleaved(const Schedule& schedule, const PipelineCosts& costs, RowStorage& storage, PipelineClock& out,
                      bool forwards_first);

}  // namespace orrery::rows
