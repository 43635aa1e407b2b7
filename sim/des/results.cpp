#include "sim/des/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>

#include "sim/analytical/block_clock.h"
#include "sim/report/terms.h"

namespace orrery {
namespace {

constexpr std::size_t kListed = 32;         // rows of each list in a report
constexpr std::uint8_t kOtherInterval = 3;  // value of TimelineSpan::kind besides SlotKind's

double least(double a, double b) { return a < b ? a : b; }

}  // namespace

Results::Results(const SimulationPlan& plan, const Outcome& outcome, double seconds) : plan_(plan), outcome_(outcome) {
  bytes_.assign(plan.traffic.link_classes().size(), 0);
  wire_bytes_ = bytes_;
  const auto flows = plan.traffic.flow_classes();
  std::vector<std::pair<double, double>> of_flow(flows.size());
  for (const FlowRecord& r : outcome.flows) {
    of_flow[r.flow_class].first += r.bytes;
    of_flow[r.flow_class].second += r.wire_bytes;
  }
  for (std::size_t f = 0; f < flows.size(); ++f)
    for (const LinkTraffic& load : flows[f].loads) {
      bytes_[load.link_class] += load.flows * of_flow[f].first;
      wire_bytes_[load.link_class] += load.flows * of_flow[f].second;
    }
  for (const LinkClass& c : plan.traffic.link_classes()) rates_.push_back(c.bytes_per_second);
  for (const ResolvedPerturbation& r : plan.perturbations) {
    const Perturbation& p = r.perturbation;
    if (p.kind != PerturbationKind::slow_link || !(seconds > 0)) continue;
    const double until = p.until_seconds > 0 ? least(p.until_seconds, seconds) : seconds;
    const double share = std::max(0.0, until - p.from_seconds) / seconds;
    std::vector<std::uint32_t> slow;
    for (const LinkId l : r.links)
      if (plan.traffic.uses(l)) slow.push_back(plan.traffic.link_class(l));
    std::sort(slow.begin(), slow.end());
    slow.erase(std::unique(slow.begin(), slow.end()), slow.end());
    for (const std::uint32_t c : slow) rates_[c] *= 1 - share * (1 - p.factor);
  }
}

std::vector<std::uint32_t> Results::rank_classes_of(std::size_t job) const {
  std::vector<std::uint32_t> own;
  for (std::uint32_t c = 0; c < plan_.traffic.rank_classes().size(); ++c)
    if (static_cast<std::size_t>(plan_.traffic.rank_classes()[c].job) == job) own.push_back(c);
  return own;
}

std::string Results::who(std::uint32_t rank_class) const {
  const RankClass& c = plan_.traffic.rank_classes()[rank_class];
  const JobSimulation& job = plan_.jobs[static_cast<std::size_t>(c.job)];
  std::string text = job.program->stages.size() > 1 ? fmt::format("stage {}", c.stage) : "every rank";
  const std::int64_t of_stage = job.program->mesh.ranks() / static_cast<std::int64_t>(job.program->stages.size());
  if (c.ranks == of_stage) return text;
  if (c.ranks == 1) return fmt::format("{}rank {}", job.program->stages.size() > 1 ? text + ", " : "", c.first_rank);
  return fmt::format("{}{} ranks like {}", job.program->stages.size() > 1 ? text + ", " : "", c.ranks, c.first_rank);
}

std::string Results::what(std::uint32_t rank_class, std::uint32_t name) const {
  if (name == kTransferName) return "transfer between stages";
  const RankClass& c = plan_.traffic.rank_classes()[rank_class];
  return plan_.jobs[static_cast<std::size_t>(c.job)].ops[name].text();
}

std::vector<LinkReport> Results::link_reports(std::span<const std::uint32_t> link_classes, double step_seconds) const {
  const auto classes = plan_.traffic.link_classes();
  std::vector<LinkReport> links;
  constexpr std::size_t kNone = ~std::size_t{0};
  std::vector<std::size_t> place(classes.size(), kNone);
  for (const std::uint32_t c : link_classes) {
    place[c] = links.size();
    LinkReport link;
    link.name = plan_.topology.name(classes[c].first);
    link.links = classes[c].links;
    link.bytes_per_second = rates_[c];
    link.bytes = link.busiest_bytes = bytes_[c];
    if (step_seconds > 0) link.utilisation = wire_bytes_[c] / rates_[c] / step_seconds;
    link.over_time.assign(kLinkBins, 0);
    links.push_back(std::move(link));
  }
  if (!(step_seconds > 0)) return links;
  std::vector<std::vector<std::pair<double, double>>> busy(links.size());
  const double bin = step_seconds / static_cast<double>(kLinkBins);
  for (const FlowRecord& r : outcome_.flows)
    for (const LinkTraffic& load : plan_.traffic.flow_classes()[r.flow_class].loads) {
      if (place[load.link_class] == kNone) continue;
      LinkReport& link = links[place[load.link_class]];
      busy[place[load.link_class]].emplace_back(r.begin, r.end);
      const double duration = r.end - r.begin;
      if (!(duration > 0)) continue;
      // The bytes of a flow are spread evenly over its duration.
      const double share = load.flows * r.wire_bytes / duration / rates_[load.link_class] / bin;
      const auto first = static_cast<std::size_t>(least(r.begin / bin, static_cast<double>(kLinkBins - 1)));
      for (std::size_t b = first; b < kLinkBins && static_cast<double>(b) * bin < r.end; ++b) {
        const double from = std::max(r.begin, static_cast<double>(b) * bin);
        link.over_time[b] += std::max(0.0, least(r.end, static_cast<double>(b + 1) * bin) - from) * share;
      }
    }
  for (std::size_t i = 0; i < links.size(); ++i) {
    std::sort(busy[i].begin(), busy[i].end());
    double until = 0;
    for (const auto& [begin, end] : busy[i]) {
      links[i].busy_seconds += std::max(0.0, end - std::max(begin, until));
      until = std::max(until, end);
    }
  }
  return links;
}

std::vector<std::uint32_t> Results::by_load() const {
  std::vector<std::uint32_t> order;
  for (std::uint32_t c = 0; c < bytes_.size(); ++c)
    if (bytes_[c] > 0) order.push_back(c);
  std::ranges::stable_sort(order, std::greater<>(), [&](std::uint32_t c) { return wire_bytes_[c] / rates_[c]; });
  return order;
}

std::vector<LinkReport> Results::link_kinds(double step_seconds) const {
  const auto classes = plan_.traffic.link_classes();
  std::vector<std::uint32_t> busiest;  // the classes that are the busiest of their kinds
  for (const std::uint32_t c : by_load())
    if (std::ranges::none_of(busiest, [&](std::uint32_t b) { return classes[b].kind == classes[c].kind; }))
      busiest.push_back(c);
  std::ranges::sort(busiest, {}, [&](std::uint32_t c) { return classes[c].kind; });
  std::vector<LinkReport> kinds = link_reports(busiest, step_seconds);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const LinkKind kind = classes[busiest[i]].kind;
    kinds[i].name = name_of(kind);
    kinds[i].links = 0;
    double total = 0;
    for (std::uint32_t c = 0; c < classes.size(); ++c) {
      if (classes[c].kind != kind || !(bytes_[c] > 0)) continue;
      kinds[i].links += classes[c].links;
      total += bytes_[c] * static_cast<double>(classes[c].links);
    }
    kinds[i].bytes = total / static_cast<double>(kinds[i].links);
  }
  return kinds;
}

