// Are the rules of check() for single ops and collectives true? All layouts of small operands on 2, 3 and 4 ranks, with
// sums owed in uneven parts, computed by the CPU's kernels on every rank and held against one rank. A rule is wrong if
// check() lets a layout pass, or owe a sum, that the numbers do not bear out: there are none. It is missing if check()
// refuses what would have been right: each of these is named, with the reason.
//
// Parts are equal: a Program has no layout of a size that does not divide, but of flat buffers, whose last part reaches
// beyond the end. Collectives and the ops of the update are asked of such; that plans refuse what they cannot divide
// evenly is for Layouts.OfSizesThatDoNotDivideAreRefusedOrComputeTheNumbersOfOneRank (executor_test.cpp).
//
// Not asked here: dimensions dealt by query heads, and rings (attended_pairs_test.cpp, executor_test.cpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "realrun/backend.h"
#include "realrun/cpu/kernels.h"
#include "sim/program/check.h"
#include "sim/program/program.h"
#include "sim/program/redistribute.h"
#include "sim/program/rewrite.h"

namespace orrery::op_rules {
namespace {

using enum OpKind;
using Values = std::vector<float>;
using Index = std::vector<std::int64_t>;

// ---- a tensor and its layouts -----------------------------------------------------------------------------------

struct Layout {
  Tensor tensor;     // of one rank
  MeshGroup owed;    // the sum over these
  std::string name;  // "[batch, hidden/tp]", "[batch, hidden] owed over tp"
};

std::string words(const Mesh& mesh, MeshGroup group) {
  std::string text;
  for (std::size_t d = 0; d < mesh.digits().size(); ++d)
    if (group.contains(static_cast<int>(d))) text += (text.empty() ? "" : "x") + std::string(mesh.digits()[d].name);
  return text;
}

const char* word(Axis axis) {
  constexpr std::array names{"-",         "batch",    "sequence", "key_sequence", "hidden",  "groups", "group_heads",
                             "group_qkv", "head_dim", "ffn",      "vocab",        "experts", "slots",  "expert_ffn"};
  return names.at(static_cast<std::size_t>(axis));
}

// Every digit divides a dimension that it fits, or is owed, or neither; two digits of one dimension in either order.
// Sequences that one digit divides are dealt in all ways; `all_deals`: those that two divide, as well.
std::vector<Layout> layouts_of(const Tensor& whole, const Mesh& mesh, bool may_owe, bool all_deals = false) {
  std::vector<Layout> found;
  static DealTables tables;
  const int digits = static_cast<int>(mesh.digits().size());
  constexpr int kNone = -1, kOwed = -2;
  std::vector<int> choice(static_cast<std::size_t>(digits), kOwed);
  const auto add = [&](bool reversed, Deal deal) {
    Layout l{whole, {}, ""};
    for (int i = 0; i < digits; ++i) {
      const int d = reversed ? i : digits - 1 - i, at = choice[static_cast<std::size_t>(d)];
      const MeshGroup group = MeshGroup::of_digit(d);
      if (at == kOwed) l.owed = l.owed | group;
      if (at < 0) continue;
      // There is no layout of a size that does not divide.
      if (whole.axes[at] == Axis::none || l.tensor.sizes[at] % mesh.size(group) != 0) return;
      l.tensor.sizes[at] /= mesh.size(group);
      l.tensor.over[at].append(group);
    }
    l.name = "[";
    for (int d = 0; d < whole.rank; ++d) {
      l.name += std::string(d > 0 ? ", " : "") + word(whole.axes[d]);
      for (int n = 0; n < l.tensor.over[d].count(); ++n)
        l.name += std::string("/") + mesh.digits()[static_cast<std::size_t>(l.tensor.over[d].digit(n))].name;
      if (deal == Deal::contiguous || whole.axes[d] != Axis::sequence || l.tensor.over[d].empty()) continue;
      if (deal != Deal::striped && l.tensor.sizes[d] % 2 != 0) return;
      std::vector<std::int64_t> owners;  // of a table: the zigzag deal's, the last rank first
      const std::int64_t parts = mesh.size(MeshGroup::of_digit(l.tensor.over[d].digit(0)));
      for (std::int64_t b = 0; b < 2 * parts; ++b) owners.push_back(b < parts ? parts - 1 - b : b - parts);
      l.tensor.set_deal(d, deal == Deal::by_table ? tables.by_blocks(owners) : deal);
      l.name += std::string(" ") + name_of(deal);
    }
    l.name += "]" + (l.owed.empty() ? "" : " owed over " + words(mesh, l.owed));
    found.push_back(std::move(l));
  };
  const auto choose = [&](const auto& self, int digit) -> void {
    if (digit < digits) {
      for (int at = may_owe ? kOwed : kNone; at < whole.rank; ++at) {
        choice[static_cast<std::size_t>(digit)] = at;
        self(self, digit + 1);
      }
      return;
    }
    add(false, Deal::contiguous);
    if (digits == 2 && choice[0] == choice[1] && choice[0] >= 0) add(true, Deal::contiguous);
    if (digits == 1 && choice[0] >= 0 && whole.axes[choice[0]] == Axis::sequence)
      for (const Deal deal : {Deal::zigzag, Deal::striped, Deal::by_table}) add(false, deal);
    if (digits != 2 || !all_deals) return;
    const auto along_sequence = [&](std::size_t d) {
      return choice[d] >= 0 && whole.axes[choice[d]] == Axis::sequence;
    };
    if (!along_sequence(0) && !along_sequence(1)) return;
    for (const Deal deal : {Deal::zigzag, Deal::striped, Deal::by_table}) {
      add(false, deal);
      if (choice[0] == choice[1]) add(true, deal);
    }
  };
  choose(choose, 0);
  return found;
}

Index indices(const Tensor& local, const Tensor& whole, int dim, const Mesh& mesh, std::int64_t rank) {
  return dealt_indices(local.deal(dim), local.over[dim], whole.sizes[dim], local.sizes[dim], mesh, rank);
}

// Which elements of the whole a rank has.
Index elements(const Tensor& local, const Tensor& whole, const Mesh& mesh, std::int64_t rank) {
  Index at{0};
  for (int d = 0; d < whole.rank; ++d) {
    Index next;
    for (const std::int64_t before : at)
      for (const std::int64_t i : indices(local, whole, d, mesh, rank)) next.push_back(before * whole.sizes[d] + i);
    at = std::move(next);
  }
  return at;
}

Values picked(const Values& from, const Index& at) {
  Values values;
  for (const std::int64_t i : at) values.push_back(from[static_cast<std::size_t>(i)]);
  return values;
}

std::int64_t part_in(MeshGroup group, const Mesh& mesh, std::int64_t rank) {
  Division over;
  over.append(group);
  return part_of(over, mesh, rank);
}

// One of the uneven parts that a number is the sum of.
double share(double whole, std::int64_t element, std::int64_t part, std::int64_t parts) {
  static std::unordered_map<std::uint32_t, double> drawn;  // by seed: seeding takes longer than all else here
  double rest = whole;
  for (std::int64_t p = 0; p + 1 < parts; ++p) {
    const auto seed = static_cast<std::uint32_t>(element * 31 + p * 7 + 1);
    const auto [found, is_new] = drawn.try_emplace(seed);
    if (is_new) {
      std::mt19937 generator(seed);
      found->second = std::normal_distribution<double>(0, 1.5)(generator);
    }
    const double value = found->second;
    if (p == part) return value;
    rest -= value;
  }
  return rest;
}

// What a rank holds of `whole`.
Values held(const Layout& layout, const Tensor& whole, const Values& values, const Mesh& mesh, std::int64_t rank) {
  const Index at = elements(layout.tensor, whole, mesh, rank);
  Values local = picked(values, at);
  if (!layout.owed.empty())
    for (std::size_t i = 0; i < local.size(); ++i)
      local[i] = static_cast<float>(
          share(static_cast<double>(local[i]), at[i], part_in(layout.owed, mesh, rank), mesh.size(layout.owed)));
  return local;
}

// ---- an op and what it computes ---------------------------------------------------------------------------------

struct Operand {
  std::string name;
  Tensor whole;
  Values values;
};

struct Case {
  std::string name;
  Op op;  // operands by number: those that are absent have no name
  std::vector<Operand> reads, writes;
  KernelContext context;
  bool in_two_digits = false;  // also on a mesh of 2 x 2
};

Tensor shaped(std::initializer_list<Dim> dims) {
  Tensor t;
  t.dtype = Dtype::fp32;
  for (const Dim& d : dims) t.append(d);
  return t;
}

// Positions and offsets as the executor gives them (realrun/rank/kernels.cpp), of the layouts that meet.
struct Placed {
  KernelContext context;
  Index queries, keys;
};
void place(const Case& c, std::span<const Layout* const> reads, std::span<const Layout* const> writes, const Mesh& mesh,
           std::int64_t rank, Placed& p) {
  p.context = c.context;
  const auto along_sequence = [&](const Layout& l, const Tensor& whole) {
    const int d = whole.find(Axis::sequence);
    return d < 0 ? Index{} : indices(l.tensor, whole, d, mesh, rank);
  };
  const auto first = [&](const Layout& l, const Tensor& whole, int dim) {
    return indices(l.tensor, whole, dim, mesh, rank).front();
  };
  if (c.op.kind == attention || c.op.kind == attention_backward) {
    const std::size_t q = c.op.kind == attention ? 0 : 3;
    p.queries = along_sequence(*reads[q], c.reads[q].whole);
    p.keys = along_sequence(*reads[q + 1], c.reads[q + 1].whole);
  } else if (c.op.kind == rotary || c.op.kind == rotary_backward) {
    p.queries = along_sequence(*reads[0], c.reads[0].whole);
  } else if (traits_of(c.op.kind).random) {
    const Tensor& whole = c.writes[0].whole;
    p.queries = along_sequence(*writes[0], whole);
    for (int d = 0; d < whole.rank; ++d) {
      p.context.part_begin[static_cast<std::size_t>(d)] = first(*writes[0], whole, d);
      p.context.whole_sizes[static_cast<std::size_t>(d)] = whole.sizes[d];
    }
  }
  p.context.query_positions = p.queries;
  p.context.key_positions = p.keys;
  const auto note = [&](const Layout* l, const Operand& o) {
    if (l == nullptr) return;
    if (const int d = o.whole.find(Axis::vocab); d >= 0) p.context.first_vocabulary_row = first(*l, o.whole, d);
    if (const int d = o.whole.find(Axis::experts); d >= 0) p.context.first_expert = first(*l, o.whole, d);
  };
  for (std::size_t i = 0; i < reads.size(); ++i) note(reads[i], c.reads[i]);
  for (std::size_t i = 0; i < writes.size(); ++i) note(writes[i], c.writes[i]);
}

// Ids of all tokens, rows of a table of positions: what every rank has whole is read, or written, in part.
Tensor taken(const Tensor& own, const Tensor& other) {
  Tensor part = own;
  const int d = own.find(Axis::sequence), e = other.find(Axis::sequence);
  if (d < 0 || e < 0 || own.over[d] == other.over[e] || !other.over[e].begins_with(own.over[d])) return own;
  part.over[d] = other.over[e];
  part.sizes[d] = other.sizes[e];
  part.set_deal(d, other.deal(e));
  return part;
}

struct Rank {
  std::vector<Tensor> tensors;
  std::vector<Values> values;
};

// Each rank's results, of its parts; nothing where the parts do not fit together.
bool compute(const Case& c, std::span<const Layout* const> reads, std::span<const Layout* const> writes,
             std::span<const std::vector<Values>* const> parts, const Mesh& mesh,
             std::vector<std::vector<Values>>& results) {
  const auto ranks = static_cast<std::size_t>(mesh.ranks());
  results.assign(writes.size(), std::vector<Values>(ranks));
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto r = static_cast<std::int64_t>(rank);
    Placed placed;
    place(c, reads, writes, mesh, r, placed);
    std::vector<Tensor> in(reads.size()), out(writes.size());
    std::vector<Values> pieces(reads.size());
    std::vector<orrery::Operand> from(reads.size()), to(writes.size());
    for (std::size_t i = 0; i < reads.size(); ++i) {
      if (reads[i] == nullptr) continue;
      in[i] = reads[i]->tensor;
      pieces[i] = (*parts[i])[rank];
      const bool in_part = (c.op.kind == embedding && i == 0) || (c.op.kind == add && i == 2);
      if (const Tensor part = in_part ? taken(in[i], writes[0]->tensor) : in[i]; part.over != in[i].over) {
        Layout divided = *reads[i];
        divided.tensor = part;
        in[i] = part;
        pieces[i] = held(divided, c.reads[i].whole, c.reads[i].values, mesh, r);
      }
      from[i] = {pieces[i].data(), &in[i]};
    }
    for (std::size_t i = 0; i < writes.size(); ++i) {
      if (writes[i] == nullptr) continue;
      out[i] = c.op.kind == bias_gradient ? taken(writes[i]->tensor, reads[0]->tensor) : writes[i]->tensor;
      results[i][rank].assign(static_cast<std::size_t>(out[i].elements()), std::nanf(""));
      to[i] = {results[i][rank].data(), &out[i]};
    }
    try {
      cpu::run_kernel(c.op, from, to, placed.context);
    } catch (const std::logic_error&) {
      return false;
    }
    for (std::size_t i = 0; i < writes.size(); ++i) {  // of the rest of a table there is nothing
      if (writes[i] == nullptr || out[i].over == writes[i]->tensor.over) continue;
      const Index own = elements(writes[i]->tensor, c.writes[i].whole, mesh, r),
                  at = elements(out[i], c.writes[i].whole, mesh, r);
      Values whole(own.size());
      for (std::size_t e = 0; e < at.size(); ++e)
        whole[static_cast<std::size_t>(std::find(own.begin(), own.end(), at[e]) - own.begin())] = results[i][rank][e];
      results[i][rank] = std::move(whole);
    }
  }
  return true;
}

bool close(const Values& a, const Values& b) {
  constexpr double kTolerance = 2e-4;
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])) <=
          kTolerance * (1 + std::abs(static_cast<double>(b[i])))))
      return false;
  return true;
}

