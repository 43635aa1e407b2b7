// Pipeline parallelism: distributes the model's runs over stages and chunks, chooses the schedule, and splits weight
// gradients from the backward for zero-bubble schedules. schedules.h has the schedules.
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "sim/program/redistribute.h"
#include "sim/program/rewrite.h"
#include "strategies/framework/framework.h"
#include "strategies/pipeline_parallel/schedules.h"
#include "strategies/strategy.h"

namespace orrery::pipeline_parallel {
namespace {

// Takes layers from the line of runs as chunks ask for them. A piece that is not a layer (embeddings, patch merging)
// goes with the layer that follows; the head goes with the last layer.
class Dealer {
 public:
  Dealer(const std::vector<Piece>& pieces, const std::vector<PieceRun>& line) : pieces_(pieces), line_(line) {}

  void take(std::int64_t layers, bool first, bool last, Chunk& out) {
    out.runs.clear();
    if (first) take_ends(out);
    while (layers > 0 && next_ < line_.size()) {
      take_ends(out);
      const PieceRun& run = line_[next_];
      const std::int64_t n = std::min(layers, run.count - taken_);
      out.runs.push_back({run.piece, n});
      layers -= n;
      taken_ += n;
      if (taken_ == run.count) ++next_, taken_ = 0;
    }
    if (last) take_ends(out);
  }

 private:
  void take_ends(Chunk& out) {
    while (next_ < line_.size() && pieces_[line_[next_].piece].layers == 0) out.runs.push_back(line_[next_++]);
  }

  const std::vector<Piece>& pieces_;
  const std::vector<PieceRun>& line_;
  std::size_t next_ = 0;
  std::int64_t taken_ = 0;  // taken layers of the next run
};

void split_weight_gradients(Piece& piece) {
  std::vector<Op> rest;
  rest.reserve(piece.backward.ops.size());
  Storages wanted(piece);  // those that the remaining input gradients read
  for (std::size_t i = piece.backward.ops.size(); i-- > 0;) {
    const Op& op = piece.backward.ops[i];
    // A gather that only weight gradients read moves with them.
    const bool gather_for_weights = op.kind == OpKind::all_gather && !wanted.has(op.writes[0]);
    if (op.phase == Phase::weight_gradient || gather_for_weights) {
      piece.weight_gradient.ops.push_back(op);
    } else {
      wanted.add_all(op.reads);
      rest.push_back(op);
    }
  }
  std::reverse(piece.weight_gradient.ops.begin(), piece.weight_gradient.ops.end());
  std::reverse(rest.begin(), rest.end());
  piece.backward.ops.swap(rest);

  // What both halves read is gathered twice: holding it would cost each micro-batch in flight a whole sequence.
  std::vector<Op> regathered;
  for (const Op& gather : piece.backward.ops) {
    if (gather.kind != OpKind::all_gather) continue;
    const TensorId gathered = gather.writes[0];
    const auto reads_it = [&](TensorId id) {
      return id != kNoTensor && (id == gathered || piece.tensors[id].alias_of == gathered);
    };
    const bool read_later = std::ranges::any_of(piece.weight_gradient.ops,
                                                [&](const Op& op) { return std::ranges::any_of(op.reads, reads_it); });
    if (!read_later) continue;
    Op again = gather;
    again.phase = Phase::weight_gradient;
    again.writes[0] = clone_tensor(piece, gathered);
    for (Op& op : piece.weight_gradient.ops)
      for (TensorId& id : op.reads) {
        if (!reads_it(id)) continue;
        if (id == gathered) {
          id = again.writes[0];
        } else {  // a chunk of it
          Tensor view = piece.tensors[id];
          view.alias_of = again.writes[0];
          id = piece.add(view);
        }
      }
    regathered.push_back(again);
  }
  piece.weight_gradient.ops.insert(piece.weight_gradient.ops.begin(), regathered.begin(), regathered.end());
}

// Whether a parameter is a table with a row per position of the sequence.
bool is_table_of_positions(const Piece& piece, TensorId parameter) {
  return std::any_of(piece.tensors.begin(), piece.tensors.end(), [parameter](const Tensor& t) {
    return t.alias_of == parameter && t.rank > 0 && t.axes[0] == Axis::sequence;
  });
}

bool is_table_of_tokens(const Piece& piece, TensorId parameter) {
  const Tensor& t = piece.tensors[parameter];
  return t.rank == 2 && t.find(Axis::vocab) == 0;
}

// Tied tables. The output head uses the embedding's table; so do the inputs of a second stack, positions included, and
// multi-token prediction. On one stage they share the memory. Otherwise each stage holds a copy, and their gradients
// are summed once a step (Narayanan et al. 2021, section 4.1).
class Ties {
 public:
  Ties(const Scenario& scenario, Program& program) : scenario_(scenario), program_(program) {
    for (const PieceRun& run : program.line) {
      const Piece& piece = program.pieces[run.piece];
      const bool looks_up = &run == &program.line.front() || is_seam(piece);
      if (looks_up || (&run == &program.line.back() && scenario.model.tied_embeddings)) holders_.push_back(run.piece);
    }
  }

