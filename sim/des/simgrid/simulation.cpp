#include "sim/des/simulation.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/des/child_process.h"
#include "sim/des/simgrid/run.h"

namespace orrery {

void Simulation::prepare() {
  for (std::size_t j = 0; j < plan_.jobs.size(); ++j) {
    const Program& program = *plan_.jobs[j].program;
    orders_.emplace_back(program.stages.size());
    for (std::size_t s = 0; s < program.stages.size(); ++s)
      program.schedule.order(s).for_each([&](const Slot& slot) { orders_[j][s].push_back(slot); });
  }
  barriers_.resize(plan_.jobs.size());
  const auto all = traffic().rank_classes();
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    auto c = std::make_unique<ClassRun>();
    c->id = i;
    c->job = all[i].job;
    c->stage = static_cast<std::size_t>(all[i].stage);
    c->first_rank = all[i].first_rank;
    if (static_cast<std::size_t>(c->job) < plan_.jobs.size()) {
      c->plan = &plan_.jobs[static_cast<std::size_t>(c->job)];
      ++barriers_[static_cast<std::size_t>(c->job)].expected;
      const Schedule& schedule = c->plan->program->schedule;
      for (auto& input : c->inputs) input.resize(static_cast<std::size_t>(schedule.chunks * schedule.micro_batches));
    }
    classes_.push_back(std::move(c));
  }
  sg4::Engine::on_deadlock_cb([this] {
    stall(failed_.empty() ? fmt::format("nothing moves any more at {:.6g} s:{}", now(), who_waits())
                          : fmt::format("{}:{}", failed_, who_waits()));
  });
}

std::string Simulation::words(const ClassRun& c) const {
  const RankClass& r = traffic().rank_classes()[c.id];
  if (c.plan == nullptr) return fmt::format("rank {}", r.first_rank);
  std::string text = plan_.jobs.size() > 1 ? fmt::format("{}: ", c.plan->name) : std::string();
  text += c.plan->program->stages.size() > 1 ? fmt::format("stage {}, ", r.stage) : "";
  return text + (r.ranks == 1 ? fmt::format("rank {}", r.first_rank)
                              : fmt::format("rank {} and {} alike", r.first_rank, r.ranks - 1));
}

void Simulation::stall(const std::string& why) {
  out_.stalled = why;
  return_from_child(std::move(out_).pack());
}

std::string Simulation::who_waits() const {
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
  for (const auto& [key, queue] : meetings_)
    for (const Meeting& m : queue) {
      if (m.done || m.arrived.empty()) continue;
      const Exchange& x = plan_.exchanges[m.exchange];
      for (const auto& [id, when] : m.arrived) {
        std::string missing;
        for (const std::uint32_t other : traffic().group_classes()[key.first].members)
          if (std::none_of(m.arrived.begin(), m.arrived.end(), [&](const auto& a) { return a.first == other; }))
            missing += (missing.empty() ? "" : "; ") + words(*classes_[other]);
        const StreamRun& stream = classes_[id]->streams[key.second];
        std::string op;
        if (stream.current != nullptr)
          op = classes_[id]->plan->ops[classes_[id]->plan->op_of.at(stream.current->node)].text();
        add(fmt::format("{} waits since {:.6g} s in {} ({} of {:.6g} bytes) for {}", words(*classes_[id]), when,
                        op.empty() ? "an exchange between stages" : op, name_of(x.kind), x.bytes, missing));
      }
    }
  for (const auto& c : classes_)
    if (!c->waits_for.empty()) add(fmt::format("{} waits for {}", words(*c), c->waits_for));
  if (more > 0) text += fmt::format("\n  and {} more", more);
  return text;
}