// What a collective makes of the members' results: their sum, or statistics of all of the vocabulary.
Values summed(OpKind kind, std::span<const Values* const> parts) {
  Values sum(parts[0]->size());
  if (kind == cross_entropy) {
    std::vector<const void*> data;
    for (const Values* part : parts) data.push_back(part->data());
    make_cpu_backend()->merge_statistics(Stream::compute, data, sum.data(), static_cast<std::int64_t>(sum.size()) / 3);
    return sum;
  }
  for (std::size_t i = 0; i < sum.size(); ++i) {
    double total = 0;
    for (const Values* part : parts) total += static_cast<double>((*part)[i]);
    sum[i] = static_cast<float>(total);
  }
  return sum;
}

// Whether the results, summed over `owed`, are the parts of the whole that `layout` says.
bool holds(OpKind kind, const Layout& layout, MeshGroup owed, const std::vector<Values>& results,
           const std::vector<Values>& expected, const Mesh& mesh) {
  if (owed.meets(layout.tensor.divided_over())) return false;
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    std::vector<const Values*> parts;
    for (std::int64_t other = 0; other < mesh.ranks(); ++other) {
      bool member = true;
      for (std::size_t d = 0; d < mesh.digits().size(); ++d) {
        const Digit& digit = mesh.digits()[d];
        const bool same = rank / digit.stride % digit.size == other / digit.stride % digit.size;
        member = member && (same || owed.contains(static_cast<int>(d)));
      }
      if (member) parts.push_back(&results[static_cast<std::size_t>(other)]);
    }
    const Values& own = expected[static_cast<std::size_t>(rank)];
    if (!(parts.size() == 1 ? close(*parts[0], own) : close(summed(kind, parts), own))) return false;
  }
  return true;
}

// ---- what check() says ------------------------------------------------------------------------------------------

struct Verdict {
  std::vector<Rule> broken;
  std::vector<MeshGroup> owed;  // by result
};

constexpr std::array<const char*, 4> kResults{"y0", "y1", "y2", "y3"};

// Of a Program of one op. Sums that operands owe come from products over a width that the digits divide.
class Checker {
 public:
  explicit Checker(const Mesh& mesh) {
    program_.mesh = mesh;
    program_.pieces.resize(1);
    program_.pieces[0].name = "piece";
  }

  TensorId operand(const Layout& layout) {
    Piece& piece = program_.pieces[0];
    Tensor t = layout.tensor;
    t.name = "operand";
    t.category = Category::activation;
    t.input = layout.owed.empty() ? Input::patches : Input::none;
    const TensorId id = piece.add(t);
    if (layout.owed.empty()) return id;
    Tensor x = t, w = t;
    x.name = "x", w.name = "w";
    x.input = w.input = Input::patches;
    const int last = t.rank - 1;
    x.over[last] = {}, x.sizes[last] = 1, x.axes[last] = Axis::expert_ffn;  // an axis that no case has
    x.set_deal(last, Deal::contiguous);
    x.over[last].append(layout.owed);
    w.truncate(2);
    w.rank = 2;
    w.axes = {Axis::expert_ffn, t.axes[last]};
    w.over = {x.over[last], t.over[last]};
    w.deals = {};
    w.table = nullptr;
    w.set_deal(1, t.deal(last));
    Op product;
    product.name = "product";
    product.reads[0] = piece.add(x);
    product.reads[1] = piece.add(w);
    product.writes[0] = id;
    piece.forward.ops.push_back(product);
    return id;
  }

  Verdict check(Op op, std::span<const Layout* const> reads, std::span<const Layout* const> writes) {
    Piece& piece = program_.pieces[0];
    piece.tensors.clear();
    piece.forward.ops.clear();
    piece.output = kNoTensor;
    piece.sides = {};
    for (std::size_t i = 0; i < reads.size(); ++i)
      if (reads[i] != nullptr) op.reads[i] = operand(*reads[i]);
    for (std::size_t i = 0; i < writes.size(); ++i) {
      if (writes[i] == nullptr) continue;
      Tensor t = writes[i]->tensor;
      t.name = kResults.at(i);
      op.writes[i] = piece.add(t);
      (i == 0 ? piece.output : piece.sides.at(i - 1).output) = op.writes[i];
    }
    op.name = "op";
    piece.forward.ops.push_back(op);
    Verdict verdict{{}, std::vector<MeshGroup>(writes.size())};
    for (const Violation& v : orrery::check(program_)) {
      if (v.rule != Rule::pieces_fit) {
        verdict.broken.push_back(v.rule);
        continue;
      }
      const std::size_t over = v.text.find("owes the sum over "), end = v.text.find(';', over);
      const std::string owed = v.text.substr(over, end - over);
      for (std::size_t i = 0; i < writes.size(); ++i)
        if (v.text.find(std::string("\"") + kResults.at(i) + "\"") != std::string::npos)
          for (std::size_t d = 0; d < program_.mesh.digits().size(); ++d)
            if (owed.find(program_.mesh.digits()[d].name) != std::string::npos)
              verdict.owed[i] = verdict.owed[i] | MeshGroup::of_digit(static_cast<int>(d));
    }
    return verdict;
  }

 private:
  Program program_;
};

// ---- all layouts ------------------------------------------------------------------------------------------------

struct Tally {
  std::int64_t asked = 0, right = 0;
  std::vector<std::string> wrong;
  std::map<std::string, std::set<std::string>> missing;  // layouts, by case and broken rule
};