  void tie() {
    program_.stage_groups.clear();
    tie(1, is_table_of_tokens, "tied_embedding.all_reduce");
    tie(2, is_table_of_positions, "tied_positions.all_reduce");
  }

 private:
  struct Copy {
    std::uint16_t piece = 0, stage = 0;
    std::size_t parameter = 0;
  };

  std::uint16_t stage_of(std::uint16_t piece) const {
    for (std::size_t s = 0; s < program_.stages.size(); ++s)
      for (const Chunk& chunk : program_.stages[s])
        for (const PieceRun& run : chunk.runs)
          if (run.piece == piece) return static_cast<std::uint16_t>(s);
    throw std::logic_error("a piece of the model that no stage has");
  }

  void tie(std::uint8_t number, bool (*is_it)(const Piece&, TensorId), const char* name) {
    std::vector<Copy> copies;  // the first copy of each stage
    const auto tied = [&](const Copy& c) -> ParameterGradient& {
      return program_.pieces[c.piece].parameters[c.parameter];
    };
    for (const std::uint16_t holder : holders_) {
      Piece& piece = program_.pieces[holder];
      for (std::size_t p = 0; p < piece.parameters.size(); ++p) {
        if (!is_it(piece, piece.parameters[p].parameter)) continue;
        const Copy copy{holder, stage_of(holder), p};
        tied(copy).tied = number;
        const auto first =
            std::find_if(copies.begin(), copies.end(), [&](const Copy& c) { return c.stage == copy.stage; });
        if (first == copies.end()) {
          copies.push_back(copy);
          continue;
        }
        const auto for_each = [&](const Copy& of, auto mark) {
          for (const TensorId id : {tied(of).parameter, tied(of).gradient})
            if (id != kNoTensor) mark(program_.pieces[of.piece].tensors[id]);
        };
        for_each(copy, [](Tensor& t) { t.shared = true; });
        for_each(*first, [](Tensor& t) { t.lent = true; });
        pack_where_it_lies(copy, *first);
      }
    }
    const auto is_frozen = [&](const Copy& c) { return tied(c).gradient == kNoTensor; };
    if (copies.size() < 2 || std::all_of(copies.begin(), copies.end(), is_frozen)) return;
    StageGroup& stages = program_.stage_groups.emplace_back();
    for (const Copy& c : copies) stages.push_back(c.stage);
    std::sort(stages.begin(), stages.end());
    for (const Copy& c : copies) {
      Piece& piece = program_.pieces[c.piece];
      Op sum = communication(OpKind::all_reduce, name, Phase::update, Stream::pipeline_communication, {},
                             tied(c).gradient, tied(c).gradient);
      sum.stages = TableIndex<StageGroup>(program_.stage_groups.size() - 1);
      piece.update.ops.push_back(sum);
      // Shards of the stages must have the same elements: a tied table has separate buffers, as shared embeddings have
      // in Megatron-Core's distributed optimizer, even with one data-parallel rank. Hence the test of zero_stage.
      if (scenario_.plan.data.zero_stage > 0) tied(c).set = own_set(piece, c.parameter);
    }
  }

