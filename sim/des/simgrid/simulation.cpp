#include "sim/des/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "sim/des/simgrid/run.h"

namespace orrery {

void SimgridRun::prepare() {
  for (std::size_t j = 0; j < plan_.jobs.size(); ++j) {
    const Program& program = *plan_.jobs[j].program;
    orders_.emplace_back(program.stages.size());
    for (std::size_t s = 0; s < program.stages.size(); ++s) {
      auto& order = orders_[j][s];
      program.schedule.order(s).for_each_turn(
          program.schedule.pairs,
          [&](const Slot& slot) {
            order.push_back({slot, false});
          },
          [&](const Slot& forward, const Slot& backward) {
            order.push_back({forward, true});
            order.push_back({backward, false});
          });
    }
  }
  barriers_.resize(plan_.jobs.size());
  running_classes_.resize(plan_.jobs.size());
  const auto all = traffic().rank_classes();
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    auto c = std::make_unique<SimulatedClass>();
    c->id = i;
    c->job = all[i].job;
    c->stage = static_cast<std::size_t>(all[i].stage);
    c->first_rank = all[i].first_rank;
    if (static_cast<std::size_t>(c->job) < plan_.jobs.size()) {
      c->plan = &plan_.jobs[static_cast<std::size_t>(c->job)];
      ++barriers_[static_cast<std::size_t>(c->job)].expected;
      ++running_classes_[static_cast<std::size_t>(c->job)];
      const Schedule& schedule = c->plan->program->schedule;
      for (auto& input : c->inputs)
        input.resize(static_cast<std::size_t>(c->plan->repeats * schedule.chunks * schedule.micro_batches));
    }
    c->exchange_rows.assign(plan_.exchanges.size(), 0);
    c->wait_rows.resize(plan_.exchanges.size());
    classes_.push_back(std::move(c));
  }
  meetings_.resize(traffic().group_classes().size() * kStreams);
  find_local_communicators();
  make_regions();
}

void SimgridRun::find_local_communicators() {
  const auto groups = traffic().group_classes();
  std::size_t communicators = 0;
  for (const GroupClass& g : groups)
    communicators = std::max(communicators, static_cast<std::size_t>(g.communicator) + 1);
  local_.assign(communicators, 0);
  if (plan_.options.fidelity == Fidelity::step_exact) return;
  for (const JobSimulation& job : plan_.jobs) {
    if (job.beside) return;
    if (job.program->schedule.blocking_transfers) return;
    for (std::size_t q = 0; q + 1 < job.stage_at.size(); ++q)  // only the order crosses these borders
      if (job.stage_at[q] != job.stage_at[q + 1] &&
          (job.forward[q] == kNoExchange || job.backward[q + 1] == kNoExchange))
        return;
  }
  for (const ResolvedPerturbation& r : plan_.perturbations) {
    const Perturbation& p = r.perturbation;
    const bool always = p.from_seconds == 0 && p.until_seconds == 0;
    if (p.kind == PerturbationKind::failing_node || (p.kind == PerturbationKind::slow_device && !always)) return;
  }
  // By communicator: the stream, if all its collectives run on one and therefore follow each other.
  constexpr int kNone = -1, kSeveral = -2;
  std::vector<int> stream_of(communicators, kNone);
  for (const JobSimulation& job : plan_.jobs)
    for (const auto& [code, first] : job.first_op)
      for (std::size_t k = 0; k < code->nodes.size(); ++k)
        for (const auto& [covered, x] : job.exchanges_of[first + k]) {
          int& stream = stream_of[static_cast<std::size_t>(plan_.exchanges[x].communicator)];
          const int own = static_cast<int>(code->nodes[k].stream);
          stream = stream == kNone || stream == own ? own : kSeveral;
        }
  std::vector<char> sends(communicators, 0), shares(communicators, 0);
  // Whether each link has the flows of one group only, one per phase, and nothing disturbs it.
  constexpr std::uint32_t kNobody = 0xffffffff;
  std::vector<std::uint32_t> user(traffic().link_classes().size(), kNobody);
  std::map<std::tuple<std::int32_t, std::uint8_t, std::uint32_t>, std::uint32_t> flow_on;  // pattern, phase, link
  for (std::uint32_t g = 0; g < groups.size(); ++g)
    for (std::size_t x = 0; x < plan_.exchanges.size(); ++x) {
      const auto communicator = static_cast<std::size_t>(plan_.exchanges[x].communicator);
      const std::int32_t pattern = plan_.exchanges[x].pattern;
      if (plan_.exchanges[x].communicator != groups[g].communicator || pattern == kNoPattern) continue;
      for (const std::uint32_t f : traffic().flows(pattern, g)) {
        const FlowClass& flow = traffic().flow_classes()[f];
        sends[communicator] = 1;
        if (flow.leaves_node) shares[communicator] = 1;
        for (const LinkTraffic& load : flow.loads) {
          if (!network_.binds(load.link_class)) continue;
          std::uint32_t& by = user[load.link_class];
          const bool is_first = flow_on.try_emplace({pattern, flow.phase, load.link_class}, f).first->second == f;
          if (!is_first || network_.is_disturbed(load.link_class)) shares[communicator] = 1;
          if (by != kNobody && by != g)
            shares[communicator] = shares[static_cast<std::size_t>(groups[by].communicator)] = 1;
          by = g;
        }
      }
    }
  for (std::size_t c = 0; c < communicators; ++c) local_[c] = stream_of[c] >= 0 && sends[c] != 0 && shares[c] == 0;
}