void ask(const Case& c, const Mesh& mesh, Tally& tally) {
  struct Slot {
    std::vector<Layout> layouts;
    std::vector<std::vector<Values>> by_rank;  // of each layout what ranks hold, or should
    std::vector<std::size_t> shapes;           // of each layout the first that differs in the deal alone
    std::size_t count() const { return std::max<std::size_t>(layouts.size(), 1); }
    std::size_t shape(std::size_t layout) const { return layouts.empty() ? 0 : shapes[layout]; }
  };
  const auto slot_of = [&](const Operand& o, bool is_read) {
    Slot slot;
    if (o.name.empty()) return slot;
    slot.layouts = layouts_of(o.whole, mesh, is_read);
    for (const Layout& l : slot.layouts) {
      std::vector<Values>& ranks = slot.by_rank.emplace_back();
      for (std::int64_t r = 0; r < mesh.ranks(); ++r) ranks.push_back(held(l, o.whole, o.values, mesh, r));
      slot.shapes.push_back(static_cast<std::size_t>(std::find_if(slot.layouts.begin(), slot.layouts.end(),
                                                                  [&](const Layout& other) {
                                                                    return other.tensor.over == l.tensor.over &&
                                                                           other.owed == l.owed;
                                                                  }) -
                                                     slot.layouts.begin()));
    }
    return slot;
  };
  std::vector<Slot> slots;
  for (const Operand& o : c.reads) slots.push_back(slot_of(o, true));
  for (const Operand& o : c.writes) slots.push_back(slot_of(o, false));

  std::vector<MeshGroup> sums{{}};
  for (std::size_t d = 0; d < mesh.digits().size(); ++d)
    for (std::size_t i = 0, n = sums.size(); i < n; ++i)
      sums.push_back(sums[i] | MeshGroup::of_digit(static_cast<int>(d)));

  // Computed once for all layouts that make no difference to it. Whether kernels take the parts is the same however
  // these are dealt, and what they compute however the results are, but where a result's positions choose what is drawn
  // or read.
  const std::size_t reads_count = c.reads.size();
  const bool by_position = traits_of(c.op.kind).random || traits_of(c.op.kind).regroups || c.op.kind == embedding ||
                           c.op.kind == add || c.op.kind == bias_gradient;
  const auto sizes_product = [&](std::size_t begin) {
    std::size_t product = 1;
    for (std::size_t s = begin; s < slots.size(); ++s) product *= slots[s].count();
    return product;
  };
  enum Answer : char { unknown, no, yes };
  struct Computed {
    bool known = false;
    std::vector<std::vector<Values>> results;
    std::vector<Answer> right;  // by result, its layout and the sum
  };
  std::vector<Answer> fitting(sizes_product(0), unknown);
  std::vector<Computed> computed(sizes_product(reads_count));  // from the parts at hand
  std::size_t most_layouts = 1;
  for (const Slot& slot : slots) most_layouts = std::max(most_layouts, slot.count());

  Checker checker(mesh);
  std::vector<std::size_t> at(slots.size());
  std::vector<const Layout*> layouts(slots.size());
  std::vector<const std::vector<Values>*> values(slots.size());
  const auto one = [&] {
    std::size_t shapes = 0, outcome = 0;
    for (std::size_t s = 0; s < slots.size(); ++s) {
      const Slot& slot = slots[s];
      layouts[s] = slot.layouts.empty() ? nullptr : &slot.layouts[at[s]];
      values[s] = slot.layouts.empty() ? nullptr : &slot.by_rank[at[s]];
      shapes = shapes * slot.count() + slot.shape(at[s]);
      if (s >= reads_count) outcome = outcome * slot.count() + (by_position ? at[s] : slot.shape(at[s]));
    }
    const std::span<const Layout*const> all(layouts), reads = all.first(reads_count), writes = all.subspan(reads_count);
    ++tally.asked;
    const Verdict verdict = checker.check(c.op, reads, writes);
    Computed& made = computed[outcome];
    if (fitting[shapes] != no && !made.known) {
      made.known = true;
      fitting[shapes] = compute(c, reads, writes, values, mesh, made.results) ? yes : no;
      made.right.assign(writes.size() * most_layouts * sums.size(), unknown);
    }
    const bool fits = fitting[shapes] == yes;
    const auto right = [&](std::size_t w, MeshGroup owed) {
      if (writes[w] == nullptr) return true;
      const auto sum = static_cast<std::size_t>(std::find(sums.begin(), sums.end(), owed) - sums.begin());
      Answer& answer = made.right[(w * most_layouts + at[reads_count + w]) * sums.size() + sum];
      if (answer == unknown)
        answer = holds(c.op.kind, *writes[w], owed, made.results[w], *values[reads_count + w], mesh) ? yes : no;
      return answer == yes;
    };
    const auto description = [&] {
      std::string text;
      for (std::size_t s = 0; s < layouts.size(); ++s)
        if (layouts[s] != nullptr)
          text += (s == reads_count ? " -> "
                   : text.empty()   ? ""
                                    : " ") +
                  (s < reads_count ? c.reads[s].name : c.writes[s - reads_count].name) + layouts[s]->name;
      return text;
    };
    if (verdict.broken.empty()) {
      bool holds_all = fits;
      for (std::size_t w = 0; w < writes.size(); ++w) holds_all = holds_all && right(w, verdict.owed[w]);
      if (holds_all) {
        ++tally.right;
      } else {
        std::string owed;
        for (std::size_t w = 0; w < writes.size(); ++w)
          if (!verdict.owed[w].empty()) owed += " " + c.writes[w].name + " owed over " + words(mesh, verdict.owed[w]);
        tally.wrong.push_back(c.name + ": " + description() + owed);
      }
      return;
    }
    if (!fits) return;
    for (std::size_t w = 0; w < writes.size(); ++w)
      if (std::none_of(sums.begin(), sums.end(), [&](MeshGroup owed) { return right(w, owed); })) return;
    tally.missing[c.name + ", rule " + std::to_string(static_cast<int>(verdict.broken.front()))].insert(description());
  };
  const auto choose = [&](const auto& self, std::size_t s) -> void {
    if (s == reads_count)
      for (Computed& made : computed) made.known = false;
    if (s == slots.size()) return one();
    for (at[s] = 0; at[s] < slots[s].count(); ++at[s]) self(self, s + 1);
  };
  choose(choose, 0);
}

// ---- the ops ----------------------------------------------------------------------------------------------------

class Builder {
 public:
  explicit Builder(std::int64_t ranks)
      : n_(ranks),
        b_{n_, Axis::batch},
        s_{2 * n_, Axis::sequence},
        h_{2 * n_, Axis::hidden},
        f_{2 * n_, Axis::ffn},
        v_{2 * n_, Axis::vocab} {}

  std::vector<Case> build() {
    products();
    attentions();
    norms();
    elementwise();
    tokens();
    experts();
    difference();
    columns();
    second_moments();
    return std::move(cases_);
  }