std::vector<LinkReport> Results::busiest_links(double step_seconds) const {
  std::vector<std::uint32_t> order = by_load();
  constexpr std::size_t kMost = 64;
  if (order.size() > kMost) order.resize(kMost);
  return link_reports(order, step_seconds);
}

void Results::fill_terms(std::size_t job, std::span<const std::int32_t> stage_classes, Report& report) const {
  const auto classes = plan_.traffic.rank_classes();
  const std::vector<std::uint32_t> own = rank_classes_of(job);
  double step = 0, pipeline = 0;
  for (const std::uint32_t c : own) {
    step = std::max(step, outcome_.classes[c].end);
    pipeline = std::max(pipeline, outcome_.classes[c].slots_end);
  }
  const double ratio = report.step_seconds / step;
  report.step_seconds = step;
  report.pipeline_seconds = pipeline;
  for (double* rate : rates(report)) *rate *= ratio;

  // By class of stages: the ranks that wait least for others.
  std::vector<double> bubble(report.stages.size(), -1);
  for (const std::uint32_t c : own) {
    const auto s = static_cast<std::size_t>(stage_classes[static_cast<std::size_t>(classes[c].stage)]);
    const ClassOutcome& out = outcome_.classes[c];
    TimeBreakdown time;
    add(time, out.accounts);
    time.exposed[static_cast<std::size_t>(Stream::pipeline_communication)] += out.transfers;
    const double idle = std::max(0.0, step - time.total());
    if (bubble[s] >= 0 && bubble[s] <= idle) continue;
    bubble[s] = idle;
    time.bubble = idle;
    report.stages[s].time = time;
    report.stages[s].who = who(c);
    report.stages[s].busy_seconds = step - idle;
  }
  report.bounding_stage = std::min_element(bubble.begin(), bubble.end()) - bubble.begin();
  summarise_bounding_stage(report);
}

