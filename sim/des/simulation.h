// The simulation on SimGrid (sim/des/simgrid). A program that never simulates does not link it, and starts without
// loading SimGrid (built_with_simgrid). Internal to sim/des: call it in a process of its own (run_in_child).
//
// There is one process per stream of a rank class; that of the compute stream also walks the schedule. There is one
// SimGrid host per flow class. Its route holds the links that can bind the class, each as many times as the class's
// flows pass it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/des/plan.h"

namespace orrery {

// Plain data, which crosses from one process to another.

struct ClassOutcome {
  Accounts accounts{};
  double transfers = 0;  // seconds for which sends and receives occupy the stream
  double slots_end = 0;  // end of the last slot
  double end = 0;        // parameters are updated
  std::uint32_t last_event = 0;
};
struct FlowRecord {
  double begin = 0, end = 0;
  double bytes = 0, wire_bytes = 0;  // of one flow, without and with protocol overheads
  std::uint32_t flow_class = 0;
};
// A record of a rank class: an op on a stream, a transfer, or a slot.
struct EventRecord {
  enum Kind : std::uint8_t { op, transfer, slot };
  static constexpr std::uint32_t kNoCause = 0xffffffff;
  double begin = 0, end = 0;
  std::uint32_t cause = kNoCause;  // the event after which this one could begin
  std::uint32_t rank_class = 0;
  std::uint32_t name = 0;   // op: index into JobSimulation::ops; slot: micro-batch; transfer: the receiving class
  std::uint16_t chunk = 0;  // op: number of instances that it covers
  std::uint8_t stream = 0, kind = op, slot_kind = 0;
  bool waited_for_host = false;  // between the end of the cause and the beginning
};
// The name of transfers between stages, which belong to no block.
inline constexpr std::uint32_t kTransferName = 0xffffffff;
struct ExchangeRecord {  // all runs of one exchange by one rank class
  std::uint32_t rank_class = 0, exchange = 0, name = 0;
  double times = 0, seconds = 0;
  double longest_begin = 0, longest_end = 0;
};
struct WaitRecord {
  std::uint32_t rank_class = 0, for_class = 0, name = 0;
  double times = 0, seconds = 0;
};

struct Outcome {
  std::string stalled;  // empty, or why the step does not end
  std::vector<ClassOutcome> classes;
  std::vector<FlowRecord> flows;
  std::vector<EventRecord> events;
  std::vector<ExchangeRecord> exchanges;
  std::vector<WaitRecord> waits;
  std::int64_t activities = 0;  // number of sleeps and flows
  double seconds = 0;           // of a single collective
};

// Runs one step of every job. REQUIRES, for both functions: built_with_simgrid().
Outcome simulate_steps(const SimulationPlan& plan);
// Runs one exchange, all its groups at the same time.
Outcome simulate_exchange(const SimulationPlan& plan, std::uint32_t exchange);

// SimGrid allows one simulation per process, and ends the process when it fails. Runs therefore happen in a child:
// calls `simulate` in a fork of this process and returns its outcome (child_process.cpp). Nothing else that the child
// changes reaches this process. Throws std::runtime_error: with the child's message if the child threw, with its signal
// if it died, or with the reason if it could not start or returned nothing.
Outcome run_in_child(const std::function<Outcome()>& simulate);
// The largest memory of the last child, for benchmarks.
double last_child_peak_bytes();
// To be called in the child: sends `outcome` to the parent, whose run_in_child() returns it, and ends the child at
// once, from any depth of the stack.
[[noreturn]] void return_from_child(Outcome outcome);

}  // namespace orrery
