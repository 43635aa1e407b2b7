#include "sim/des/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "sim/analytical/fabric_share.h"
#include "sim/base/digest.h"
#include "sim/base/error.h"
#include "sim/hardware/read_placement.h"
#include "sim/program/borders.h"
#include "sim/program/liveness.h"
#include "sim/program/pair.h"
#include "sim/program/work.h"

namespace orrery {
namespace {

// The bytes that a channel of NCCL's Simple protocol passes on at a time: NCCL_BUFFSIZE (4 MiB) over NCCL_STEPS (8).
// There is one channel per device of the node.
constexpr double kSliceBytes = 4.0 * (1 << 20) / 8;
// With more chunks, the time to fill the pipeline is negligible.
constexpr double kMostChunks = 128;

// Chooses `count` of `from` without repetition, in ascending order.
template <class T>
void choose(std::vector<T>& from, std::int64_t count, std::int64_t seed) {
  if (count <= 0 || count >= std::ssize(from)) return;
  std::vector<T> chosen;
  for (const std::int64_t i : drawn_numbers(count, std::ssize(from), seed)) chosen.push_back(from[at(i)]);
  std::sort(chosen.begin(), chosen.end());
  from = std::move(chosen);
}

// Replaces values from `begin` on by their means, in levels of as many values as there are nodes.
void level(std::vector<double>& values, std::size_t begin, std::size_t nodes) {
  while (begin < values.size()) {
    const std::size_t end = std::min(values.size(), begin + nodes - begin % nodes);
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += values[i];
    for (std::size_t i = begin; i < end; ++i) values[i] = sum / static_cast<double>(end - begin);
    begin = end;
  }
}

// By rank: the values in order, each level on as many nodes as possible.
std::vector<double> over_nodes(const std::vector<double>& values, std::size_t per_node) {
  std::vector<double> of_ranks(values.size());
  auto next = values.begin();
  for (std::size_t place = 0; place < per_node; ++place)
    for (std::size_t r = place; r < values.size(); r += per_node) of_ranks[r] = *next++;
  return of_ranks;
}

// Rows that each rank sends, over the mean. They are equal if ranks send equally many (within kAlike). Otherwise they
// are rounded to levels, in descending order; the rank that sends the most is a level of its own.
std::vector<double> sent_by(std::span<const double> rows, std::size_t n, std::size_t nodes, std::size_t per_node) {
  constexpr double kAlike = 1e-3;
  std::vector<double> sent(n);
  double all = 0;
  for (std::size_t i = 0; i < n * n; ++i) sent[i / n] += rows[i], all += rows[i];
  for (double& of_rank : sent) of_rank *= static_cast<double>(n) / all;
  if (std::ranges::all_of(sent, [&](double of_rank) { return std::abs(of_rank - 1) < kAlike; }))
    return std::vector<double>(n, 1);
  std::ranges::sort(sent, std::greater<>());
  level(sent, 1, nodes);
  return over_nodes(sent, per_node);
}

void fold_ranks(std::span<const Load> loads, std::int64_t ranks_per_node, std::vector<FoldedLoad>& folded) {
  const std::size_t n = folded.front().of_ranks.size();
  std::vector<std::size_t> order;  // of ranks: the busiest of each load, then sorted by their rows over all loads
  for (const FoldedLoad& load : folded) {
    const auto busiest = static_cast<std::size_t>(std::ranges::max_element(load.of_ranks) - load.of_ranks.begin());
    if (std::ranges::find(order, busiest) == order.end()) order.push_back(busiest);
  }
  const std::size_t singles = order.size();
  std::vector<double> of_all(n, 0);
  for (std::size_t l = 0; l < loads.size(); ++l)
    for (std::size_t r = 0; r < n; ++r)
      of_all[r] += static_cast<double>(std::max<std::int64_t>(1, loads[l].layers)) * folded[l].of_ranks[r];
  for (std::size_t r = 0; r < n; ++r)
    if (std::ranges::find(std::span(order).first(singles), r) == std::span(order).first(singles).end())
      order.push_back(r);
  std::ranges::stable_sort(std::span(order).subspan(singles), std::greater<>(),
                           [&](std::size_t r) { return of_all[r]; });
  const auto per_node = static_cast<std::size_t>(ranks_per_node), nodes = (n + per_node - 1) / per_node;
  for (FoldedLoad& load : folded) {
    std::vector<double> has(n);
    for (std::size_t i = 0; i < n; ++i) has[i] = load.of_ranks[order[i]];
    level(has, singles, nodes);
    load.of_ranks = over_nodes(has, per_node);
    const std::vector<double> sent = sent_by(load.rows, n, nodes, per_node);
    for (std::size_t i = 0; i < n * n; ++i) load.rows[i] = sent[i / n] * load.of_ranks[i % n];
  }
}

}  // namespace

std::string OpName::text() const {
  const std::string_view first = op, end = last;
  return fmt::format("{}{}{}{}{}{}{}", piece, *piece ? "." : "", block, *block ? "." : "", first,
                     first == end ? "" : " .. ", first == end ? "" : end);
}

SimulationPlan::SimulationPlan(const Cluster& cluster_, const DiscreteEventOptions& options_)
    : cluster(cluster_),
      options(options_),
      topology(cluster_, options_.routing),
      traffic(topology, cluster_, options_.fidelity == Fidelity::step_exact) {}

std::int32_t chunks_of(const Cluster& cluster, double bytes, const DiscreteEventOptions& options) {
  if (options.chunks > 0) return static_cast<std::int32_t>(options.chunks);
  const double slices = bytes / static_cast<double>(cluster.node.devices) / kSliceBytes;
  return static_cast<std::int32_t>(std::clamp(std::ceil(slices), 1.0, kMostChunks));
}

std::uint32_t SimulationPlan::add_exchange(PatternKind kind, double bytes, const CollectiveCost& cost) {
  kind.algorithm = cost.algorithm;
  kind.in_switch = cost.in_switch;
  kind.tokens = cost.token_shares;
  if (options.fidelity == Fidelity::step_exact) kind.chunks = chunks_of(cluster, bytes, options);
  exchanges.push_back({.pattern = is_felt(cost) ? traffic.pattern(kind) : kNoPattern,
                       .communicator = kind.communicator,
                       .kind = kind.kind,
                       .bytes = bytes,
                       .cost = cost});
  return static_cast<std::uint32_t>(exchanges.size() - 1);
}

void SimulationPlan::add_job(const DiscreteEventJob& request, const CollectiveCalibration& collectives) {
  jobs.emplace_back();
  JobSimulation& job = jobs.back();
  const Program& program = *request.program;
  const std::int32_t id = traffic.add_job(program.mesh, request.placement);
  job.name = request.name;
  job.program = &program;
  job.placement = request.placement;
  job.overlap_slowdown = request.kernels->overlap_slowdown;
  job.costs = std::make_unique<OpCostModel>(cluster, *request.kernels, collectives);
  job.costs->set_program(program);
  compile_blocks(job);
  fold_loads(id, job);
  fold_documents(id, job);
  add_block_exchanges(id, job);
  add_stage_exchanges(id, job);
}

std::vector<FoldedLoad> folded_loads(std::span<const Load> loads, std::int64_t ranks_per_node, bool exact) {
  std::vector<FoldedLoad> folded;
  if (loads.empty()) return folded;
  const auto n = static_cast<std::size_t>(loads.front().ranks);
  for (const Load& load : loads) {
    folded.push_back({.rows = load.rows, .of_ranks = std::vector<double>(n)});
    for (std::size_t r = 0; r < n; ++r) folded.back().of_ranks[r] = load.of_rank(static_cast<std::int64_t>(r));
  }
  if (!exact && loads.front().ranks > kExactRanks) fold_ranks(loads, ranks_per_node, folded);
  for (FoldedLoad& load : folded) {
    const double busiest = *std::ranges::max_element(load.of_ranks);
    for (double& rows : load.of_ranks) rows /= busiest;
  }
  return folded;
}

bool SimulationPlan::is_exact(const JobSimulation& job, std::int64_t ranks) const {
  double works = 0;
  for (std::size_t s = 0; s < job.program->stages.size(); ++s) works += job.works_of(s) * static_cast<double>(ranks);
  return !options.fold || works <= options.most_exact_works;
}

void SimulationPlan::fold_loads(std::int32_t id, JobSimulation& job) {
  const Program& program = *job.program;
  job.rows.resize(program.loads.size());
  job.rows_of_ranks.resize(program.loads.size());
  std::vector<Load> of_tokens;
  std::vector<std::size_t> numbers;  // of them
  for (std::size_t load = 0; load < program.loads.size(); ++load) {
    if (program.loads[load].of != RowsOf::tokens) {
      add_load_of_pairs(id, load, job);
      continue;
    }
    of_tokens.push_back(program.loads[load]);
    numbers.push_back(load);
  }
  if (of_tokens.empty()) return;
  const MeshGroup group = of_tokens.front().group;  // of all layers the same
  const std::int64_t per_node = span_of(program.mesh, group, cluster.node.devices).ranks_per_node;
  auto number = numbers.begin();
  for (FoldedLoad& folded : folded_loads(of_tokens, per_node, is_exact(job, program.mesh.size(group)))) {
    Load rows;
    rows.group = group;
    rows.ranks = of_tokens.front().ranks;
    rows.rows = std::move(folded.rows);
    job.rows[*number] = traffic.add_rows(std::move(rows));
    job.rows_of_ranks[*number++] = std::move(folded.of_ranks);
  }
  for (std::int64_t rank = 0; rank < program.mesh.ranks(); ++rank)
    for (const std::size_t load : numbers)
      traffic.mark_rank(id, rank, std::bit_cast<std::uint64_t>(job.rows_of(load, rank)));
}

// Ranks are simulated as they are: the places of documents, or of copies, decide how many rows each sends to each other.
void SimulationPlan::add_load_of_pairs(std::int32_t id, std::size_t number, JobSimulation& job) {
  const Mesh& mesh = job.program->mesh;
  const Load& load = job.program->loads[number];
  job.rows[number] = traffic.add_rows(load);
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    const std::int64_t own = mesh.coordinate(rank, load.group);
    std::uint64_t mark = 0;
    for (std::int64_t other = 0; other < load.ranks; ++other)
      for (const double rows : {load.at(own, other), load.at(other, own)})
        mark = mixed(mark + std::bit_cast<std::uint64_t>(rows));
    traffic.mark_rank(id, rank, mark);
  }
}