 private:
  void columns() {
    begin(orthogonalise);
    read("x", {h_, {2}});
    write("y", {h_, {2}});
    end();
  }
  Op& begin(OpKind kind, const char* variant = "") {
    Case& c = cases_.emplace_back();
    c.op.kind = kind;
    c.name = std::string(name_of(kind)) + (*variant != 0 ? " " : "") + variant;
    return c.op;
  }
  Case& last() { return cases_.back(); }
  void skip() { last().reads.emplace_back(); }
  const Values& read(const char* name, std::initializer_list<Dim> dims, double offset = 0) {
    const Tensor t = shaped(dims);
    std::mt19937 generator(++seed_);
    std::normal_distribution<double> normal(offset, 1);
    Values values(static_cast<std::size_t>(t.elements()));
    for (float& v : values) v = static_cast<float>(normal(generator));
    return read(name, dims, std::move(values));
  }
  const Values& read(const char* name, std::initializer_list<Dim> dims, Values values) {
    last().reads.push_back({name, shaped(dims), std::move(values)});
    return last().reads.back().values;
  }
  // Of a row as different as they can be: no deal of positions looks like another one by chance.
  void read_ids(const char* name, std::initializer_list<Dim> dims, std::int64_t below) {
    const Tensor t = shaped(dims);
    std::mt19937 generator(++seed_);
    Values values, ids(static_cast<std::size_t>(below));
    std::iota(ids.begin(), ids.end(), 0.0f);
    for (std::int64_t row = 0; row < t.sizes[0]; ++row) {
      for (std::size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[generator() % i]);
      for (std::int64_t at = 0; at < t.sizes[1]; ++at) values.push_back(ids[static_cast<std::size_t>(at % below)]);
    }
    read(name, dims, std::move(values));
  }
  void write(const char* name, std::initializer_list<Dim> dims) { last().writes.push_back({name, shaped(dims), {}}); }
  void skip_write() { last().writes.emplace_back(); }
  // What one rank computes.
  void end() {
    Case& c = last();
    const Mesh one;
    std::vector<Layout> layouts;
    for (const auto* operands : {&c.reads, &c.writes})
      for (const Operand& o : *operands) layouts.push_back({o.whole, {}, ""});
    std::vector<const Layout*> at;
    std::vector<std::vector<Values>> values;
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      const Operand& o = i < c.reads.size() ? c.reads[i] : c.writes[i - c.reads.size()];
      at.push_back(o.name.empty() ? nullptr : &layouts[i]);
      values.push_back({o.values});
    }
    std::vector<const std::vector<Values>*> parts;
    for (const auto& v : values) parts.push_back(&v);
    std::vector<std::vector<Values>> results;
    const std::span<const Layout* const> all(at);
    ASSERT_TRUE(compute(c, all.first(c.reads.size()), all.subspan(c.reads.size()), parts, one, results)) << c.name;
    for (std::size_t i = 0; i < c.writes.size(); ++i) c.writes[i].values = results[i][0];
  }

  void difference() {
    begin(subtract);
    last().in_two_digits = true;
    read("a", {s_, h_});
    read("b", {s_, h_});
    write("y", {s_, h_});
    end();
  }
  void products() {
    for (const bool transposed : {false, true}) {
      begin(linear, transposed ? "transposed" : "").transposed_weight = transposed;
      last().in_two_digits = true;
      read("x", {b_, h_});
      transposed ? read("w", {f_, h_}) : read("w", {h_, f_});
      write("y", {b_, f_});
      end();
    }
    begin(linear, "bias");
    read("x", {b_, s_, h_});
    read("w", {h_, f_});
    read("bias", {f_});
    write("y", {b_, s_, f_});
    end();

    begin(linear, "of heads").inner_dims = 2;  // an output projection: the width is two dimensions
    read("x", {b_, {n_, Axis::groups}, {n_, Axis::head_dim}});
    read("w", {{n_, Axis::groups}, {n_, Axis::head_dim}, h_});
    write("y", {b_, h_});
    end();

    begin(linear_input_gradient);
    last().in_two_digits = true;
    read("dy", {b_, f_});
    read("w", {h_, f_});
    write("dx", {b_, h_});
    end();

    begin(linear_weight_gradient);
    last().in_two_digits = true;
    read("x", {b_, h_});
    read("dy", {b_, f_});
    write("dw", {h_, f_});
    end();

    const Dim keys{2 * n_, Axis::key_sequence}, dim{n_, Axis::head_dim}, groups{n_, Axis::groups};
    begin(batched_matmul, "scores").transpose_b = true;
    read("q", {groups, s_, dim});
    read("k", {groups, keys, dim});
    write("scores", {groups, s_, keys});
    end();

    begin(batched_matmul, "context");
    read("scores", {groups, s_, keys});
    read("v", {groups, keys, dim});
    write("context", {groups, s_, dim});
    end();
  }

  void attentions() {
    const Dim groups{n_, Axis::groups}, heads{2, Axis::group_heads}, dim{2 * n_, Axis::head_dim},
        keys{n_ * 2, Axis::key_sequence};
    for (const bool causal : {false, true}) {
      begin(attention, causal ? "causal" : "").causal = causal;
      read("q", {b_, s_, groups, heads, dim});
      read("kv", {b_, s_, groups, {2}, dim});
      write("context", {b_, s_, groups, heads, dim});
      write("lse", {b_, groups, heads, s_});
      end();
    }
    // Batch and query heads are divided as groups are.
    const Dim one{2}, some{1};
    const Case forward = last();
    Op& forward_op = begin(attention, "small");
    forward_op.causal = true;
    read("q", {one, s_, groups, some, {n_, Axis::head_dim}});
    read("kv", {one, s_, groups, {2}, {n_, Axis::head_dim}});
    write("context", {one, s_, groups, some, {n_, Axis::head_dim}});
    write("lse", {one, groups, some, s_});
    end();
    const Case small = last();
    begin(attention_backward, "causal").causal = true;
    read("dcontext", {one, s_, groups, some, {n_, Axis::head_dim}});
    read("context", {one, s_, groups, some, {n_, Axis::head_dim}}, small.writes[0].values);
    read("lse", {one, groups, some, s_}, small.writes[1].values);
    read("q", {one, s_, groups, some, {n_, Axis::head_dim}}, small.reads[0].values);
    read("kv", {one, s_, groups, {2}, {n_, Axis::head_dim}}, small.reads[1].values);
    write("dq", {one, s_, groups, some, {n_, Axis::head_dim}});
    write("dkv", {one, s_, groups, {2}, {n_, Axis::head_dim}});
    end();

    begin(merge_attention);
    for (const char* name : {"first", "second"}) {
      read(name, {one, s_, groups, some, {n_, Axis::head_dim}});
      read(name, {one, groups, some, s_});
    }
    write("context", {one, s_, groups, some, {n_, Axis::head_dim}});
    write("lse", {one, groups, some, s_});
    end();

    for (const bool causal : {false, true}) {
      begin(softmax, causal ? "causal" : "").causal = causal;
      last().op.scale = 0.5;
      read("scores", {b_, groups, s_, keys});
      write("y", {b_, groups, s_, keys});
      end();
    }
    begin(softmax_backward);
    last().op.scale = 0.5;
    read("dy", {b_, groups, s_, keys});
    read("y", {b_, groups, s_, keys}, 0.5);
    write("dx", {b_, groups, s_, keys});
    end();

    for (const OpKind kind : {rotary, rotary_backward}) {
      begin(kind);
      read("q", {b_, s_, groups, heads, {4 * n_, Axis::head_dim}});
      write("y", {b_, s_, groups, heads, {4 * n_, Axis::head_dim}});
      end();
    }
    begin(rotary, "of a shared key").rotary_begin = 2;
    read("kv", {b_, s_, groups, heads, {2 * n_, Axis::head_dim}});
    read("key", {b_, s_, {2 * n_, Axis::head_dim}});
    write("y", {b_, s_, groups, heads, {4 * n_, Axis::head_dim}});
    end();
    begin(rotary_backward, "of a shared key").rotary_begin = 2;
    read("dy", {b_, s_, groups, heads, {4 * n_, Axis::head_dim}});
    write("dkv", {b_, s_, groups, heads, {2 * n_, Axis::head_dim}});
    write("dkey", {b_, s_, {2 * n_, Axis::head_dim}});
    end();
  }

  void norms() {
    for (const bool centred : {true, false}) {
      const char* variant = centred ? "layernorm" : "rmsnorm";
      const Dim statistics{centred ? 2 : 1};
      begin(norm, variant).epsilon = 1e-5f;
      read("x", {b_, s_, h_});
      read("w", {h_});
      if (centred) read("bias", {h_});
      write("y", {b_, s_, h_});
      write("statistics", {b_, s_, statistics});
      end();
      const Case forward = last();
      begin(norm_backward, variant);
      read("dy", {b_, s_, h_});
      read("x", {b_, s_, h_}, forward.reads[0].values);
      read("w", {h_}, forward.reads[1].values);
      read("statistics", {b_, s_, statistics}, forward.writes[1].values);
      write("dx", {b_, s_, h_});
      write("dw", {h_});
      if (centred) write("dbias", {h_});
      end();
    }
    const Dim groups{n_, Axis::groups}, heads{2, Axis::group_heads}, dim{2 * n_, Axis::head_dim};
    begin(norm, "of heads").epsilon = 1e-5f;
    read("x", {b_, s_, groups, heads, dim});
    read("w", {dim});
    write("y", {b_, s_, groups, heads, dim});
    write("statistics", {b_, s_, groups, heads, {1}});
    end();
  }

  void elementwise() {
    for (const bool gated : {false, true}) {
      const ActivationFunction function = gated ? ActivationFunction::swiglu : ActivationFunction::gelu;
      begin(activation, gated ? "gated" : "bias").function = function;
      gated ? read("x", {b_, s_, {2}, f_}) : read("x", {b_, s_, f_});
      if (!gated) read("bias", {f_});
      write("y", {b_, s_, f_});
      end();
      begin(activation_backward, gated ? "gated" : "bias").function = function;
      read("dy", {b_, s_, f_});
      gated ? read("x", {b_, s_, {2}, f_}) : read("x", {b_, s_, f_});
      if (!gated) read("bias", {f_});
      gated ? write("dx", {b_, s_, {2}, f_}) : write("dx", {b_, s_, f_});
      end();
    }

    begin(dropout).probability = 0.3f;
    read("x", {b_, s_, h_});
    write("y", {b_, s_, h_});
    write("mask", {b_, s_, h_});
    end();
    const Values mask = last().writes[1].values;
    begin(dropout_backward).probability = 0.3f;
    read("dy", {b_, s_, h_});
    read("mask", {b_, s_, h_}, mask);
    write("dx", {b_, s_, h_});
    end();
    begin(dropout_add).probability = 0.3f;
    read("x", {b_, s_, h_});
    read("residual", {b_, s_, h_});
    read("bias", {h_});
    write("y", {b_, s_, h_});
    write("mask", {b_, s_, h_});
    end();

    begin(add);
    last().in_two_digits = true;
    read("a", {s_, h_});
    read("b", {s_, h_});
    write("y", {s_, h_});
    end();
    begin(add, "bias");
    read("a", {b_, s_, h_});
    skip();
    read("bias", {h_});
    write("y", {b_, s_, h_});
    end();
    begin(add, "positions");
    read("a", {b_, s_, h_});
    skip();
    read("table", {s_, h_});
    write("y", {b_, s_, h_});
    end();

    begin(multiply);
    read("a", {b_, s_, f_});
    read("b", {b_, s_, f_});
    write("y", {b_, s_, f_});
    end();

    begin(bias_gradient);
    last().in_two_digits = true;
    read("dy", {b_, s_, h_});
    write("dbias", {h_});
    end();
    begin(bias_gradient, "positions");
    read("dy", {b_, s_, h_});
    write("dtable", {s_, h_});
    end();

    begin(cast);
    read("x", {b_, s_, h_});
    write("y", {b_, s_, h_});
    end();

    begin(scale).scale = 0.5;
    read("x", {b_, s_, h_});
    write("y", {b_, s_, h_});
    end();
    begin(scale, "clip").clip_limit = 0.1f;
    read("x", {b_, h_});
    read("norm", {{1}}, Values{9});
    write("y", {b_, h_});
    end();
  }

  void second_moments() {
    const Dim one{1};
    constexpr double kPositive = 8;  // normal numbers around it
    begin(scale, "size");
    read("x", {b_, h_});
    skip();
    read("size", {{1}}, Values{9});
    write("y", {b_, h_});
    end();
    for (const char* of : {"rows", "columns", "all", "each"}) {
      begin(square_sums, of).transpose_a = of == std::string_view("columns");
      last().in_two_digits = true;
      read("x", {h_, f_});
      of[0] == 'r'   ? write("y", {h_})
      : of[0] == 'c' ? write("y", {f_})
      : of[0] == 'a' ? write("y", {one})
                     : write("y", {h_, f_});
      end();
    }
    begin(moving_mean);
    last().context.step = 2;  // the first step forgets the mean
    last().in_two_digits = true;
    read("mean", {h_, f_});
    read("x", {h_, f_});
    write("y", {h_, f_});
    end();

    begin(factored_update, "factors");
    last().in_two_digits = true;
    read("gradient", {h_, f_});
    read("rows", {h_}, kPositive);
    read("columns", {f_}, kPositive);
    read("sum", {one}, kPositive);
    write("y", {h_, f_});
    end();
    begin(factored_update, "squares");
    read("gradient", {h_, f_});
    read("squares", {h_, f_}, kPositive);
    write("y", {h_, f_});
    end();
  }

  void tokens() {
    begin(embedding);
    read_ids("ids", {b_, s_}, v_.size);
    read("table", {v_, h_});
    write("y", {b_, s_, h_});
    end();
    begin(embedding, "of segments");  // a table that nobody divides by its rows
    read_ids("ids", {b_, s_}, 3);
    read("table", {{3}, h_});
    write("y", {b_, s_, h_});
    end();
    begin(embedding_backward);
    last().in_two_digits = true;
    read_ids("ids", {b_, s_}, v_.size);
    read("dy", {b_, s_, h_});
    write("dtable", {v_, h_});
    end();

    begin(cross_entropy);
    read("logits", {b_, s_, v_});
    read_ids("targets", {b_, s_}, v_.size);
    write("statistics", {{3}, b_, s_});
    end();
    const Case forward = last();
    begin(cross_entropy_backward).scale = 0.25;
    read("logits", {b_, s_, v_}, forward.reads[0].values);
    read("targets", {b_, s_}, forward.reads[1].values);
    read("statistics", {{3}, b_, s_}, forward.writes[0].values);
    write("dlogits", {b_, s_, v_});
    end();

    for (const bool mean : {false, true}) {
      const char* variant = mean ? "mean" : "first";
      begin(pool, variant);
      last().context.pool_mean = mean;
      read("x", {b_, s_, h_});
      write("y", {b_, {1, Axis::sequence}, h_});
      end();
      begin(pool_backward, variant);
      last().context.pool_mean = mean;
      read("dy", {b_, {1, Axis::sequence}, h_});
      write("dx", {b_, s_, h_});
      end();
    }
    begin(pool, "class token");
    read("x", {b_, {2 * n_ - 1, Axis::sequence}, h_});
    read("token", {h_});
    write("y", {b_, s_, h_});
    end();
    begin(pool_backward, "class token");
    read("dy", {b_, s_, h_});
    write("dx", {b_, {2 * n_ - 1, Axis::sequence}, h_});
    write("dtoken", {h_});
    end();
  }

  // A rank's tokens go to each expert once, so that what lies in its slots lies side by side in one rank's. (The order
  // of slots means nothing: two digits may divide them otherwise than tokens.)
  void experts() {
    const Dim tokens{n_ * n_, Axis::batch}, experts{n_, Axis::experts}, slots{n_, Axis::slots}, one{1};
    Values to;
    for (std::int64_t token = 0; token < tokens.size; ++token)
      to.push_back(static_cast<float>((token + token / n_) % n_));

    for (const bool biased : {false, true}) {
      Op& op = begin(route, biased ? "bias" : "");
      op.router = {.score = biased ? RouterScore::sigmoid : RouterScore::softmax, .scale = 2};
      read("logits", {b_, s_, {4}});
      if (biased) read("bias", {{4}}, Values{0.1f, -0.05f, 0, 0.02f});
      write("weights", {b_, s_, {2}});
      write("choices", {b_, s_, {2}});
      end();
    }
    const Case routed = cases_.end()[-2];
    begin(route_backward).router = routed.op.router;
    read("dweights", {b_, s_, {2}});
    read("logits", {b_, s_, {4}}, routed.reads[0].values);
    read("choices", {b_, s_, {2}}, routed.writes[1].values);
    write("dlogits", {b_, s_, {4}});
    end();

    begin(hash_route).router.experts = 1 << 15;
    Values ids(static_cast<std::size_t>(b_.size * s_.size));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<float>((i * i * i + 11 * i) % 97);
    read("ids", {b_, s_, {1}}, ids);
    write("choices", {b_, s_, {1}});
    end();

    begin(add_noise);
    read("logits", {b_, s_, {4}});
    read("deviations", {b_, s_, {4}});
    write("noisy", {b_, s_, {4}});
    write("slopes", {b_, s_, {4}});
    end();

    begin(expert_counts);
    read("choices", {b_, s_, {2}}, routed.writes[1].values);
    write("counts", {b_, {4}});
    end();
    const Case counted = last();
    // Of loads of each sequence; those of a micro-batch are of a rank's own.
    for (const bool balance : {true, false}) {
      const Router router{
          .score = RouterScore::sigmoid, .balance = balance ? 0.5f : 0, .z = 0.25f, .by_sequence = true};
      for (const OpKind kind : {router_loss, router_loss_backward}) {
        Op& op = begin(kind, balance ? "of balance" : "");
        op.router = router;
        op.scale = 0.5;
        read("logits", {b_, s_, {4}}, routed.reads[0].values);
        if (balance) read("counts", {b_, {4}}, counted.writes[0].values);
        if (kind == router_loss)
          write("losses", {b_, s_, {2}});
        else
          write("dlogits", {b_, s_, {4}});
        end();
      }
    }

    begin(permute);
    read("x", {tokens, h_});
    read("choices", {tokens, one}, to);
    write("rows", {experts, slots, h_});
    end();
    for (const bool weighted : {false, true}) {
      begin(unpermute, weighted ? "weighted" : "");
      read("rows", {experts, slots, h_});
      read("choices", {tokens, one}, to);
      if (weighted) read("weights", {tokens, one});
      write("x", {tokens, h_});
      end();
    }
    begin(unpermute_backward);
    read("dx", {tokens, h_});
    read("rows", {experts, slots, h_});
    read("choices", {tokens, one}, to);
    read("weights", {tokens, one});
    write("drows", {experts, slots, h_});
    write("dweights", {tokens, one});
    end();

    begin(linear, "of experts").group_dims = 1;
    read("x", {experts, slots, h_});
    read("w", {experts, h_, f_});
    write("y", {experts, slots, f_});
    end();
    begin(linear_input_gradient, "of experts").group_dims = 1;
    read("dy", {experts, slots, f_});
    read("w", {experts, h_, f_});
    write("dx", {experts, slots, h_});
    end();
    begin(linear_weight_gradient, "of experts").group_dims = 1;
    read("x", {experts, slots, h_});
    read("dy", {experts, slots, f_});
    write("dw", {experts, h_, f_});
    end();
    begin(bias_gradient, "of experts").group_dims = 1;
    read("dy", {experts, slots, h_});
    write("dbias", {experts, h_});
    end();

    begin(multiply, "row");
    read("a", {b_, s_, f_});
    read("b", {b_, s_, one});
    write("y", {b_, s_, f_});
    end();
    begin(multiply, "sum");
    read("a", {b_, s_, f_});
    read("b", {b_, s_, f_});
    write("y", {b_, s_, one});
    end();

    begin(permute_weights);
    read("weights", {tokens, one});
    read("choices", {tokens, one}, to);
    write("rows", {experts, slots});
    end();
    begin(unpermute_weights);
    read("dweights", {experts, slots});
    read("choices", {tokens, one}, to);
    write("x", {tokens, one});
    end();

    // Masks of tokens that ranks divide have slots divided alike, on the diagonal: plans, not one digit in one
    // dimension.
    begin(slot_mask);
    read("choices", {tokens, one}, to);
    read("weights", {tokens, one});
    write("mask", {tokens, experts, slots});
    end();
    const Values mask = last().writes[0].values;
    begin(slot_mask_backward);
    read("dmask", {tokens, experts, slots});
    read("choices", {tokens, one}, to);
    write("dweights", {tokens, one});
    end();
    begin(mask_permute);
    read("x", {tokens, h_});
    read("mask", {tokens, experts, slots}, mask);
    write("rows", {experts, slots, h_});
    end();
    begin(mask_unpermute);
    read("rows", {experts, slots, h_});
    read("mask", {tokens, experts, slots}, mask);
    write("x", {tokens, h_});
    end();
    begin(mask_gradient);
    read("dx", {tokens, h_});
    read("rows", {experts, slots, h_});
    write("dmask", {tokens, experts, slots});
    end();

    begin(activation, "weighted").function = ActivationFunction::swiglu;
    read("x", {experts, slots, {2}, f_});
    skip();
    read("weights", {experts, slots});
    write("y", {experts, slots, f_});
    end();
    begin(activation_backward, "weighted").function = ActivationFunction::swiglu;
    read("dy", {experts, slots, f_});
    read("x", {experts, slots, {2}, f_});
    skip();
    read("weights", {experts, slots});
    write("dx", {experts, slots, {2}, f_});
    write("dweights", {experts, slots});
    end();
  }

  const std::int64_t n_;
  const Dim b_, s_, h_, f_, v_;
  std::uint32_t seed_ = 0;
  std::vector<Case> cases_;
};

