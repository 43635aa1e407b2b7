#include "sim/program/check.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>

#include "sim/program/piece_check.h"
#include "sim/program/rewrite.h"

namespace orrery {
namespace {

using proof::words;

// Checks that neighbouring pieces agree on the tensors that cross between them, for one class of micro-batches.
void check_line(const Program& program, std::size_t of_class, std::vector<Violation>& found) {
  struct HandedOn {
    const Piece* piece = nullptr;
    TensorId forward = kNoTensor, backward = kNoTensor;
  };
  HandedOn residual;
  std::array<HandedOn, kSideStreams> sides;
  const auto report = [&](std::string text) { found.push_back({Rule::pieces_fit, std::move(text)}); };
  const auto compare = [&](const Piece& from, TensorId handed_on, const Piece& to, TensorId taken) {
    if (handed_on == kNoTensor || taken == kNoTensor) return;
    const Tensor &a = from.tensors[handed_on], &b = to.tensors[taken];
    if (a.elements() == b.elements() && a.over == b.over && a.is_dealt_as(b)) return;
    report(fmt::format("piece \"{}\" takes \"{}\" {} of {} elements, piece \"{}\" hands on \"{}\" {} of {}", to.name,
                       b.name, words(program.mesh, b), b.elements(), from.name, a.name, words(program.mesh, a),
                       a.elements()));
  };
  const auto meet = [&](const HandedOn& from, const Piece& to, TensorId forward, TensorId backward) {
    if (from.piece == nullptr) return;
    compare(*from.piece, from.forward, to, forward);
    compare(*from.piece, from.backward, to, backward);
    if (from.backward != kNoTensor && backward == kNoTensor)
      report(fmt::format("piece \"{}\" takes \"{}\" for its backward, which piece \"{}\" does not hand on",
                         from.piece->name, from.piece->tensors[from.backward].name, to.name));
  };
  const auto pass = [&](const Piece& piece) {
    meet(residual, piece, piece.input, piece.input_gradient);
    residual = {&piece, piece.output, piece.output_gradient};
    for (std::size_t s = 0; s < kSideStreams; ++s) {
      const SideStream& side = piece.sides[s];
      if (side.input != kNoTensor) meet(sides[s], piece, side.input, side.input_gradient);
      if (side.output != kNoTensor) sides[s] = {&piece, side.output, side.output_gradient};
    }
  };
  for (const Chunk* chunk : program.chunks_in_order(of_class))
    for (const PieceRun& run : chunk->runs)
      for (std::int64_t i = 0; i < std::min<std::int64_t>(run.count, 2); ++i) pass(program.pieces[run.piece]);
}

bool same_parameters(const Piece& a, const Piece& b) {
  if (&a == &b) return true;
  if (!share_buckets(a, b)) return false;
  if (a.layers != b.layers) return a.layers > 0 && b.layers > 0;
  return std::ranges::equal(a.parameters, b.parameters, [&](const ParameterGradient& p, const ParameterGradient& q) {
    const Tensor &x = a.tensors[p.parameter], &y = b.tensors[q.parameter];
    return x.axes == y.axes && x.sizes == y.sizes && x.over == y.over && x.dtype == y.dtype;
  });
}

// Compares layer by layer, whatever the division into runs, and into groups that are recomputed together.
bool same_layers(const Program& program, const Chunk& a, const Chunk& b) {
  const auto layers_of = [&](const PieceRun& run) {
    return run.count * std::max<std::int64_t>(1, program.pieces[run.piece].layers);
  };
  std::size_t i = 0, j = 0;
  std::int64_t of_a = 0, of_b = 0;  // layers of the runs visited so far
  while (i < a.runs.size() && j < b.runs.size()) {
    const PieceRun &x = a.runs[i], &y = b.runs[j];
    if (!same_parameters(program.pieces[x.piece], program.pieces[y.piece])) return false;
    const std::int64_t both = std::min(layers_of(x) - of_a, layers_of(y) - of_b);
    of_a += both;
    of_b += both;
    if (of_a == layers_of(x)) ++i, of_a = 0;
    if (of_b == layers_of(y)) ++j, of_b = 0;
  }
  return i == a.runs.size() && j == b.runs.size();
}

// Checks that classes of micro-batches differ only in how they compute, not in what they compute. Returns false if they
// are not as required.
bool check_classes(const Program& program, std::vector<Violation>& found) {
  const std::size_t classes = program.micro_batch_classes(), before = found.size();
  const std::vector<std::uint8_t>& of = program.micro_batch_class;
  const auto report = [&](std::string text) { found.push_back({Rule::classes_alike, std::move(text)}); };
  if (of.empty() && classes == 1) return true;
  if (static_cast<std::int64_t>(of.size()) != program.schedule.micro_batches)
    report(fmt::format("classes of {} micro-batches, the schedule has {}", of.size(), program.schedule.micro_batches));
  for (std::size_t m = 0; m < of.size(); ++m)
    if (of[m] >= classes) report(fmt::format("micro-batch {} is of class {}, there are {}", m, of[m], classes));
  const auto same_chunks = [&](const std::vector<Chunk>& a, const std::vector<Chunk>& b) {
    return std::ranges::equal(a, b, [&](const Chunk& x, const Chunk& y) { return same_layers(program, x, y); });
  };
  for (std::size_t c = 1; c < classes; ++c)
    if (!std::ranges::equal(program.stages_of(c), program.stages, same_chunks))
      report(fmt::format("micro-batches of class {} have other layers, or other parameters, than those of class 0", c));
  return found.size() == before;
}

// All digits over which ranks hold different gradients: stages, parts of parameters, shards.
MeshGroup digits_of_gradients(const Program& program) {
  MeshGroup group = program.mesh.group(MeshAxis::pp);
  for (const Piece& piece : program.pieces) {
    for (const ParameterGradient& p : piece.parameters) group = group | piece.tensors[p.parameter].divided_over();
    for (const Block* block : {&piece.backward, &piece.weight_gradient, &piece.update})
      for (const Op& op : block->ops)
        if (op.kind == OpKind::gradient_norm) group = group | piece.tensors[op.reads[0]].divided_over();
  }
  return group;
}

// ---- tasks

// The resident storages that a block of a piece reads and writes.
struct Touched {
  std::set<TensorId> read, written;
};
Touched touched(const Piece& piece, std::span<const Block* const> blocks) {
  Touched by;
  const auto add = [&](TensorId id, std::set<TensorId>& to) {
    if (id == kNoTensor) return;
    const TensorId root = storage_of(piece, id);
    if (piece.tensors[root].resident) to.insert(root);
  };
  for (const Block* block : blocks)
    for (const Op& op : block->ops) {
      for (const TensorId id : op.reads) add(id, by.read);
      for (const TensorId id : op.writes) add(id, by.written);
      if (op.accumulate)
        for (const TensorId id : op.writes) add(id, by.read);
    }
  return by;
}
Touched touched_by_task(const Piece& piece, std::uint16_t block) {
  if (block == 0) return touched(piece, {{&piece.forward, &piece.backward, &piece.weight_gradient, &piece.update}});
  return touched(piece, {{&piece.tasks[block - 1u]}});
}

// Returns whether a run of `second` waits until the last run of `first`, which runs beside others, has ended. The wait
// is that of `second` itself, or of a task between the two.
bool waits_for(const std::vector<Task>& tasks, std::size_t first, std::size_t second) {
  for (std::size_t n = 1; n <= tasks.size(); ++n) {
    const std::size_t at = (first + n) % tasks.size();
    const std::uint16_t lag = at > first ? 0 : 1;
    for (const After& after : tasks[at].after)
      if (after.task == first && after.lag == lag) return true;
    if (at == second) return false;
  }
  return false;
}

void check_tasks(const Program& program, std::vector<Violation>& found) {
  const std::vector<Task>& tasks = program.tasks;
  const auto report = [&](std::string text) { found.push_back({Rule::tasks_in_order, std::move(text)}); };
  if (tasks.empty() && program.begin == 0) return;
  const std::size_t blocks = program.pieces.empty() ? 0 : program.pieces.front().tasks.size();
  std::set<std::uint16_t> met;
  bool has_step = false, alike = program.begin <= blocks;
  for (const Piece& piece : program.pieces) alike = alike && piece.tasks.size() == blocks;
  for (const Task& task : tasks) {
    has_step = has_step || task.block == 0;
    alike = alike && task.block <= blocks && task.repeats >= 1 && (task.block == 0 || met.insert(task.block).second);
  }
  if (!has_step || !alike)
    return report("an iteration has a step, and other tasks have a block of their own in every piece");
  for (std::size_t t = 0; t < tasks.size(); ++t)
    for (const After& after : tasks[t].after)
      if (after.task >= tasks.size() || (after.lag == 0 && after.task >= t))
        return report(fmt::format("task \"{}\" waits for task number {} of {} iterations before: it would wait forever",
                                  tasks[t].name, after.task, after.lag));
  for (const Task& task : tasks) {
    const auto computes = [&](const Piece& piece) {
      return task.block == 0 || !std::ranges::all_of(piece.tasks[task.block - 1u].ops,
                                                     [](const Op& op) { return is_communication(op.kind); });
    };
    if (task.beside && std::ranges::any_of(program.pieces, computes))
      report(fmt::format("task \"{}\" runs beside others, and has more than collectives", task.name));
  }
  for (const Piece& piece : program.pieces) {
    std::set<TensorId> known;  // written so far
    std::vector<Touched> by_block;
    for (std::size_t b = 0; b <= blocks; ++b) by_block.push_back(touched_by_task(piece, static_cast<std::uint16_t>(b)));
    if (program.begin > 0) known = by_block[program.begin].written;
    for (const std::set<TensorId>* ids : {&by_block[0].read, &by_block[0].written})
      known.insert(ids->begin(), ids->end());
    for (const Task& task : tasks) {
      const Touched& by = by_block[task.block];
      for (const TensorId id : by.read)
        if (!known.contains(id))
          report(fmt::format("piece \"{}\": task \"{}\" reads \"{}\" before anything has written it", piece.name,
                             task.name, piece.tensors[id].name));
      known.insert(by.written.begin(), by.written.end());
    }
    const auto meet = [&](const Task& task, const char* does, TensorId id, const Task& beside, const char* how) {
      report(fmt::format("piece \"{}\": task \"{}\" {} \"{}\" while \"{}\", which it does not wait for, {} it",
                         piece.name, task.name, does, piece.tensors[id].name, beside.name, how));
    };
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      if (!tasks[t].beside) continue;
      const Touched& beside = by_block[tasks[t].block];
      for (std::size_t other = 0; other < tasks.size(); ++other) {
        if (tasks[other].beside || waits_for(tasks, t, other)) continue;
        const Touched& by = by_block[tasks[other].block];
        for (const TensorId id : beside.written)
          if (by.read.contains(id) || by.written.contains(id)) meet(tasks[other], "uses", id, tasks[t], "writes");
        for (const TensorId id : beside.read)
          if (by.written.contains(id)) meet(tasks[other], "writes", id, tasks[t], "reads");
      }
    }
  }
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const auto waits = [&](const Task& task) {
      return std::ranges::any_of(task.after, [&](const After& after) { return after.task == t; });
    };
    if (tasks[t].beside && std::ranges::none_of(tasks, waits))
      report(fmt::format("no task waits for \"{}\", which runs beside others: its runs may pile up", tasks[t].name));
  }
}

}  // namespace