void SimulationPlan::fold_documents(std::int32_t id, JobSimulation& job) {
  const Program& program = *job.program;
  if (program.document_loads.empty()) return;
  const Mesh& mesh = program.mesh;
  const std::int64_t context_ranks = mesh.size(MeshAxis::cp);
  const std::size_t replicas = program.document_loads.front().sequences.size();
  if (replicas > kExactRanks && !is_exact(job, std::ssize(program.document_loads.front().sequences) * context_ranks))
    return;
  std::vector<std::int64_t> context_rank(static_cast<std::size_t>(context_ranks), 0);  // by place: a rank
  for (std::int64_t rank = mesh.ranks(); rank-- > 0;)
    context_rank[static_cast<std::size_t>(mesh.coordinate(rank, MeshAxis::cp))] = rank;
  std::vector<std::uint64_t> marks(replicas * context_rank.size(), 0);
  for (OpName& name : job.ops) {
    if (name.within_documents.empty()) continue;
    for (std::size_t replica = 0; replica < replicas; ++replica)
      for (const std::int64_t rank : context_rank) {
        double& less = name.seconds_less.emplace_back(0);
        for (const Op* const op : name.within_documents) {
          const auto& tensors = name.of->tensors;
          less += job.costs->cost(*op, tensors, 1).seconds -
                  job.costs->document_seconds(*op, tensors, static_cast<std::int64_t>(replica), rank);
        }
        std::uint64_t& mark = marks[name.seconds_less.size() - 1];
        mark = mixed(mark + std::bit_cast<std::uint64_t>(less));
      }
  }
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) traffic.mark_rank(id, rank, marks[job.document_place(rank)]);
}