Mesh mesh_of(std::initializer_list<std::int64_t> sizes) {
  Mesh mesh;
  constexpr std::array axes{MeshAxis::tp, MeshAxis::cp};
  std::size_t i = 0;
  for (const std::int64_t size : sizes) mesh.add(axes.at(i++), size);
  return mesh;
}

// Why check() refuses what would be right.
struct Missing {
  const char* what;     // case and rule
  std::size_t layouts;  // of all operands
  const char* why;
};
constexpr const char* kWeights = "a parameter never owes a sum: linear in it, or not, nobody asks";
constexpr const char* kSequence =
    "plans divide queries and keys alike; keys of one part wait for a ring, gradients of them for its way home";
constexpr const char* kRows = "tokens travel as they are: a sum is taken before they leave";
constexpr const char* kMasks = "right as products: but masks are of a rank's own tokens, and owe nothing";
constexpr Missing kMissing[]{
    {"linear, rule 3", 11, kWeights},
    {"linear transposed, rule 3", 11, kWeights},
    {"linear bias, rule 3", 3, "an owed bias beside an owed product; biases are parameters"},
    {"linear of heads, rule 3", 1, kWeights},
    {"linear_input_gradient, rule 3", 11, kWeights},
    {"linear_weight_gradient, rule 3", 2, "both operands owe a sum, over different ranks"},
    {"linear of experts, rule 3", 1, kWeights},
    {"linear_input_gradient of experts, rule 3", 1, kWeights},
    {"permute, rule 3", 1, kRows},
    {"unpermute weighted, rule 3", 1, "weights that owe a sum: a router makes them of whole logits"},
    {"unpermute_backward, rule 3", 3, "the same, and gradients of tokens that owe one, which is taken before"},
    {"permute_weights, rule 3", 1, kRows},
    {"slot_mask, rule 3", 1, "weights that owe a sum"},
    {"mask_permute, rule 3", 2, kRows},
    {"mask_permute, rule 23", 2, kMasks},
    {"mask_unpermute, rule 3", 1, kMasks},
    {"mask_unpermute, rule 23", 2, kMasks},
    {"mask_gradient, rule 3", 1, kRows},
    {"mask_gradient, rule 23", 2, kMasks},
    {"activation weighted, rule 3", 1, "what a router makes of whole logits owes nothing"},
    {"activation_backward weighted, rule 3", 1, "the same"},
    {"multiply sum, rule 2", 1, "the same of a gate"},
    {"norm layernorm, rule 3", 1, kWeights},
    {"norm rmsnorm, rule 3", 1, kWeights},
    {"norm of heads, rule 3", 1, kWeights},
    {"norm_backward layernorm, rule 3", 1, kWeights},
    {"norm_backward rmsnorm, rule 3", 1, kWeights},
    {"embedding, rule 3", 1, kWeights},
    {"embedding of segments, rule 3", 1, kWeights},
    {"dropout_add, rule 3", 1, "what, residual and bias would all have to owe the same; sums are taken before dropout"},
    {"merge_attention, rule 2", 1, "statistics of divided heads would be whole; attention refuses such heads"},
    {"merge_attention, rule 3", 1, "contexts owe nothing: attention is not linear in scores"},
    {"attention, rule 1", 4, kSequence},
    {"attention causal, rule 1", 4, kSequence},
    {"attention small, rule 1", 4, kSequence},
    {"attention_backward causal, rule 1", 8, kSequence},
};