void Results::fill_critical_path(std::size_t job, double step_seconds, DiscreteEventReport& d) const {
  const auto& events = outcome_.events;
  std::uint32_t at = EventRecord::kNoCause;
  double last = -1;
  for (const std::uint32_t c : rank_classes_of(job))
    if (outcome_.classes[c].end > last) {
      last = outcome_.classes[c].end;
      at = outcome_.classes[c].last_event;
    }
  std::map<std::pair<std::string, std::string>, CriticalPathPart> parts;
  const auto book = [&](const std::pair<std::string, std::string>& key, double seconds, double times = 1) {
    if (!(seconds > 0)) return;
    CriticalPathPart& part = parts[key];
    std::tie(part.who, part.what) = key;
    part.times += times;
    part.seconds += seconds;
  };
  // A name is made once per class and op.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::pair<double, double>> ops;  // seconds, times
  double until = step_seconds;
  bool host = false;
  std::uint32_t later = at;
  while (at != EventRecord::kNoCause) {
    const EventRecord& e = events[at];
    if (e.kind != EventRecord::slot) {
      if (until > e.end) book({who(events[later].rank_class), host ? "host issue" : "other waits"}, until - e.end);
      const double end = least(until, e.end);
      if (end > e.begin) {
        auto& op = ops[{e.rank_class, e.kind == EventRecord::op ? e.name : kTransferName}];
        op.first += end - e.begin;
        op.second += 1;
        until = e.begin;
      }
      host = e.waited_for_host;
      later = at;
    }
    at = e.cause < at ? e.cause : EventRecord::kNoCause;  // causes are recorded before their effects
  }
  if (until > 0 && later != EventRecord::kNoCause)
    book({who(events[later].rank_class), host ? "host issue" : "before the first event"}, until);
  for (const auto& [key, op] : ops) book({who(key.first), what(key.first, key.second)}, op.first, op.second);
  for (auto& [key, part] : parts) d.critical_path.push_back(std::move(part));
  std::ranges::stable_sort(d.critical_path, std::greater<>(), &CriticalPathPart::seconds);
}