void SimulationPlan::compile_blocks(JobSimulation& job) {
  const Program& program = *job.program;
  std::vector<std::int64_t> most(program.pieces.size(), 0);
  for (std::size_t of_class = 0; of_class < program.micro_batch_classes(); ++of_class)
    for (const auto& stage : program.stages_of(of_class))
      for (const Chunk& chunk : stage)
        for_each_stretch(program.pieces, chunk.runs, [&](std::span<const PieceRun> stretch, std::int64_t instances) {
          for (const PieceRun& run : stretch) most[run.piece] = std::max(most[run.piece], instances);
        });

  Liveness lives;
  BlockCompiler compiler;
  job.codes.resize(program.pieces.size());
  for (std::size_t p = 0; p < program.pieces.size(); ++p) {
    if (most[p] == 0) continue;
    const Piece& piece = program.pieces[p];
    lives.find(piece);
    const CompileContext context(piece, *job.costs, program.runtime, lives.storage(), !program.stage_groups.empty());
    for (std::size_t k = 0; k < kBlockKinds; ++k) {
      BlockCode& code = job.codes[p][k];
      compiler.compile(piece, static_cast<BlockKind>(k), context, code);
      if (static_cast<BlockKind>(k) == BlockKind::norm)
        for (const Op& op : code.ops) job.synchronises |= op.kind == OpKind::gradient_norm;
      name_ops(job, code, static_cast<BlockKind>(k));
    }
    if (program.schedule.pairs) compile_pairs(job, p);
  }
}