void expect_known(const Tally& tally, std::span<const Missing> missing) {
  constexpr std::size_t kShown = 3000;  // characters
  std::string text;
  for (const std::string& w : tally.wrong) text += "\n  " + w;
  EXPECT_TRUE(tally.wrong.empty()) << tally.wrong.size() << " of " << tally.asked
                                   << " are wrong:" << text.substr(0, kShown);
  std::set<std::string> known;
  for (const Missing& m : missing) {
    known.insert(m.what);
    const auto found = tally.missing.find(m.what);
    EXPECT_EQ(found == tally.missing.end() ? 0 : found->second.size(), m.layouts) << m.what << ": " << m.why;
  }
  for (const auto& [what, layouts] : tally.missing) {
    if (known.contains(what)) continue;
    std::string all;
    for (const std::string& l : layouts) all += "\n  " + l;
    ADD_FAILURE() << what << " refuses " << layouts.size() << " layouts that are right:" << all.substr(0, kShown);
  }
}

TEST(OpRules, NoneIsWrongAndTheMissingOnesAreKnown) {
  Tally tally;
  std::set<OpKind> met;
  for (const std::int64_t ranks : {2, 3, 4})
    for (const Case& c : Builder(ranks).build()) {
      met.insert(c.op.kind);
      ask(c, mesh_of({ranks}), tally);
    }
  for (const Case& c : Builder(4).build())
    if (c.in_two_digits) ask(c, mesh_of({2, 2}), tally);
  EXPECT_GT(tally.right, 1000);
  expect_known(tally, kMissing);

  // The update's kinds work on flat buffers alone: they are asked below.
  for (const OpTraits& t : op_traits::kTable) {
    if (!is_computation(t.kind) || t.of_update) continue;
    // These sum what a collective before them has brought: Check.CodesAreExchangedAndSummedOnce and
    // Check.SparseNumbersOfWorkersGiveTheirMean.
    if (is_quantiser(t.kind) || t.kind == sparsify || t.kind == densify) continue;
    EXPECT_TRUE(met.contains(t.kind)) << t.name;
  }
}

// ---- the update --------------------------------------------------------------------------------------------------

// How a rank has the gradients that the update works on.
enum class Gradients {
  whole,
  owed,         // a sum that the ranks owe each other
  scattered,    // the part that a reduce-scatter of it leaves
  cut,          // a part of the whole
  cut_of_owed,  // a part of what is owed
};
constexpr std::array kGradients{Gradients::whole, Gradients::owed, Gradients::scattered, Gradients::cut,
                                Gradients::cut_of_owed};
constexpr std::array<const char*, 5> kGradientWords{"whole", "owed", "scattered", "cut", "cut of what is owed"};
bool is_part(Gradients g) { return g != Gradients::whole && g != Gradients::owed; }
bool comes_owed(Gradients g) { return g != Gradients::whole && g != Gradients::cut; }

// What it clips by, or, of a norm alone, leaves: nothing, what it knows of the norm itself, or the sum over ranks.
enum class Norm { none, own, summed };
constexpr std::array kNorms{Norm::none, Norm::own, Norm::summed};
constexpr std::array<const char*, 3> kNormWords{"", ", by its own norm", ", by the sum of norms"};

struct Update {
  std::string name;
  OpKind kind = adam;
  std::vector<std::string> states;  // beside the gradients: the parameters, which an optimizer reads unless of 16 bits
  bool master = false;              // the parameters are written alone, from the second state
};

// Flat buffers of `whole` elements on one digit, in parts of `part`; the last one reaches beyond the end.
class UpdateRule {
 public:
  UpdateRule(const Update& update, std::int64_t ranks)
      : update_(update), mesh_(mesh_of({ranks})), part_(3), whole_(3 * ranks - 1) {
    for (std::size_t s = 0; s <= update.states.size(); ++s) {
      std::mt19937 generator(static_cast<std::uint32_t>(s + 1));
      std::normal_distribution<double> normal(0, 1);
      Values& v = values_.emplace_back(static_cast<std::size_t>(whole_));
      for (float& x : v) x = static_cast<float>(normal(generator));
      if (s == update.states.size() && update.kind == adam)  // squares
        for (float& x : v) x = std::abs(x);
    }
    for (const float g : values_[0]) square_ += static_cast<double>(g) * static_cast<double>(g);
  }

  void ask(Tally& tally) {
    for (const Gradients gradients : kGradients)
      for (const Norm norm : kNorms) {
        if (update_.kind == gradient_norm && norm == Norm::none) continue;
        if (update_.kind == scale && norm == Norm::none && comes_owed(gradients) && gradients != Gradients::scattered)
          continue;  // linear: what is owed stays owed
        for (unsigned parts = 0; parts < 1u << update_.states.size(); ++parts) ask(gradients, norm, parts, tally);
      }
  }

 private:
  static bool in_part(unsigned parts, std::size_t state) { return (parts >> state & 1u) != 0; }
  MeshGroup all() const { return MeshGroup::of_digit(0); }
  std::int64_t held(bool part) const { return part ? part_ : whole_; }

  void ask(Gradients gradients, Norm norm, unsigned parts, Tally& tally) {
    ++tally.asked;
    std::string text = std::string("gradients ") + kGradientWords[static_cast<std::size_t>(gradients)];
    for (std::size_t s = 0; s < update_.states.size(); ++s)
      text += ", " + update_.states[s] + (in_part(parts, s) ? " in part" : " whole");
    text += kNormWords[static_cast<std::size_t>(norm)];
    const std::vector<Violation> violations = check(program(gradients, norm, parts));
    const bool right = is_right(gradients, norm, parts);
    if (violations.empty()) {
      tally.right += right;
      if (!right) tally.wrong.push_back(update_.name + ": " + text);
    } else if (right) {
      tally.missing[update_.name + ", rule " + std::to_string(static_cast<int>(violations.front().rule))].insert(text);
    }
  }

  // The gradients of one parameter come from a batch that the ranks divide, or that each has whole.
  Program program(Gradients gradients, Norm norm, unsigned parts) const {
    Program program;
    program.mesh = mesh_;
    program.pieces.resize(1);
    Piece& piece = program.pieces[0];
    piece.name = "piece";
    const auto buffer = [&](const char* name, Category category, bool part, TensorId of = kNoTensor) {
      Tensor t;
      t.name = name;
      t.category = category;
      t.dtype = Dtype::fp32;
      t.append({held(part), Axis::none});
      if (part) t.over[0].append(all());
      t.alias_of = of;
      t.resident = of == kNoTensor;
      return piece.add(t);
    };
    const auto run = [&](Block& block, Op op, std::initializer_list<TensorId> reads,
                         std::initializer_list<TensorId> writes) {
      op.name = "op";
      std::copy(reads.begin(), reads.end(), op.reads.begin());
      std::copy(writes.begin(), writes.end(), op.writes.begin());
      block.ops.push_back(op);
    };
    const auto of_kind = [](OpKind kind) {
      Op op;
      op.kind = kind;
      op.phase = Phase::update;
      return op;
    };
    const TensorId parameters = buffer("parameters", Category::parameter, false),
                   flat = buffer("gradients", Category::gradient, false),
                   w = buffer("w", Category::parameter, false, parameters),
                   dw = buffer("w", Category::gradient, false, flat);
    Tensor dy = shaped({{2, Axis::batch}, {whole_, Axis::none}});
    dy.name = "dy";
    dy.input = Input::patches;
    if (comes_owed(gradients)) dy.over[0].append(all());
    piece.parameters.push_back({w, dw});
    Op contribute = of_kind(bias_gradient);
    contribute.phase = Phase::weight_gradient;
    contribute.accumulate = true;
    run(piece.backward, contribute, {piece.add(dy)}, {dw});

    std::vector<Op>& update = piece.update.ops;
    TensorId g = flat;
    if (is_part(gradients)) g = buffer("gradient_shard", Category::gradient, true, flat);
    if (gradients == Gradients::scattered) {
      run(piece.update, of_kind(reduce_scatter), {flat}, {g});
      update.back().group = all();
    }
    TensorId square = kNoTensor;
    if (norm != Norm::none) {
      Tensor scalar = shaped({{1}});
      scalar.name = "norm";
      scalar.category = Category::workspace;
      square = piece.add(scalar);
      run(piece.update, of_kind(gradient_norm), {g}, {square});
      if (norm == Norm::summed) {
        const TensorId own = square;
        square = piece.add(scalar);
        run(piece.update, of_kind(all_reduce), {own}, {square});
        update.back().group = all();
      }
    }
    ParameterSet& set = piece.sets.emplace_back();
    set.parameters = set.own_parameters = parameters;
    set.gradients = flat;
    set.own_gradients = g;
    set.over.states = piece.tensors[g].divided_over();
    std::vector<TensorId> states;
    if (update_.states.empty() && is_part(gradients))  // as what would update the parameters has them
      set.own_parameters = buffer("parameter_shard", Category::parameter, true, parameters);
    if (update_.kind == gradient_norm) return program;
    for (std::size_t s = 0; s < update_.states.size(); ++s) {
      const bool part = in_part(parts, s);
      states.push_back(s > 0  ? buffer("state", Category::optimizer_state, part)
                       : part ? buffer("parameter_shard", Category::parameter, true, parameters)
                              : parameters);
    }
    if (!states.empty()) set.own_parameters = states[0];
    Op op = of_kind(update_.kind);
    std::size_t r = 0, written = 0;
    op.reads[r++] = g;
    for (std::size_t s = update_.master ? 1 : 0; s < states.size(); ++s) op.reads[r++] = states[s];
    if (update_.kind == scale) op.writes[written++] = g;
    for (const TensorId state : states) op.writes[written++] = state;
    if (square != kNoTensor) op.reads[static_cast<std::size_t>(norm_operand(op.kind))] = square;
    op.name = "op";
    update.push_back(op);
    return program;
  }