std::string Results::busiest_link_of(const ExchangeRecord& r) const {
  const Exchange& x = plan_.exchanges[r.exchange];
  std::map<std::uint32_t, double> busy;
  const std::uint32_t group =
      plan_.traffic.group_class(x.communicator, plan_.traffic.rank_classes()[r.rank_class].first_rank);
  for (const std::uint32_t f : plan_.traffic.flows(x.pattern, group))
    for (const LinkTraffic& load : plan_.traffic.flow_classes()[f].loads) busy[load.link_class];
  for (const FlowRecord& flow : outcome_.flows) {
    const double overlap = least(flow.end, r.longest_end) - std::max(flow.begin, r.longest_begin);
    if (!(overlap > 0)) continue;
    for (const LinkTraffic& load : plan_.traffic.flow_classes()[flow.flow_class].loads)
      if (const auto at = busy.find(load.link_class); at != busy.end())
        at->second += load.flows * flow.wire_bytes * overlap / (flow.end - flow.begin) / rates_[load.link_class];
  }
  std::string name;
  double most = 0;
  for (const auto& [link, seconds] : busy)
    if (seconds > most) {
      most = seconds;
      name = plan_.topology.name(plan_.traffic.link_classes()[link].first);
    }
  return name;
}

void Results::fill_contention(std::size_t job, double step_seconds, DiscreteEventReport& d) const {
  const auto classes = plan_.traffic.rank_classes();
  struct Row {
    ContentionReport report;
    const ExchangeRecord* slowest = nullptr;
    double most_lost = 0;
  };
  constexpr double kNegligible = 1e-4;                      // share of the step
  std::map<std::pair<std::string, std::string>, Row> rows;  // by (who, op): an op may run in several sizes
  for (const ExchangeRecord& r : outcome_.exchanges) {
    if (static_cast<std::size_t>(classes[r.rank_class].job) != job) continue;
    const double alone = r.times * plan_.exchanges[r.exchange].cost.seconds, lost = r.seconds - alone;
    if (lost <= kNegligible * step_seconds) continue;
    const std::pair key{who(r.rank_class), what(r.rank_class, r.name)};
    Row& row = rows[key];
    row.report.who = key.first;
    row.report.op = key.second;
    row.report.times_per_step += r.times;
    row.report.seconds += r.seconds;
    row.report.seconds_alone += alone;
    if (lost <= row.most_lost) continue;
    row.most_lost = lost;
    row.slowest = &r;
  }
  std::vector<Row> ordered;
  for (auto& [key, row] : rows) ordered.push_back(std::move(row));
  std::ranges::stable_sort(ordered, std::greater<>(),
                           [](const Row& row) { return row.report.seconds - row.report.seconds_alone; });
  if (ordered.size() > kListed) ordered.resize(kListed);
  for (Row& row : ordered) {
    row.report.link = busiest_link_of(*row.slowest);
    d.contention.push_back(std::move(row.report));
  }
}

void Results::fill_waits(std::size_t job, DiscreteEventReport& d) const {
  const auto classes = plan_.traffic.rank_classes();
  std::map<std::tuple<std::string, std::string, std::string>, WaitReport> rows;
  for (const WaitRecord& w : outcome_.waits) {
    if (static_cast<std::size_t>(classes[w.rank_class].job) != job) continue;
    const std::tuple key{who(w.rank_class), who(w.for_class), what(w.rank_class, w.name)};
    WaitReport& row = rows[key];
    std::tie(row.who, row.for_whom, row.op) = key;
    row.times += w.times;
    row.seconds += w.seconds;
  }
  for (auto& [key, row] : rows) d.waits.push_back(std::move(row));
  std::ranges::stable_sort(d.waits, std::greater<>(), &WaitReport::seconds);
  // Replicas that wait equally long are one row; otherwise they would hide all other rows.
  constexpr double kRounding = 1e-6;
  std::vector<WaitReport> told;
  for (WaitReport& row : d.waits) {
    const auto same = std::find_if(told.begin(), told.end(), [&](const WaitReport& t) {
      return t.op == row.op && t.times == row.times && std::abs(t.seconds - row.seconds) <= kRounding * t.seconds;
    });
    if (same == told.end()) {
      told.push_back(std::move(row));
    } else {
      ++same->alike;
    }
  }
  d.waits = std::move(told);
  if (d.waits.size() > kListed) d.waits.resize(kListed);
}