// Like the other blocks of the piece, except that exchanges of experts run on their own stream, and that nodes begin
// where the other block takes its turn.
void SimulationPlan::compile_pairs(JobSimulation& job, std::size_t p) {
  const Program& program = *job.program;
  job.paired_codes.resize(program.pieces.size());
  job.paired_pieces.push_back(std::make_unique<Piece>(program.pieces[p]));
  Piece& piece = *job.paired_pieces.back();
  unblock_exchanges(piece);
  Liveness lives;
  lives.find(piece);
  CompileContext context(piece, *job.costs, program.runtime, lives.storage(), !program.stage_groups.empty());
  BlockCompiler compiler;
  for (const BlockKind kind : {BlockKind::forward, BlockKind::backward}) {
    const PairCuts cuts = pair_cuts(piece, kind == BlockKind::forward);
    context.cuts = &cuts.at;
    BlockCode& code = job.paired_codes[p][static_cast<std::size_t>(kind)];
    compiler.compile(piece, kind, context, code);
    name_ops(job, code, kind);
  }
}

void SimulationPlan::name_ops(JobSimulation& job, const BlockCode& code, BlockKind kind) {
  const Piece& piece = *code.piece;
  job.first_op[&code] = static_cast<std::uint32_t>(job.ops.size());
  for (const ClockNode& node : code.nodes) {
    OpName name{.piece = piece.name,
                .block = name_of(kind),
                .op = code.ops[node.op].name,
                .last = code.ops[node.op].name,
                .code = &code,
                .kind = kind,
                .at = node.op};
    if (node.stream == Stream::compute && node.counted) {
      // Kernels after it that begin no node of their own belong to it.
      const auto begins_node = [&](std::size_t op) {
        return std::any_of(code.nodes.begin(), code.nodes.end(), [&](const ClockNode& n) { return n.op == op; });
      };
      const auto add_kernel = [&](std::size_t op) {
        name.kernels.push_back(code.costs[op].seconds);
        if (const Load* const load = job.costs->row_load(code.ops[op], piece.tensors); load != nullptr) {
          name.seconds_by_rows += code.costs[op].seconds;
          name.load = static_cast<std::size_t>(load - job.program->loads.data());
        }
        if (code.ops[op].documents.has_value() || job.costs->dealt_rows(code.ops[op], piece.tensors)) {
          name.within_documents.push_back(&code.ops[op]);
          name.of = &piece;
        }
      };
      add_kernel(node.op);
      for (std::size_t i = node.op + 1u; i < code.ops.size(); ++i) {
        if (code.ops[i].stream != Stream::compute || code.costs[i].absent) continue;
        if (begins_node(i)) break;
        add_kernel(i);
        name.last = code.ops[i].name;
      }
    }
    job.ops.push_back(std::move(name));
  }
}