void Simulation::perturb() {
  for (const ResolvedPerturbation& r : plan_.perturbations) {
    const Perturbation& p = r.perturbation;
    std::vector<ClassRun*> hit;
    for (const auto& [job, rank] : r.ranks) {
      ClassRun* c = classes_[traffic().rank_class(job, rank)].get();
      if (std::find(hit.begin(), hit.end(), c) == hit.end()) hit.push_back(c);
    }
    if (p.kind == PerturbationKind::jitter) {
      for (ClassRun* c : hit) {
        // Of the device and of the perturbation: like jobs, and like perturbations, draw apart.
        const auto device =
            static_cast<std::uint64_t>(c->plan->placement.device(c->first_rank, plan_.cluster.node.devices));
        const auto which = static_cast<std::uint64_t>(&r - plan_.perturbations.data());
        c->jitter.emplace_back(mix_colour(mix_colour(static_cast<std::uint64_t>(p.seed), device), which));
        c->jitter_of.push_back(&p);
      }
      continue;
    }
    std::vector<std::uint32_t> links;
    for (const LinkId l : r.links) {
      if (!traffic().uses(l)) continue;
      const std::uint32_t c = traffic().link_class(l);
      if (network_.link(c) != nullptr && std::find(links.begin(), links.end(), c) == links.end()) links.push_back(c);
    }
    const auto apply = [this, &p, hit, links, &r](bool begin) {
      switch (p.kind) {
        case PerturbationKind::slow_device:
          for (ClassRun* c : hit) {
            c->rate = begin ? c->rate * p.factor : c->rate / p.factor;
            interrupt(*c);  // others run meanwhile: the rate must stand
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
            for (ClassRun* c : hit)
              if (!c->finished) stall(fmt::format("{} with {}", failed_, words(*c)));
          for (const std::uint32_t l : links) network_.link(l)->turn_off();
          break;
        default:
          break;
      }
    };
    if (p.kind == PerturbationKind::background_traffic) {
      std::vector<std::uint32_t> flow_classes;
      for (const std::int32_t b : r.background) {
        const std::uint32_t f = traffic().background_flow(b);
        if (std::find(flow_classes.begin(), flow_classes.end(), f) == flow_classes.end()) flow_classes.push_back(f);
      }
      for (const std::uint32_t f : flow_classes)
        sg4::Actor::create("background", network_.clock(), [this, &p, f] {
          sleep(p.from_seconds);
          // Never freed: SimGrid complains of an activity that is dropped under way, as it is when the run ends first.
          const auto* comm = new sg4::CommPtr(network_.start_background(f));
          if (p.until_seconds == 0) (*comm)->wait();
          sleep_until(p.until_seconds);
          (*comm)->cancel();
        })->daemonize();
      continue;
    }
    if (p.from_seconds == 0) {
      apply(true);
      if (p.until_seconds == 0) continue;
    }
    sg4::Actor::create("perturbation", network_.clock(), [this, &p, apply] {
      if (p.from_seconds > 0) {
        sleep(p.from_seconds);
        apply(true);
      }
      if (p.until_seconds > p.from_seconds) {
        sleep_until(p.until_seconds);
        apply(false);
      }
    })->daemonize();
  }
}

Outcome Simulation::run_steps() {
  for (const auto& c : classes_) sg4::Actor::create("rank", network_.clock(), [this, run = c.get()] { control(*run); });
  perturb();
  sg4::Engine::get_instance()->run();
  for (const auto& c : classes_) out_.classes.push_back(c->out);
  return std::move(out_);
}

Outcome Simulation::run_exchange(std::uint32_t id) {
  const Exchange& x = plan_.exchanges[id];
  double end = 0;
  const auto groups = traffic().group_classes();
  for (std::uint32_t g = 0; g < groups.size(); ++g)
    if (groups[g].communicator == x.communicator)
      sg4::Actor::create("group", network_.clock(), [this, &x, &end, g] {
        transmit(x, g);
        end = std::max(end, now());
      });
  perturb();
  sg4::Engine::get_instance()->run();
  out_.seconds = end;
  return std::move(out_);
}

bool built_with_simgrid() { return true; }

Outcome simulate_steps(const RunPlan& plan) {
  configure_simgrid();
  return Simulation(plan).run_steps();
}

Outcome simulate_exchange(const RunPlan& plan, std::uint32_t exchange) {
  configure_simgrid();
  return Simulation(plan).run_exchange(exchange);
}

}  // namespace orrery