std::vector<std::uint32_t> Results::named_ranks(std::size_t job, const DiscreteEventReport& named,
                                                std::span<const std::uint32_t> speakers) const {
  std::map<std::string, std::uint32_t, std::less<>> by_name;
  for (const std::uint32_t c : rank_classes_of(job))
    if (std::find(speakers.begin(), speakers.end(), c) == speakers.end()) by_name.emplace(who(c), c);
  std::vector<std::uint32_t> found;
  const auto take = [&](const std::string& name) {
    const auto at = by_name.find(name);
    if (at == by_name.end()) return;
    found.push_back(at->second);
    by_name.erase(at);
  };
  for (const CriticalPathPart& part : named.critical_path) take(part.who);
  for (const WaitReport& wait : named.waits) {
    take(wait.for_whom);
    take(wait.who);
  }
  for (const ContentionReport& row : named.contention) take(row.who);
  return found;
}

void Results::fill_timeline(std::size_t job, const DiscreteEventReport& named, Report& report) const {
  const auto classes = plan_.traffic.rank_classes();
  const JobSimulation& plan = plan_.jobs[job];
  const std::size_t stages = plan.program->stages.size();
  // Each stage is represented by the rank at the place of the one that waits least for others (the first of several).
  constexpr double kRounding = 1e-9;
  double busiest = 0;
  std::int64_t rank = 0;
  for (const std::uint32_t c : rank_classes_of(job)) {
    TimeBreakdown time;
    add(time, outcome_.classes[c].accounts);
    const double busy = time.total() + outcome_.classes[c].transfers;
    const bool alike = std::abs(busy - busiest) <= kRounding * busiest;
    if (alike ? classes[c].first_rank >= rank : busy < busiest) continue;
    busiest = busy;
    rank = classes[c].first_rank;
  }
  const std::int64_t stride = plan.program->mesh.stride(MeshAxis::pp);
  const std::int64_t own_stage = rank / stride % static_cast<std::int64_t>(stages);
  std::vector<std::uint32_t> speaker(stages);
  for (std::size_t s = 0; s < stages; ++s)
    speaker[s] = plan_.traffic.rank_class(static_cast<std::int32_t>(job),
                                          rank + (static_cast<std::int64_t>(s) - own_stage) * stride);
  Timeline timeline;
  TimelineOps op_of(*plan.program, timeline);
  const auto line_op = [](const OpName& name, std::int64_t instances) {
    return LineOp{.code = name.code, .op = name.at, .instances = instances};
  };
  for (const std::uint32_t c : speaker) timeline.stages.push_back(who(c));
  std::vector<std::uint32_t> others = named_ranks(job, named, speaker);
  if (others.size() > kMostRankTracks) {
    report.notes.push_back(
        fmt::format("besides the stages, the trace shows {} of the {} kinds of ranks that the report names",
                    kMostRankTracks, others.size()));
    others.resize(kMostRankTracks);
  }
  std::map<std::uint32_t, std::size_t> track;  // by rank class
  for (const std::uint32_t c : others) {
    track[c] = timeline.ranks.size();
    timeline.ranks.push_back({who(c), {}});
  }
  std::vector<std::vector<double>> moments(stages);  // by stage: begins and ends of slots, in turn
  for (const EventRecord& e : outcome_.events) {
    const auto stage = static_cast<std::size_t>(classes[e.rank_class].stage);
    const bool speaks = speaker[stage] == e.rank_class;
    const auto other = track.find(e.rank_class);
    if (!speaks && other == track.end()) continue;
    std::vector<TimelineSpan>& intervals = speaks ? timeline.intervals : timeline.ranks[other->second].intervals;
    const auto s = static_cast<std::int32_t>(stage);
    const auto stream = static_cast<Stream>(e.stream);
    switch (e.kind) {
      case EventRecord::slot:
        intervals.push_back({s, Stream::compute, e.slot_kind, e.chunk, e.name, e.begin, e.end,
                             name_of(static_cast<SlotKind>(e.slot_kind)), kNoOp});
        if (!speaks) break;
        moments[stage].push_back(e.begin);
        moments[stage].push_back(e.end);
        break;
      case EventRecord::op:
        if (stream != Stream::compute || e.begin >= outcome_.classes[e.rank_class].slots_end)
          intervals.push_back(
              {s, stream, kOtherInterval, 0, 0, e.begin, e.end, plan.ops[e.name].op,
               stream == Stream::compute ? kNoOp : op_of(plan.ops[e.name].kind, line_op(plan.ops[e.name], e.chunk))});
        break;
      case EventRecord::transfer:
        if (speaks) timeline.arrows.push_back({s, static_cast<std::int32_t>(classes[e.name].stage), e.begin, e.end});
        break;
    }
  }
  // Memory changes with the slots: the same samples at their new times.
  std::vector<std::size_t> seen(stages, 0);
  for (MemorySample sample : report.timeline.memory) {
    const auto stage = static_cast<std::size_t>(sample.stage);
    const std::size_t k = seen[stage]++;
    if (k > 0 && k <= moments[stage].size())
      sample.seconds = moments[stage][k - 1];
    else if (k == moments[stage].size() + 1)
      sample.seconds = outcome_.classes[speaker[stage]].slots_end;
    else if (k > 0)
      sample.seconds = outcome_.classes[speaker[stage]].end;
    timeline.memory.push_back(sample);
  }
  report.timeline = std::move(timeline);
}