void SimgridRun::make_regions() {
  std::vector<std::size_t> root(classes_.size());
  std::iota(root.begin(), root.end(), std::size_t{0});
  const auto find = [&](std::size_t c) {
    while (root[c] != c) c = root[c] = root[root[c]];
    return c;
  };
  for (const GroupClass& group : traffic().group_classes())
    if (local_[static_cast<std::size_t>(group.communicator)] != 0)
      for (const std::uint32_t m : group.members) root[find(m)] = find(group.members.front());
  for (const auto& c : classes_) c->region = &clock_.outside();
  if (std::none_of(local_.begin(), local_.end(), [](char local) { return local != 0; })) return;
  std::vector<Region*> region(classes_.size(), nullptr);
  for (const auto& c : classes_) {
    Region*& of_root = region[find(c->id)];
    if (of_root == nullptr) of_root = &regions_.emplace_back();
    c->region = of_root;
  }
}

std::string SimgridRun::words(const SimulatedClass& c) const {
  const RankClass& r = traffic().rank_classes()[c.id];
  if (c.plan == nullptr) return fmt::format("rank {}", r.first_rank);
  std::string text = plan_.jobs.size() > 1 ? fmt::format("{}: ", c.plan->name) : std::string();
  text += c.plan->program->stages.size() > 1 ? fmt::format("stage {}, ", r.stage) : "";
  return text + (r.ranks == 1 ? fmt::format("rank {}", r.first_rank)
                              : fmt::format("rank {} and {} alike", r.first_rank, r.ranks - 1));
}

void SimgridRun::stall(const std::string& why) {
  out_.stalled = why;
  return_from_child(std::move(out_));
}

std::string SimgridRun::who_waits() const {
  std::string text;
  int listed = 0, more = 0;
  const auto add = [&](const std::string& line) {
    constexpr int kMost = 8;
    if (listed < kMost)
      text += "\n  " + line;
    else
      ++more;
    ++listed;
  };
  for (std::size_t place = 0; place < meetings_.size(); ++place)
    for (const Meeting* m : meetings_[place]) {
      if (m->done || m->arrived.empty()) continue;
      const Exchange& x = plan_.exchanges[m->exchange];
      for (const auto& [id, when] : m->arrived) {
        std::string missing;
        for (const std::uint32_t other : traffic().group_classes()[place / kStreams].members)
          if (std::none_of(m->arrived.begin(), m->arrived.end(), [&](const auto& a) { return a.first == other; }))
            missing += (missing.empty() ? "" : "; ") + words(*classes_[other]);
        const StreamRun& stream = classes_[id]->streams[place % kStreams];
        std::string op;
        if (stream.current != nullptr) op = classes_[id]->plan->ops[stream.current->name].text();
        add(fmt::format("{} has waited since {:.6g} s in {} ({} of {:.6g} bytes) for {}", words(*classes_[id]), when,
                        op.empty() ? "an exchange between stages" : op, name_of(x.kind), x.bytes, missing));
      }
    }
  for (const auto& c : classes_)
    if (!c->waits_for.empty()) add(fmt::format("{} waits for {}", words(*c), c->waits_for));
  if (more > 0) text += fmt::format("\n  and {} more", more);
  return text;
}

void SimgridRun::perturb() {
  for (const ResolvedPerturbation& r : plan_.perturbations) {
    const Perturbation& p = r.perturbation;
    std::vector<SimulatedClass*> hit;
    for (const auto& [job, rank] : r.ranks) {
      SimulatedClass* c = classes_[traffic().rank_class(job, rank)].get();
      if (std::find(hit.begin(), hit.end(), c) == hit.end()) hit.push_back(c);
    }
    if (p.kind == PerturbationKind::jitter) {
      for (SimulatedClass* c : hit) {
        // The seed depends on the device and on the perturbation: equal jobs, and equal perturbations, draw different
        // numbers.
        const auto device =
            static_cast<std::uint64_t>(c->plan->placement.device(c->first_rank, plan_.cluster.node.devices));
        const auto which = static_cast<std::uint64_t>(&r - plan_.perturbations.data());
        c->jitter.emplace_back(mix_colour(mix_colour(static_cast<std::uint64_t>(p.seed), device), which));
        c->jitter_of.push_back(&p);
      }
      continue;
    }
    if (p.kind == PerturbationKind::background_traffic) {
      std::vector<std::uint32_t> flow_classes;
      for (const std::int32_t b : r.background) {
        const std::uint32_t f = traffic().background_flow(b);
        if (std::find(flow_classes.begin(), flow_classes.end(), f) == flow_classes.end()) flow_classes.push_back(f);
      }
      for (const std::uint32_t f : flow_classes) clock_.start(send_background(p, f));
      continue;
    }
    clock_.start(perturb_while(r, std::move(hit)));
  }
}