// Adds one exchange for each number of instances that an op covers.
void SimulationPlan::add_block_exchanges(std::int32_t id, JobSimulation& job) {
  const Program& program = *job.program;
  job.exchanges_of.resize(job.ops.size());
  const auto add = [&](const BlockCode& code, const ClockNode& node, std::int64_t instances) {
    const auto name = job.first_op.at(&code) + static_cast<std::uint32_t>(&node - code.nodes.data());
    if (instances == 0 || job.exchange_of(name, instances) != kNoExchange) return;
    const Op& op = code.ops[node.op];
    const Piece& piece = *code.piece;
    const double payload = bytes(op, piece.tensors) * static_cast<double>(instances) / op.count;
    if (!(payload > 0)) return;
    std::uint32_t x = kNoExchange;
    if (is_communication(op.kind)) {
      const std::int32_t communicator = op.stages.has_value()
                                            ? traffic.of_stages(id, {program.stage_groups[op.stages.value()].begin(),
                                                                     program.stage_groups[op.stages.value()].end()})
                                            : traffic.groups(id, op.group);
      const OpKind kind = collective_of(op);
      const Load* const load = kind == OpKind::all_to_all ? job.costs->row_load(op, piece.tensors) : nullptr;
      const std::int32_t rows = load == nullptr ? -1 : job.rows[static_cast<std::size_t>(load - program.loads.data())];
      x = add_exchange({.communicator = communicator,
                        .kind = kind,
                        .rows = rows,
                        .returns = load != nullptr && piece.tensors[op.reads[0]].load.has_value()},
                       payload, job.costs->collective(op, piece.tensors, instances));
    } else if (op.kind == OpKind::copy) {
      CollectiveCost cost;
      cost.seconds = cost.intra_seconds = job.costs->copy_seconds_alone(op, piece.tensors, instances);
      cost.intra_bytes = payload;
      x = add_exchange(
          {.communicator = traffic.groups(id, {}), .kind = op.kind, .way = direction_of(op, piece.tensors)}, payload,
          cost);
    } else {
      return;
    }
    job.exchanges_of[name].emplace_back(instances, x);
  };
  for (std::size_t of_class = 0; of_class < program.micro_batch_classes(); ++of_class)
    for (const auto& stage : program.stages_of(of_class))
      for (const Chunk& chunk : stage)
        for_each_stretch(program.pieces, chunk.runs, [&](std::span<const PieceRun> stretch, std::int64_t instances) {
          const auto add_code = [&](const BlockCode& code) {
            for (const ClockNode& node : code.nodes) {
              if (node.once) {  // a scalar for all instances
                add(code, node, 1);
                continue;
              }
              if (instances >= node.every) add(code, node, node.every);
              add(code, node, instances % node.every);
            }
          };
          for (const PieceRun& run : stretch) {
            for (const BlockCode& code : job.codes[run.piece]) add_code(code);
            if (program.schedule.pairs)
              for (const BlockCode& code : job.paired_codes[run.piece]) add_code(code);
          }
        });
}