void Results::fill(std::size_t job, std::span<const std::int32_t> stage_classes, Report& report) const {
  DiscreteEventReport d;
  d.fidelity = kFidelityNames[static_cast<std::size_t>(plan_.options.fidelity)];
  d.network_model = "SimGrid 3.32 CM02 without TCP window, cross traffic or shares by latency: max-min fair";
  d.ranks = plan_.traffic.ranks();
  d.rank_classes = static_cast<std::int64_t>(plan_.traffic.rank_classes().size());
  d.flows = plan_.traffic.total_flows();
  d.flow_classes = static_cast<std::int64_t>(plan_.traffic.flow_classes().size());
  d.links = plan_.traffic.links_used();
  d.link_classes = static_cast<std::int64_t>(plan_.traffic.link_classes().size());
  d.events = outcome_.activities;
  d.uncontended_step_seconds = report.step_seconds;
  report.engine = "des";
  fill_terms(job, stage_classes, report);
  d.link_kinds = link_kinds(report.step_seconds);
  d.busiest_links = busiest_links(report.step_seconds);
  fill_contention(job, report.step_seconds, d);
  fill_critical_path(job, report.step_seconds, d);
  fill_waits(job, d);
  if (plan_.traffic.in_lockstep())
    report.notes.emplace_back(
        "the edges of a collective move in lockstep, at the rate of the slowest, and ranks that differ only in their "
        "distance from a disturbed rank are simulated once: the step is accurate to about 0.1 %, or to 1 % where "
        "collectives between nodes take most of the time (--exact simulates each rank)");
  for (std::size_t i = 0; i < plan_.perturbations.size(); ++i) {
    const ResolvedPerturbation& r = plan_.perturbations[i];
    const bool touches = !r.ranks.empty() ||
                         std::any_of(r.links.begin(), r.links.end(), [&](LinkId l) { return plan_.traffic.uses(l); });
    if (!touches)
      report.notes.push_back(fmt::format("perturbation {} ({}) affects nothing that the step uses", i,
                                         kPerturbationKindNames[static_cast<std::size_t>(r.perturbation.kind)]));
    else if (r.perturbation.from_seconds >= report.step_seconds)
      report.notes.push_back(fmt::format("perturbation {} begins after the step has ended", i));
  }
  if (plan_.options.timeline) fill_timeline(job, d, report);
  report.discrete_event = std::move(d);
}

}  // namespace orrery