std::vector<Violation> check(const Program& program) {
  std::vector<Violation> found;
  const MeshGroup norm_group = digits_of_gradients(program);
  proof::Holders holders(program);
  std::vector<std::vector<MeshGroup>> contributed(program.pieces.size());
  for (std::size_t p = 0; p < program.pieces.size(); ++p) {
    proof::PieceCheck piece(program, program.pieces[p], norm_group, holders, found);
    piece.run();
    contributed[p] = piece.contributed();
  }
  // A parameter that lies in another piece of its stage is reduced there: both must owe the same sum.
  for (std::size_t p = 0; p < program.pieces.size(); ++p)
    for (std::size_t i = 0; i < program.pieces[p].parameters.size(); ++i) {
      const Piece& piece = program.pieces[p];
      const Tensor& t = piece.tensors[piece.parameters[i].parameter];
      if (!t.shared || piece.parameters[i].gradient == kNoTensor) continue;
      for (std::size_t q = 0; q < program.pieces.size(); ++q)
        for (std::size_t j = 0; j < program.pieces[q].parameters.size(); ++j) {
          const ParameterGradient& other = program.pieces[q].parameters[j];
          const Tensor& owner = program.pieces[q].tensors[other.parameter];
          if (owner.shared || other.gradient == kNoTensor || owner.axes != t.axes || owner.sizes != t.sizes) continue;
          if (contributed[p][i] != contributed[q][j])
            found.push_back(
                {Rule::owed_alike,
                 fmt::format("piece \"{}\": the gradient of \"{}\", which lies in piece \"{}\", owes the sum over {}, "
                             "there it owes {}",
                             piece.name, t.name, program.pieces[q].name, words(program.mesh, contributed[p][i]),
                             words(program.mesh, contributed[q][j]))});
        }
    }
  check_tasks(program, found);
  if (!check_classes(program, found)) return found;
  for (std::size_t c = 0; c < program.micro_batch_classes(); ++c) check_line(program, c, found);
  return found;
}

}  // namespace orrery
