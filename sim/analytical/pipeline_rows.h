// The fast path of PipelineWalker::walk(): schedules whose slots form rows, where each row depends on earlier rows
// only. Internal to sim/analytical; pipeline_walk.h has the contract.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "sim/analytical/pipeline_walk.h"

namespace orrery {

// Seconds of the slot of micro-batch `micro_batch` of `micro_batches`.
inline double seconds_of(const SlotSeconds& s, std::int64_t micro_batch, std::int64_t micro_batches) {
  if (micro_batches == 1) return s.first + s.last - s.usual;
  return micro_batch == 0 ? s.first : micro_batch == micro_batches - 1 ? s.last : s.usual;
}

// Detects that rows repeat. The state x_t of all stages after row t satisfies x_{t+1} = A_t x_t in the max-plus
// algebra, where A_t has a fixed period. If x_t = x_r + lambda in every component, and t - r is a multiple of that
// period, then x_{t + n(t-r)} = x_t + n lambda for all n (Baccelli et al. 1992, Synchronization and Linearity, section
// 3.7). If the components differ from lambda by at most e, the error grows to at most n e, because max-plus maps do not
// expand distances; kTolerance keeps it below 1e-11 of the makespan.
class PeriodFinder {
 public:
  // Compares with two earlier states. One is taken every 1, 2, 4, ... looks and finds short periods early. The other is
  // taken every `stages` looks and finds the period of a schedule that is bound by the round trip of its `stages`
  // micro-batches. `near` and `far` are storage.
  PeriodFinder(std::vector<double>& near, std::vector<double>& far, std::int64_t stages)
      : near_{near}, far_{far, 0, stages} {}

  // The state is the two arrays one after the other. Returns true if it repeats the state `looks()` looks ago.
  bool look(const double* a, std::int64_t na, const double* b, std::int64_t nb) {
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
  std::int64_t looks() const { return looks_; }
  double lambda() const { return lambda_; }

 private:
  static constexpr double kTolerance = 1e-11;

  struct Snapshot {
    std::vector<double>& state;
    std::int64_t at = 0, looks = 1;    // number of the look at which it was taken; looks for which it is kept
    std::int64_t differs[2] = {0, 0};  // where each array last differed: it is likely to differ nearby again
    bool second = false;               // whether the second array differed
  };

  static void take(Snapshot& into, std::int64_t now, const double* a, std::int64_t na, const double* b,
                   std::int64_t nb) {
    into.at = now;
    into.state.assign(a, a + na);
    into.state.insert(into.state.end(), b, b + nb);
  }
  static bool differs(const double* now, const double* then, std::int64_t n, double lambda, std::int64_t& where) {
    std::int64_t i = where > 0 ? where - 1 : 0;
    for (std::int64_t k = 0; k < n; ++k, i = i + 1 == n ? 0 : i + 1)
      if (!(std::abs(now[i] - then[i] - lambda) <= kTolerance * lambda)) return where = i, true;
    return false;
  }
  bool repeats(Snapshot& then, const double* a, std::int64_t na, const double* b, std::int64_t nb) {
    lambda_ = a[0] - then.state[0];
    const auto first_differs = [&] { return differs(a, then.state.data(), na, lambda_, then.differs[0]); };
    const auto second_differs = [&] { return differs(b, then.state.data() + na, nb, lambda_, then.differs[1]); };
    if (then.second ? second_differs() : first_differs()) return false;
    if (then.second ? first_differs() : second_differs()) return then.second = !then.second, false;
    return true;
  }

  Snapshot near_, far_;
  std::int64_t now_ = -1, looks_ = 0;
  double lambda_ = 0;
};

// The orders that form rows: 1F1B, also with split backwards (ZB-H1) or blocking transfers, GPipe, and the interleaved
// schedule. Forwards are counted over chunks by k as in Megatron-LM: with several chunks, forward k is of chunk
// (k mod pv) / p and micro-batch p (k / pv) + k mod p. Backwards are counted in the same way from the last chunk on. On
// stage s, row t holds forward k = (t - s) / turn and then backward k = (t - offset + s) / turn, where these are whole
// numbers. Each depends only on what the stage and its neighbour on the ring of stages left in row t - 1.
struct RowOrder {
  std::int64_t stages = 0, chunks = 0;
  std::int64_t slots = 0;             // forwards of a stage
  std::int64_t turn = 1, offset = 0;  // turn: 1 or 2

  std::int64_t by_turn(std::int64_t rows) const { return rows >> (turn - 1); }  // rows / turn, without remainder
  // The forwards that a stage runs before the one that its first backward follows.
  std::int64_t lead(std::int64_t stage) const { return by_turn(offset - 2 * stage); }
  // How many forwards follow each other in one chunk, and in all chunks.
  std::int64_t run() const { return chunks == 1 ? slots : stages; }
  std::int64_t period() const { return chunks * run(); }
};

class RowWalker {
 public:
  // Fills out.stages. Returns false and changes nothing if the schedule is none of the orders. It recognises them by
  // their slots, not by a name.
  bool walk(const Schedule& schedule, const PipelineCosts& costs, PipelineClock& out);

  // Seconds, hops and results of the stages. Stages that run forwards in one row lie side by side (lane).
  struct Rows {
    RowOrder order;         // its slots decrease when rows are skipped
    std::int64_t last = 0;  // slots - 1 at the start
    bool blocking = false, split = false;
    std::vector<double> own;                              // by stage: when it is free
    std::vector<double> forward, backward, below, above;  // [chunk, stage]; hops from the positions before and after
    std::vector<double> forward_now, backward_now, below_now, above_now;  // by stage: for the chunks of the current row
    // Seconds that the first and the last micro-batch take in addition to a usual one.
    std::vector<double> first_forward, last_forward, first_backward, last_backward;
    // By stage: what follows a slot in the current row, namely an exposed send, or a weight gradient; and what follows
    // the stage's last backwards.
    std::vector<double> after_forward, after_backward, behind_backward;
    std::vector<double> first_weight_gradient;            // by stage, in addition to a usual one
    double last_weight_gradient = 0;                      // the same, on stage 0, which alone runs it behind a backward
    std::vector<double> forward_tokens, backward_tokens;  // end of slot k on its latest stage: [k], [last - k]
    std::vector<double> first_forward_end, last_backward_end;  // by stage, filled
    const double* behind_last = nullptr;                       // PipelineCosts::behind_last, with `stages` slots
    const std::int32_t* stage_class = nullptr;

    // Stages stages - 1 - parity - turn * i, for i = 0, 1, ...: where they begin, and how many they are.
    std::int64_t lane(std::int64_t parity) const { return parity * ((order.stages + 1) / 2); }
    std::int64_t count(std::int64_t parity) const { return order.by_turn(order.stages - 1 - parity) + 1; }
    std::int64_t at(std::int64_t stage) const {
      const std::int64_t u = order.stages - 1 - stage;
      return lane(u & (order.turn - 1)) + order.by_turn(u);
    }
  };

 private:
  void prepare(const Schedule& schedule, const PipelineCosts& costs);

  Rows rows_;
  std::vector<double> near_, far_;  // for PeriodFinder
};

}  // namespace orrery