  // Of a buffer, gradients first; what reaches beyond its end is nothing.
  Values held(std::size_t buffer, bool part, bool owed, std::int64_t rank) const {
    Values local;
    for (std::int64_t i = 0, first = part ? rank * part_ : 0; i < held(part); ++i) {
      const std::int64_t e = first + i;
      if (e >= whole_) {
        local.push_back(0);
        continue;
      }
      const auto value = static_cast<double>(values_[buffer][static_cast<std::size_t>(e)]);
      local.push_back(static_cast<float>(owed ? share(value, e, rank, mesh_.ranks()) : value));
    }
    return local;
  }

  // The gradients and states that the op leaves, from those at hand; nothing where they do not fit.
  bool run(std::vector<Values>& buffers, const std::vector<Tensor>& tensors, const double* square) const {
    Op op;
    op.kind = update_.kind;
    op.name = "update";
    op.scale = 0.5;
    Tensor one = shaped({{1}});
    Values norm{square != nullptr ? static_cast<float>(*square) : 0.0f};
    std::vector<orrery::Operand> reads, writes;
    const auto of = [&](std::size_t b) { return orrery::Operand{buffers[b].data(), &tensors[b]}; };
    reads.push_back(of(0));
    for (std::size_t b = update_.master ? 2 : 1; b < buffers.size(); ++b) reads.push_back(of(b));
    if (update_.kind == scale) writes.push_back(of(0));
    for (std::size_t b = 1; b < buffers.size(); ++b) writes.push_back(of(b));
    if (square != nullptr) {
      op.clip_limit = 0.1f;
      reads.resize(static_cast<std::size_t>(norm_operand(op.kind)));
      reads.push_back({norm.data(), &one});
    }
    KernelContext context;
    context.learning_rate = 0.5;  // a wrong step is no rounding
    context.weight_decay = 0.1;
    context.step = 2;
    try {
      cpu::run_kernel(op, reads, writes, context);
    } catch (const std::logic_error&) {
      return false;
    }
    return true;
  }

  bool is_right(Gradients gradients, Norm norm, unsigned parts) const {
    std::vector<bool> part{is_part(gradients)};
    for (std::size_t s = 0; s < update_.states.size(); ++s) part.push_back(in_part(parts, s));
    const bool owed = gradients == Gradients::owed || gradients == Gradients::cut_of_owed;
    std::vector<double> squares;
    for (std::int64_t rank = 0; rank < mesh_.ranks(); ++rank) {
      double& square = squares.emplace_back(0);
      for (const float g : held(0, part[0], owed, rank)) square += static_cast<double>(g) * static_cast<double>(g);
    }
    if (norm == Norm::summed) squares.assign(squares.size(), std::accumulate(squares.begin(), squares.end(), 0.0));
    if (update_.kind == gradient_norm) {
      return std::all_of(squares.begin(), squares.end(),
                         [&](double square) { return std::abs(square - square_) <= 1e-4 * square_; });
    }
    std::vector<Values> expected = values_;
    const Tensor flat = shaped({{whole_}});
    EXPECT_TRUE(run(expected, std::vector<Tensor>(expected.size(), flat), norm == Norm::none ? nullptr : &square_));
    for (std::int64_t rank = 0; rank < mesh_.ranks(); ++rank) {
      std::vector<Values> local;
      std::vector<Tensor> tensors;
      for (std::size_t b = 0; b < values_.size(); ++b) {
        local.push_back(held(b, part[b], b == 0 && owed, rank));
        tensors.push_back(shaped({{held(part[b])}}));
      }
      if (!run(local, tensors, norm == Norm::none ? nullptr : &squares[static_cast<std::size_t>(rank)])) return false;
      for (std::size_t b = update_.kind == scale ? 0 : 1; b < local.size(); ++b) {
        const std::int64_t first = part[b] ? rank * part_ : 0, n = std::min(held(part[b]), whole_ - first);
        local[b].resize(static_cast<std::size_t>(n));
        if (!close(local[b], {expected[b].begin() + first, expected[b].begin() + first + n})) return false;
      }
    }
    return true;
  }

  const Update& update_;
  const Mesh mesh_;
  const std::int64_t part_, whole_;
  std::vector<Values> values_;  // gradients, then states
  double square_ = 0;
};

// On buffers that the ranks do not divide evenly.
TEST(UpdateRules, NoneIsWrongAndNoneIsMissing) {
  const std::vector<Update> updates{
      {"gradient_norm", gradient_norm, {}, false},
      {"scale", scale, {}, false},
      {"adam", adam, {"parameters", "first moment", "second moment"}, false},
      {"adam with a master copy", adam, {"parameters", "master copy", "first moment", "second moment"}, true},
      {"sgd", sgd, {"parameters"}, false},
      {"sgd with momentum", sgd, {"parameters", "momentum"}, false},
      {"sgd with a master copy", sgd, {"parameters", "master copy"}, true},
  };
  Tally tally;
  std::set<OpKind> met{zero_fill};  // reads nothing
  for (const Update& update : updates) {
    met.insert(update.kind);
    for (const std::int64_t ranks : {2, 3, 4}) UpdateRule(update, ranks).ask(tally);
  }
  EXPECT_GT(tally.right, 40);
  expect_known(tally, {});
  for (const OpTraits& t : op_traits::kTable) EXPECT_TRUE(!t.of_update || met.contains(t.kind)) << t.name;
}

// ---- collectives ------------------------------------------------------------------------------------------------

// Ranks of the group that `rank` is in, in the order of their parts.
std::vector<std::int64_t> members(MeshGroup group, const Mesh& mesh, std::int64_t rank) {
  MeshGroup all;
  for (std::size_t d = 0; d < mesh.digits().size(); ++d) all = all | MeshGroup::of_digit(static_cast<int>(d));
  std::vector<std::int64_t> found(static_cast<std::size_t>(mesh.size(group)));
  for (std::int64_t other = 0; other < mesh.ranks(); ++other)
    if (part_in(all.without(group), mesh, other) == part_in(all.without(group), mesh, rank))
      found[static_cast<std::size_t>(part_in(group, mesh, other))] = other;
  return found;
}

// Part `part` of `parts` of a tensor along a dimension, or that put there.
void move_part(Values& whole, const Tensor& sizes, int dim, std::int64_t part, std::int64_t parts, Values& values,
               bool in) {
  std::int64_t inner = 1, outer = 1;
  for (int d = 0; d < sizes.rank; ++d) (d < dim ? outer : inner) *= sizes.sizes[d];
  const std::int64_t run = inner / parts;
  if (!in) values.resize(static_cast<std::size_t>(outer * run));
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t i = 0; i < run; ++i) {
      float &a = whole[static_cast<std::size_t>(o * inner + part * run + i)],
            &b = values[static_cast<std::size_t>(o * run + i)];
      (in ? a : b) = in ? b : a;
    }
}

// What every rank has when each of a group has given the others the elements that these need; false where the group
// lacks some.
bool exchange(MeshGroup group, const Layout& from, const Layout& to, const Tensor& whole, const Mesh& mesh,
              const std::vector<Values>& given, std::vector<Values>& results) {
  results.assign(given.size(), {});
  for (std::size_t rank = 0; rank < given.size(); ++rank) {
    std::map<std::int64_t, float> there;
    for (const std::int64_t m : members(group, mesh, static_cast<std::int64_t>(rank))) {
      const Index at = elements(from.tensor, whole, mesh, m);
      for (std::size_t i = 0; i < at.size(); ++i) there.emplace(at[i], given[static_cast<std::size_t>(m)][i]);
    }
    for (const std::int64_t i : elements(to.tensor, whole, mesh, static_cast<std::int64_t>(rank))) {
      const auto found = there.find(i);
      if (found == there.end()) return false;
      results[rank].push_back(found->second);
    }
  }
  return true;
}