void SimulationPlan::add_stage_exchanges(std::int32_t id, JobSimulation& job) {
  Borders borders;
  borders.find(*job.program);
  for (std::size_t q = 0; q < borders.size(); ++q) job.stage_at.push_back(borders.stage_at(q));
  job.forward.assign(borders.size(), kNoExchange);
  job.backward = job.forward;
  for (std::size_t q = 0; q + 1 < borders.size(); ++q) {
    const std::int32_t from = job.stage_at[q], to = job.stage_at[q + 1];
    if (from == to) continue;
    // Stages that differ in their neighbours are kept apart, even if only the order crosses the border.
    const std::int32_t pairs = traffic.of_stages(id, {from, to});
    const auto add = [&](std::uint32_t& x, Crossing crossing, bool reversed) {
      if (crossing.sent_bytes > 0)
        x = add_exchange({.communicator = pairs, .kind = OpKind::send, .reversed = reversed}, crossing.sent_bytes,
                         job.costs->transfer(crossing, borders.behind_stage(q)));
    };
    add(job.forward[q], borders.forward(q), false);
    add(job.backward[q + 1], borders.backward(q), true);
  }
}

namespace {

// Limits for all perturbations that apply to one device or link at the same time.
struct Together {
  const char* what;                     // the object: "device"
  const char* field;                    // the field that states the amount
  double (*part)(const Perturbation&);  // the rate that one perturbation leaves; for several, the product
  double least;                         // smallest allowed product
  const char* bound;                    // the bound `least` in words, for messages
  std::string (*text)(double product);
};

double rate_left(const Perturbation& p) { return p.factor; }
std::string rate_text(double left) { return fmt::format("{:.2g} of its rate", left); }
// For a product of independent factors of mean 1, the squares of the coefficients of variation plus 1 multiply.
double steadiness(const Perturbation& p) { return 1 / (1 + p.coefficient_of_variation * p.coefficient_of_variation); }
std::string variation_text(double steadiness) {
  return fmt::format("a coefficient of variation of {:.3g}", std::sqrt(1 / steadiness - 1));
}

constexpr double kLeastRateLeft = 1e-6;  // below this, times lose their digits
constexpr double kMostVariation = 10;    // beyond this, no sample of a step shows the mean
constexpr Together kSlowDevice{"device", "factor", rate_left, kLeastRateLeft, "at least", rate_text};
constexpr Together kSlowLink{"link", "factor", rate_left, kLeastRateLeft, "at least", rate_text};
constexpr Together kJitter{"device",   "coefficient_of_variation",
                           steadiness, 1 / (1 + kMostVariation * kMostVariation),
                           "at most",  variation_text};

// `which`: indices of the perturbations of one kind that apply to the same device or link.
void check_together(std::span<const Perturbation> all, std::vector<std::size_t> which, const Together& limit) {
  const auto product = [&](const std::vector<std::size_t>& of) {
    double left = 1;
    for (const std::size_t i : of) left *= limit.part(all[i]);
    return left;
  };
  const double least = limit.least * (1 - 1e-9);  // one is at least `least`, except for rounding
  if (which.size() < 2 || product(which) >= least) return;
  std::stable_sort(which.begin(), which.end(),
                   [&](std::size_t a, std::size_t b) { return all[a].from_seconds < all[b].from_seconds; });
  std::vector<std::size_t> current;
  for (const std::size_t i : which) {
    const double begin = all[i].from_seconds;
    std::erase_if(current, [&](std::size_t c) { return all[c].until_seconds > 0 && all[c].until_seconds <= begin; });
    current.push_back(i);
    const double left = product(current);
    if (current.size() < 2 || left >= least) continue;
    throw InputError({.file = {}, .pointer = fmt::format("/perturbations/{}/{}", i, limit.field)},
                     fmt::format("a {} with {}, together with {} other perturbation{} at that time", limit.what,
                                 limit.text(left), current.size() - 1, current.size() == 2 ? "" : "s"),
                     fmt::format("{} {} in total", limit.bound, limit.text(limit.least)));
  }
}

}  // namespace