  // Packs what the ranks of a stage sum once of a gradient, in the piece where the gradient lies. For a table of
  // positions this is as many rows as the longer of the two sequences has.
  void pack_where_it_lies(const Copy& copy, const Copy& owner) {
    Piece &from = program_.pieces[copy.piece], &to = program_.pieces[owner.piece];
    const TensorId gradient = from.parameters[copy.parameter].gradient, kept = to.parameters[owner.parameter].gradient;
    if (gradient == kNoTensor || kept == kNoTensor) return;
    const auto packed_in = [](const Piece& piece, std::vector<TensorId>& packed, TensorId storage) {
      return std::find_if(packed.begin(), packed.end(), [&](TensorId id) { return storage_of(piece, id) == storage; });
    };
    const auto rows_of_all = [&](const Tensor& t) { return t.elements() * program_.mesh.size(t.divided_over()); };
    for (std::size_t i = 0; i < from.packed.size(); ++i) {
      PackedGradients& packed = from.packed[i];
      const auto rows = packed_in(from, packed.gradients, gradient);
      if (rows == packed.gradients.end()) continue;
      Tensor t = from.tensors[*rows];
      for (PackedGradients& other : to.packed) {
        const auto known = packed_in(to, other.gradients, kept);
        if (known == other.gradients.end() || rows_of_all(to.tensors[*known]) >= rows_of_all(t)) continue;
        to.tensors[other.buffer].sizes[0] += rows_of_all(t) - rows_of_all(to.tensors[*known]);
        t.alias_of = kept;
        *known = to.add(t);
      }
      from.tensors[packed.buffer].sizes[0] -= rows_of_all(t);
      packed.gradients.erase(rows);
      if (!packed.gradients.empty()) continue;
      std::erase_if(from.update.ops, [&](const Op& op) { return op.reads[0] == packed.buffer; });
      from.packed.erase(from.packed.begin() + static_cast<std::ptrdiff_t>(i--));
    }
  }

  // Returns a set that has no other parameter of the piece.
  static std::uint8_t own_set(const Piece& piece, std::size_t parameter) {
    bool alone = true;
    std::uint8_t next = 0;
    for (std::size_t p = 0; p < piece.parameters.size(); ++p) {
      const std::uint8_t set = piece.parameters[p].set;
      if (p == parameter || piece.tensors[piece.parameters[p].parameter].shared) continue;
      alone = alone && set != piece.parameters[parameter].set;
      next = std::max<std::uint8_t>(next, static_cast<std::uint8_t>(set + 1));
    }
    return alone ? piece.parameters[parameter].set : next;
  }