// Of the elements of one layout, those that leave the rank which sends the most.
std::int64_t most_sent(const Layout& from, const Layout& to, const Tensor& whole, const Mesh& mesh) {
  std::int64_t most = 0;
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    const Index before = elements(from.tensor, whole, mesh, rank), after = elements(to.tensor, whole, mesh, rank);
    std::int64_t sent = 0;
    for (const std::int64_t i : before) sent += std::find(after.begin(), after.end(), i) == after.end();
    most = std::max(most, sent);
  }
  return most;
}

// What the collective leaves on every rank; false where sizes do not fit it.
bool communicate(OpKind kind, MeshGroup group, const Tensor& from, const Tensor& to, const Mesh& mesh,
                 const std::vector<Values>& given, std::vector<Values>& results) {
  const std::int64_t ranks = mesh.size(group);
  int larger = -1, smaller = -1;  // dimension of the result
  for (int d = 0; d < from.rank; ++d) {
    if (to.sizes[d] == from.sizes[d]) continue;
    int& dim = to.sizes[d] > from.sizes[d] ? larger : smaller;
    if (dim >= 0) return false;
    dim = d;
  }
  const bool grows = kind == all_gather, shrinks = kind == reduce_scatter;
  if ((larger >= 0) != grows || (smaller >= 0) != shrinks) return false;
  // Of flat buffers the last part may reach beyond the end.
  const auto fits = [&](const Tensor& part, const Tensor& whole, int dim) {
    const std::int64_t parts = part.sizes[dim] * ranks;
    return parts == whole.sizes[dim] || (whole.rank == 1 && parts > whole.sizes[dim]);
  };
  if ((grows && !fits(from, to, larger)) || (shrinks && !fits(to, from, smaller))) return false;
  results.assign(given.size(), {});
  for (std::size_t rank = 0; rank < given.size(); ++rank) {
    const std::vector<std::int64_t> all = members(group, mesh, static_cast<std::int64_t>(rank));
    const auto own = static_cast<std::int64_t>(std::find(all.begin(), all.end(), rank) - all.begin());
    Values& result = results[rank];
    Tensor padded = kind == reduce_scatter ? from : to;
    if (kind == all_gather) padded.sizes[larger] = from.sizes[larger] * ranks;
    if (kind == reduce_scatter) padded.sizes[smaller] = to.sizes[smaller] * ranks;
    Values whole(static_cast<std::size_t>(padded.elements()));
    if (kind == all_gather) {
      for (std::int64_t m = 0; m < ranks; ++m) {
        Values part = given[static_cast<std::size_t>(all[static_cast<std::size_t>(m)])];
        move_part(whole, padded, larger, m, ranks, part, true);
      }
      whole.resize(static_cast<std::size_t>(to.elements()));
      result = whole;
      continue;
    }
    for (const std::int64_t m : all)
      for (std::size_t i = 0; i < given[static_cast<std::size_t>(m)].size(); ++i)
        whole[i] += given[static_cast<std::size_t>(m)][i];
    if (kind == reduce_scatter) {
      move_part(whole, padded, smaller, own, ranks, result, false);
    } else {
      result = whole;
    }
  }
  return true;
}

constexpr Missing kMissingCollectives[]{
    {"redistribute of sequences, rule 10", 36,
     "digits behind one that changes cut what it leaves: they count as moved, even where they cut the same"},
    {"all_gather of sequences, rule 7", 19, "digits of two dimensions at once, the major of two, or of another order"},
    {"all_gather of a flat buffer, rule 12", 3, "a last part with nothing in it"},
    {"reduce_scatter of a flat buffer, rule 12", 3, "a last part with nothing in it"},
};

// On matrices that divide, and on flat buffers and matrices that do not: parts of too few, enough and too many rows.
TEST(CollectiveRules, NoneIsWrongAndTheMissingOnesAreKnown) {
  Tally tally;
  for (const Mesh& mesh : {mesh_of({2}), mesh_of({3}), mesh_of({4}), mesh_of({2, 2})}) {
    std::vector<MeshGroup> groups{{}};
    for (std::size_t d = 0; d < mesh.digits().size(); ++d)
      for (std::size_t i = 0, n = groups.size(); i < n; ++i)
        groups.push_back(groups[i] | MeshGroup::of_digit(static_cast<int>(d)));
    Checker checker(mesh);
    bool by_element = false;  // how what a collective leaves is found
    const auto one = [&](OpKind kind, MeshGroup group, const char* what, const Tensor& whole, const Values& values,
                         const Layout& from, const Layout& to) {
      ++tally.asked;
      Op op;
      op.kind = kind;
      op.group = group;
      const auto needed = redistribution(mesh, from.tensor, to.tensor);
      if (kind == redistribute && needed) op.share = needed->share;
      const Layout* const reads[]{&from};
      const Layout* const writes[]{&to};
      const Verdict verdict = checker.check(op, reads, writes);
      std::vector<Values> given, expected, results;
      for (std::int64_t r = 0; r < mesh.ranks(); ++r) {
        // What reaches beyond the end of a buffer is nothing.
        Tensor room = whole;
        Values padded = values;
        if (whole.rank == 1) {
          room.sizes[0] = whole.sizes[0] * 4;
          padded.resize(static_cast<std::size_t>(room.sizes[0]));
        }
        const auto fits = [&](const Layout& l) {
          for (int d = 0; d < whole.rank; ++d)
            if (l.tensor.sizes[d] * mesh.size(l.tensor.over[d].group()) > room.sizes[d]) return false;
          return true;
        };
        if (!fits(from) || !fits(to)) break;
        given.push_back(held(from, room, padded, mesh, r));
        expected.push_back(held({to.tensor, {}, ""}, room, padded, mesh, r));
      }
      const bool fits =
          static_cast<std::int64_t>(given.size()) == mesh.ranks() &&
          (kind == redistribute || by_element ? exchange(group, from, to, whole, mesh, given, results)
                                              : communicate(kind, group, from.tensor, to.tensor, mesh, given, results));
      const auto right = [&](MeshGroup owed) { return fits && holds(add, to, owed, results, expected, mesh); };
      const std::string text = from.name + " -> " + to.name + " over " + words(mesh, group);
      // A redistribution changes what divides a tensor, over the least group: other digits are gathered, or cut.
      const auto is_another_op = [&] {
        if (from.tensor.divided_over() != to.tensor.divided_over()) return true;
        return std::any_of(groups.begin(), groups.end(), [&](MeshGroup less) {
          return less != group && group.contains(less) && exchange(less, from, to, whole, mesh, given, results) &&
                 right(from.owed);
        });
      };
      if (verdict.broken.empty()) {
        if (kind == redistribute) {
          const double ranks = static_cast<double>(mesh.size(group)), all = static_cast<double>(from.tensor.elements());
          EXPECT_DOUBLE_EQ(op.share * all * (ranks - 1) / ranks, static_cast<double>(most_sent(from, to, whole, mesh)))
              << text;
        }
        if (right(verdict.owed[0])) {
          ++tally.right;
        } else {
          tally.wrong.push_back(std::string(name_of(kind)) + " " + what + ": " + text +
                                (verdict.owed[0].empty() ? "" : " owed over " + words(mesh, verdict.owed[0])));
        }
      } else if (std::any_of(groups.begin(), groups.end(), right) && !(kind == redistribute && is_another_op())) {
        tally
            .missing[std::string(name_of(kind)) + " " + what + ", rule " +
                     std::to_string(static_cast<int>(verdict.broken.front()))]
            .insert(text);
      }
    };
    const auto each = [&](auto visit) {
      for (const OpKind kind : {all_reduce, all_gather, reduce_scatter, redistribute})
        for (std::size_t g = 1; g < groups.size(); ++g) visit(kind, groups[g]);
    };
    const auto numbers = [](const Tensor& t) {
      Values values;
      for (std::int64_t i = 0; i < t.elements(); ++i) values.push_back(static_cast<float>(i % 17) + 0.5f);
      return values;
    };

    const std::int64_t n = mesh.ranks();
    const Tensor matrix = shaped({{2 * n, Axis::batch}, {n, Axis::hidden}});
    const Values values = numbers(matrix);
    each([&](OpKind kind, MeshGroup group) {
      for (const Layout& from : layouts_of(matrix, mesh, true))
        for (const Layout& to : layouts_of(matrix, mesh, false))
          one(kind, group, "of a matrix", matrix, values, from, to);
    });

    // Sequences that are dealt in other ways than contiguously: what comes together, and what changes its deal.
    const Tensor sequences = shaped({{4 * n, Axis::sequence}, {n, Axis::hidden}});
    const Values positions = numbers(sequences);
    by_element = true;
    for (std::size_t g = 1; g < groups.size(); ++g)
      for (const Layout& from : layouts_of(sequences, mesh, false, true))
        for (const Layout& to : layouts_of(sequences, mesh, false, true)) {
          one(redistribute, groups[g], "of sequences", sequences, positions, from, to);
          if (to.tensor.elements() == from.tensor.elements() * mesh.size(groups[g]))
            one(all_gather, groups[g], "of sequences", sequences, positions, from, to);
        }
    by_element = false;

    if (mesh.digits().size() > 1) continue;
    for (const bool flat : {true, false}) {
      Tensor whole = flat ? shaped({{2 * n + 1}}) : shaped({{2 * n + 1, Axis::batch}, {3, Axis::hidden}});
      const Values odd = numbers(whole);
      Layout all{whole, {}, "whole"}, owed{whole, groups[1], "owed"};
      for (const std::int64_t rows : {2, 3, 4}) {
        Layout part = all;
        part.tensor.sizes[0] = rows;
        part.tensor.over[0].append(groups[1]);
        part.name = std::to_string(rows) + " of " + std::to_string(2 * n + 1);
        each([&](OpKind kind, MeshGroup group) {
          for (const Layout* from : {&all, &owed, &part})
            for (const Layout* to : {&all, &part})
              one(kind, group, flat ? "of a flat buffer" : "of odd rows", whole, odd, *from, *to);
        });
      }
    }
  }
  EXPECT_GT(tally.right, 50);
  expect_known(tally, kMissingCollectives);
}

}  // namespace
}  // namespace orrery::op_rules