void SimulationPlan::add_perturbations(std::span<const Perturbation> all) {
  std::map<std::int64_t, std::vector<std::size_t>> slow_devices, jittering;  // perturbations by device
  std::map<LinkId, std::vector<std::size_t>> slow_links;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Perturbation& p = all[i];
    const auto at = [&](const char* field) {
      return InputError::Where{.file = {}, .pointer = fmt::format("/perturbations/{}/{}", i, field)};
    };
    ResolvedPerturbation r;
    r.perturbation = p;
    std::vector<std::int64_t> devices = p.devices;
    if (p.kind == PerturbationKind::failing_node) {
      std::vector<std::int64_t> nodes = p.nodes;
      if (nodes.empty())
        for (std::int64_t n = 0; n < cluster.nodes; ++n) nodes.push_back(n);
      for (const std::int64_t n : nodes)
        if (n >= cluster.nodes)
          throw InputError(at("nodes"), std::to_string(n), fmt::format("a node below {}", cluster.nodes));
      choose(nodes, p.count, p.seed);
      r.first_node = nodes.front();
      for (const std::int64_t n : nodes) {
        for (std::int64_t d = 0; d < cluster.node.devices; ++d) devices.push_back(n * cluster.node.devices + d);
        for (const LinkId l : topology.find(fmt::format("node{}.*", cluster.fabric_node(n)))) r.links.push_back(l);
      }
    } else if (p.kind == PerturbationKind::slow_device || p.kind == PerturbationKind::jitter) {
      if (devices.empty())
        for (std::int64_t d = 0; d < cluster.devices(); ++d) devices.push_back(d);
      for (const std::int64_t d : devices)
        if (d >= cluster.devices())
          throw InputError(at("devices"), std::to_string(d), fmt::format("a device below {}", cluster.devices()));
      if (p.kind == PerturbationKind::slow_device) choose(devices, p.count, p.seed);
    } else {
      r.links = topology.find(p.link);
      if (r.links.empty())
        throw InputError(at("link"), fmt::format("\"{}\", which names no link", p.link),
                         "a link of the cluster under this routing (orrery show links)", topology.nearest_name(p.link));
      choose(r.links, p.count, p.seed);
    }
    if (p.kind == PerturbationKind::slow_link && p.factor > 1)
      throw InputError(at("factor"), fmt::format("{}", p.factor), "at most 1: the part of the rate that remains");
    if (p.kind == PerturbationKind::slow_link)
      for (const LinkId l : r.links) slow_links[l].push_back(i);
    if (p.kind == PerturbationKind::slow_device)
      for (const std::int64_t d : devices) slow_devices[d].push_back(i);
    if (p.kind == PerturbationKind::jitter)
      for (const std::int64_t d : devices) jittering[d].push_back(i);

    if (!devices.empty()) {
      std::vector<char> hit(static_cast<std::size_t>(cluster.devices()), 0);
      for (const std::int64_t d : devices) hit[static_cast<std::size_t>(d)] = 1;
      for (std::size_t j = 0; j < jobs.size(); ++j)
        for (std::int64_t rank = 0; rank < jobs[j].program->mesh.ranks(); ++rank)
          if (hit[static_cast<std::size_t>(jobs[j].placement.device(rank, cluster.node.devices))])
            r.ranks.emplace_back(static_cast<std::int32_t>(j), rank);
    }
    for (const auto& [j, rank] : r.ranks) {
      traffic.mark_rank(j, rank, i + 1);
      // Every device draws its own jitter: no two ranks are alike.
      if (p.kind == PerturbationKind::jitter) traffic.mark_rank(j, rank, static_cast<std::uint64_t>(rank) + 1);
    }
    for (const LinkId l : r.links) {
      traffic.mark_link(l, i + 1);
      if (p.kind == PerturbationKind::background_traffic) r.background.push_back(traffic.add_background(l));
    }
    perturbations.push_back(std::move(r));
  }
  for (const auto& [device, which] : slow_devices) check_together(all, which, kSlowDevice);
  for (const auto& [device, which] : jittering) check_together(all, which, kJitter);
  for (const auto& [link, which] : slow_links) check_together(all, which, kSlowLink);
}