Process SimgridRun::send_background(const Perturbation& p, std::uint32_t flow_class) {
  co_await clock_.sleep_until(p.from_seconds);
  network_.start_background(flow_class);
  if (p.until_seconds == 0) co_return;
  co_await clock_.sleep_until(p.until_seconds);
  network_.end_background(flow_class);
}

Process SimgridRun::perturb_while(const ResolvedPerturbation& r, std::vector<SimulatedClass*> hit) {
  const Perturbation& p = r.perturbation;
  co_await clock_.sleep_until(p.from_seconds);
  apply(r, hit, true);
  if (p.until_seconds <= p.from_seconds) co_return;
  co_await clock_.sleep_until(p.until_seconds);
  apply(r, hit, false);
}

void SimgridRun::apply(const ResolvedPerturbation& r, std::span<SimulatedClass* const> hit, bool begin) {
  const Perturbation& p = r.perturbation;
  std::vector<std::uint32_t> links;
  for (const LinkId l : r.links) {
    if (!traffic().uses(l)) continue;
    const std::uint32_t c = traffic().link_class(l);
    if (network_.binds(c) && std::find(links.begin(), links.end(), c) == links.end()) links.push_back(c);
  }
  switch (p.kind) {
    case PerturbationKind::slow_device:
      for (SimulatedClass* c : hit) {
        c->rate = begin ? c->rate * p.factor : c->rate / p.factor;
        interrupt(*c);  // others run in the meantime: the rate must be set
      }
      break;
    case PerturbationKind::slow_link:
      for (const std::uint32_t l : links) network_.slow(l, begin ? p.factor : 1 / p.factor);
      break;
    case PerturbationKind::failing_link:
    case PerturbationKind::failing_node:
      if (!begin) break;
      failed_ = p.kind == PerturbationKind::failing_node
                    ? fmt::format("node {} failed at {:.6g} s", r.first_node, now())
                    : fmt::format("{} failed at {:.6g} s", plan_.topology.name(r.links.front()), now());
      if (p.kind == PerturbationKind::failing_node)
        for (SimulatedClass* c : hit)
          if (!c->finished) stall(fmt::format("{} with {}", failed_, words(*c)));
      for (const std::uint32_t l : links) network_.fail(l);
      break;
    default:
      break;
  }
}

void SimgridRun::run(std::size_t processes) {
  running_ = processes;
  network_.run([this] { return running_ == 0; });
  out_.activities = clock_.sleeps() + network_.flows();
  if (running_ == 0) return;
  double latest = now();
  for (const Region& region : regions_) latest = std::max(latest, clock_.time_of(region));
  stall(failed_.empty() ? fmt::format("nothing moves after {:.6g} s:{}", latest, who_waits())
                        : fmt::format("{}:{}", failed_, who_waits()));
}

void SimgridRun::run_beside(int tasks) {
  for (const auto& c : classes_) {
    if (c->plan == nullptr || c->plan->beside) continue;
    c->collectives += tasks;
    interrupt(*c);
  }
}

Outcome SimgridRun::run_steps() {
  perturb();
  for (const JobSimulation& job : plan_.jobs)
    if (job.beside) run_beside(1);
  for (const auto& c : classes_) clock_.start(control(*c), *c->region);
  run(classes_.size());
  for (const auto& c : classes_) out_.classes.push_back(c->out);
  return std::move(out_);
}

Process SimgridRun::transmit_alone(const Exchange& x, std::uint32_t group_class, double& end) {
  co_await transmit(x, group_class);
  end = std::max(end, now());
  --running_;
}

Outcome SimgridRun::run_exchange(std::uint32_t id) {
  const Exchange& x = plan_.exchanges[id];
  double end = 0;
  std::size_t groups = 0;
  perturb();
  for (std::uint32_t g = 0; g < traffic().group_classes().size(); ++g)
    if (traffic().group_classes()[g].communicator == x.communicator) {
      clock_.start(transmit_alone(x, g, end));
      ++groups;
    }
  run(groups);
  out_.seconds = end;
  return std::move(out_);
}

bool built_with_simgrid() { return true; }

Outcome simulate_steps(const SimulationPlan& plan) {
  configure_simgrid();
  return SimgridRun(plan).run_steps();
}

Outcome simulate_exchange(const SimulationPlan& plan, std::uint32_t exchange) {
  configure_simgrid();
  return SimgridRun(plan).run_exchange(exchange);
}

}  // namespace orrery
