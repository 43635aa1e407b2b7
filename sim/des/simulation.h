// The run itself, on SimGrid (sim/des/simgrid; a program that never simulates links simgrid_absent.cpp in its place,
// and starts without loading SimGrid). Internal to sim/des: call it in a process of its own (sim/des/child_process.h).
//
// One process per stream of a rank class (the compute stream's also walks the schedule), and a host of SimGrid per flow
// class whose route holds the links that can bind it, each as often as the class's flows pass it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/des/plan.h"

namespace orrery {

// Plain data, to cross from one process to another.

struct ClassOutcome {
  Accounts accounts{};
  double transfers = 0;  // the stream is occupied by sends and receives
  double slots_end = 0;  // the last slot's end
  double end = 0;        // parameters are updated
  std::uint32_t last_event = 0;
};
struct FlowRecord {
  double begin = 0, end = 0;
  double bytes = 0, wire_bytes = 0;  // of one flow, without and with protocol overheads
  std::uint32_t flow_class = 0;
};
// An op of a rank class on a stream, a transfer, or a slot.
struct EventRecord {
  enum Kind : std::uint8_t { op, transfer, slot };
  static constexpr std::uint32_t kNoCause = 0xffffffff;
  double begin = 0, end = 0;
  std::uint32_t cause = kNoCause;  // the event that let this one begin
  std::uint32_t rank_class = 0;
  std::uint32_t name = 0;  // op: into JobPlan::ops; slot: micro-batch; transfer: the class that receives
  std::uint16_t chunk = 0;  // op: how many instances it stands for
  std::uint8_t stream = 0, kind = op, slot_kind = 0;
  bool waited_for_host = false;  // between the cause's end and the begin
};
// As the name of what belongs to no block: transfers between stages.
inline constexpr std::uint32_t kTransferName = 0xffffffff;
struct ExchangeRecord {  // all runs of an exchange by a rank class
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
  std::int64_t activities = 0;  // sleeps and flows
  double seconds = 0;           // a single collective's

  std::string pack() &&;  // frees each part once it is packed: of a long run records are most of the memory
  static Outcome unpack(const std::string& bytes);
};

// One step of every job. REQUIRES, as below: built_with_simgrid().
Outcome simulate_steps(const RunPlan& plan);
// One exchange, of all its groups at once.
Outcome simulate_exchange(const RunPlan& plan, std::uint32_t exchange);

}  // namespace orrery