double JobSimulation::works_of(std::size_t stage) const {
  double all = 0;
  for (std::size_t of_class = 0; of_class < program->micro_batch_classes(); ++of_class) {
    const auto micro_batches = static_cast<double>(program->micro_batches_of(of_class));
    for (const Chunk& chunk : program->stages_of(of_class)[stage])
      for (const PieceRun& run : chunk.runs)
        for (int kind = 0; kind < kBlockKinds; ++kind) {
          const bool once = is_of_update(static_cast<BlockKind>(kind));
          const double times = !once ? micro_batches : of_class == 0 ? 1 : 0;
          all += times * static_cast<double>(run.count) *
                 static_cast<double>(codes[run.piece][static_cast<std::size_t>(kind)].nodes.size());
        }
  }
  return all;
}

double SimulationPlan::works() const {
  double all = 0;
  for (const RankClass& c : traffic.rank_classes())
    if (static_cast<std::size_t>(c.job) < jobs.size()) {
      const JobSimulation& job = jobs[static_cast<std::size_t>(c.job)];
      all += job.works_of(static_cast<std::size_t>(c.stage)) * static_cast<double>(job.repeats);
    }
  return all;
}

double SimulationPlan::timeline_works() const {
  double all = 0;
  for (const JobSimulation& job : jobs) {
    double most = 0, classes = 0;
    for (std::size_t s = 0; s < job.program->stages.size(); ++s) {
      const double works = job.works_of(s);
      all += works;
      most = std::max(most, works);
    }
    for (const RankClass& c : traffic.rank_classes())
      if (static_cast<std::size_t>(c.job) < jobs.size() && &jobs[static_cast<std::size_t>(c.job)] == &job) ++classes;
    const auto others = classes - static_cast<double>(job.program->stages.size());
    all += most * std::clamp(others, 0.0, static_cast<double>(kMostRankTracks));
  }
  return all;
}

void SimulationPlan::fold() {
  double works = 0, ranks = 0;  // over all ranks, unfolded
  for (const JobSimulation& job : jobs) {
    const auto stages = static_cast<double>(job.program->stages.size());
    const auto of_job = static_cast<double>(job.program->mesh.ranks());
    for (std::size_t s = 0; s < job.program->stages.size(); ++s) works += job.works_of(s) * of_job / stages;
    ranks += of_job;
  }
  if (!options.fold)
    traffic.number_apart();
  else if (works > options.most_exact_works)
    traffic.fold(static_cast<std::int64_t>(ranks * options.most_exact_works / works));
  else
    traffic.fold();
  for (Exchange& x : exchanges) {
    if (x.pattern == kNoPattern) continue;
    // A collective alone takes its calibrated time, but no link carries more than its rate.
    const auto wire = [&](const Traffic::Alone& alone, double seconds) {
      return alone.fair > 0 ? std::max(seconds, alone.busiest * x.bytes) / alone.fair : x.bytes;
    };
    x.wire_inside = wire(traffic.alone_inside(x.pattern), x.cost.intra_seconds);
    x.wire_outside = wire(traffic.alone_outside(x.pattern), x.cost.inter_seconds);
  }
}

}  // namespace orrery