  const Scenario& scenario_;
  Program& program_;
  std::vector<std::uint16_t> holders_;  // in model order
};

void check(const Scenario& scenario) {
  const Options& options = scenario.plan.pipeline;
  const auto fail = [](const Limit& limit) {
    const char* part = std::string_view(limit.field) == "global_batch_size" ? "/workload/" : "/plan/";
    throw InputError({"", part + std::string(limit.field)}, limit.found, limit.expected);
  };
  if (const auto limit = options_limit(options, scenario.model.total_layers())) fail(*limit);
  if (const auto limit = schedule_limit(effective_schedule(options), options.degree, chunks_per_stage(options),
                                        micro_batches(scenario)))
    fail(*limit);
}

void add_digits(const Scenario& scenario, Mesh& mesh) { mesh.add(MeshAxis::pp, scenario.plan.pipeline.degree); }

void rewrite(const Scenario& scenario, Program& program) {
  const Options& options = scenario.plan.pipeline;
  const std::int64_t stages = options.degree, chunks = chunks_per_stage(options);
  build_schedule(effective_schedule(options), stages, chunks, micro_batches(scenario), program.schedule,
                 scenario.plan.expert.overlap_pairs);
  program.schedule.blocking_transfers = !options.overlap_transfers;
  program.schedule.scattered_transfers = options.scatter_gather == ScatterGather::automatic
                                             ? framework::stack_of(scenario.plan).scatters_transfers
                                             : options.scatter_gather == ScatterGather::on;

  join_layouts(program);  // every piece is laid out by now
  const std::vector<std::int64_t> layers = split_layers(scenario.model.total_layers(), options);
  std::vector<Chunk*> at(static_cast<std::size_t>(stages * chunks));
  program.for_each_class([&](const std::vector<PieceRun>& line, std::vector<std::vector<Chunk>>& dealt) {
    Dealer dealer(program.pieces, line);
    dealt.resize(static_cast<std::size_t>(stages));
    auto position = program.schedule.position.begin();
    for (auto& stage : dealt) {
      stage.resize(static_cast<std::size_t>(chunks));
      for (Chunk& chunk : stage) at[static_cast<std::size_t>(*position++)] = &chunk;
    }
    for (std::size_t q = 0; q < at.size(); ++q) dealer.take(layers[q], q == 0, q + 1 == at.size(), *at[q]);
  });

  if (!scenario.model.vision()) Ties(scenario, program).tie();
  if (program.schedule.split_backward)
    for (Piece& piece : program.pieces) split_weight_gradients(piece);
}

void relax(Plan& plan) {
  plan.pipeline.schedule = ScheduleKind::one_f_one_b;
  plan.pipeline.virtual_stages = 1;
}

std::int64_t ranks(const Plan& plan) { return plan.pipeline.degree; }

constexpr PlanWord kWords[]{{"pipeline", [](const Scenario& s) { return s.plan.pipeline.degree > 1; }},
                            {"interleaved", [](const Scenario& s) { return s.plan.pipeline.virtual_stages > 1; }}};

// Whether the stack lays out these chunks without being told their layers.
bool is_laid_out(const Scenario& scenario, const Options& options) {
  return framework::stack_of(scenario.plan).deals_uneven_chunks || is_even(scenario.model.total_layers(), options);
}

std::vector<std::string> notes(const Scenario& scenario) {
  const Options& options = scenario.plan.pipeline;
  const std::int64_t layers = scenario.model.total_layers();
  if (is_even(layers, options)) return {};
  std::string dealt;
  const std::vector<std::int64_t> split = split_layers(layers, options);
  for (std::size_t q = 0; q < split.size();) {
    const std::size_t first = q;
    while (q < split.size() && split[q] == split[first]) ++q;
    dealt += fmt::format("{}{}", dealt.empty() ? "" : ", ", split[first]);
    if (q - first > 1) dealt += fmt::format(" x {}", q - first);
  }
  std::string note = fmt::format("{} layers do not divide evenly into {} model chunks: they are split as {}", layers,
                                 split.size(), dealt);
  if (!is_laid_out(scenario, options))
    note += fmt::format("; {} does so only with an explicit split (plan.pipeline_stage_layers)",
                        framework::stack_name(scenario.plan));
  return {std::move(note)};
}

void write_out(const Scenario& scenario, Plan& plan) {
  if (!is_laid_out(scenario, plan.pipeline))
    plan.pipeline.stage_layers = split_layers(scenario.model.total_layers(), plan.pipeline);
}

constexpr SearchAxis kAxes[]{
    {.field = "pipeline_parallel",
     .label = "pp",
     .chosen_with = ChosenWith::mesh,
     .usual = true,
     .set = [](Plan& plan, std::int64_t value) { plan.pipeline.degree = value; },
     .values = [](const Scenario& chosen) -> AxisValues {
       const Plan& plan = chosen.plan;
       // Layers that are dealt by hand are dealt to so many stages.
       if (!plan.pipeline.stage_layers.empty()) return {plan.pipeline.degree};
       AxisValues values = divisors_of(chosen.cluster.devices() / (model_parallel_ranks(plan) / plan.pipeline.degree));
       const std::int64_t counted = counted_layers(chosen.model.total_layers(), plan.pipeline);
       const bool even = !framework::stack_of(plan).deals_uneven_chunks;
       std::erase_if(values,
                     [&](std::int64_t p) { return p > chosen.model.total_layers() || (even && counted % p != 0); });
       return values;
     }},
    {.field = "pipeline_schedule",
     .label = "schedule",
     .chosen_with = ChosenWith::schedule,
     .usual = true,
     .set = [](Plan& plan, std::int64_t value) { plan.pipeline.schedule = static_cast<ScheduleKind>(value); },
     // GPipe takes as long as 1F1B and holds more. Megatron-Core refuses to interleave an encoder and a decoder
     // (core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving).
     .values = [](const Scenario& chosen) -> AxisValues {
       AxisValues values;
       if (chosen.plan.pipeline.degree == 1) return {static_cast<std::int64_t>(ScheduleKind::one_f_one_b)};
       Options options = chosen.plan.pipeline;
       for (std::size_t i = 0; i < kScheduleNames.size(); ++i) {
         const auto kind = static_cast<ScheduleKind>(i);
         if (kind == ScheduleKind::gpipe) continue;
         if (kind == ScheduleKind::interleaved && chosen.model.kind == ModelKind::encoder_decoder) continue;
         options.schedule = kind;
         options.virtual_stages = 1;
         if (is_v(kind) && !is_laid_out(chosen, options)) continue;
         values.push_back(static_cast<std::int64_t>(i));
       }
       return values;
     },
     .acts = [](const Scenario& chosen) { return chosen.plan.pipeline.degree > 1; }},
    {.field = "virtual_pipeline",
     .label = "vpp",
     .chosen_with = ChosenWith::schedule,
     .usual = true,
     .set = [](Plan& plan, std::int64_t value) { plan.pipeline.virtual_stages = value; },
     .values = [](const Scenario& chosen) -> AxisValues {
       AxisValues values;
       Options options = chosen.plan.pipeline;
       options.virtual_stages = 1;
       if (options.schedule != ScheduleKind::interleaved) return {1};
       const std::int64_t layers = chosen.model.total_layers(), n = micro_batches(chosen);
       for (std::int64_t v = 2; v * options.degree <= layers; ++v) {
         options.virtual_stages = v;
         // As even as they come: chunks that are not wait for the longest.
         const bool even = layers % v == 0 || is_even(layers, options);
         if (even && is_laid_out(chosen, options) && !options_limit(options, layers) &&
             !schedule_limit(options.schedule, options.degree, v, n))
           values.push_back(v);
       }
       return values;
     },
     .acts = [](const Scenario& chosen) { return chosen.plan.pipeline.degree > 1; }},
    {.field = "overlap_p2p_communication",
     .label = "overlap p2p",
     .chosen_with = ChosenWith::kernels,
     .set = [](Plan& plan, std::int64_t value) { plan.pipeline.overlap_transfers = value != 0; },
     .acts = [](const Scenario& chosen) { return chosen.plan.pipeline.degree > 1; }},
    {.field = "scatter_gather_tensors_in_pipeline",
     .label = "scatter p2p",
     .chosen_with = ChosenWith::kernels,
     .set = [](Plan& plan, std::int64_t value) { plan.pipeline.scatter_gather = static_cast<ScatterGather>(value); },
     .acts =
         [](const Scenario& chosen) {
           const Plan& plan = chosen.plan;
           return plan.pipeline.degree > 1 && plan.tensor.degree > 1 && !plan.tensor.sequence_parallel;
         }}};

}  // namespace

Strategy describe() {
  return {.name = "pipeline_parallel",
          .summary = "layers divided into stages: GPipe, 1F1B, interleaved, ZB-H1, ZB-V",
          .paper = "Narayanan et al. 2021, arXiv 2104.04473; Qi et al. 2023, arXiv 2401.10241",
          .check = check,
          .rewrite = rewrite,
          .add_digits = add_digits,
          .disable = reset<&Plan::pipeline>,
          .relax = relax,
          .ranks = ranks,
          .words = kWords,
          .notes = notes,
          .write_out = write_out,
          .search_axes = kAxes};
}

}  // namespace orrery::pipeline_parallel
