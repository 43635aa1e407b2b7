#include "realrun/layout.h"

#include <cmath>
#include <stdexcept>

#include "sim/base/digest.h"
#include "sim/base/error.h"
#include "sim/program/rewrite.h"

namespace orrery::realrun {
namespace {

bool same_axis(Axis a, Axis b) {
  const auto plain = [](Axis x) { return x == Axis::key_sequence ? Axis::sequence : x; };
  return plain(a) == plain(b);
}

// Maps each dimension of a view to the base's, and names the base's dimension that is cut or dropped.
struct Match {
  std::array<int, Tensor::kMaxRank> base{};
  int cut = -1;
};

Match match(const Tensor& view, const Tensor& base) {
  Match m;
  m.base.fill(-1);
  std::array<bool, Tensor::kMaxRank> taken{};
  const auto take = [&](int v, int b) {
    m.base[static_cast<std::size_t>(v)] = b;
    taken[static_cast<std::size_t>(b)] = true;
  };
  const auto pass = [&](auto fits) {
    for (int v = 0; v < view.rank; ++v)
      for (int b = 0; b < base.rank && m.base[static_cast<std::size_t>(v)] < 0; ++b)
        if (!taken[static_cast<std::size_t>(b)] && fits(v, b)) take(v, b);
  };
  pass([&](int v, int b) { return view.axes[v] != Axis::none && same_axis(view.axes[v], base.axes[b]); });
  pass([&](int v, int b) { return view.axes[v] == base.axes[b] && view.sizes[v] == base.sizes[b]; });
  pass([&](int v, int b) { return view.axes[v] == base.axes[b]; });
  pass([](int, int) { return true; });
  for (int v = 0; v < view.rank; ++v) {
    const int b = m.base[static_cast<std::size_t>(v)];
    if (b < 0) throw std::logic_error(std::string("view \"") + view.name + "\" has a dimension that its base lacks");
    if (view.sizes[v] == base.sizes[b]) continue;
    if (m.cut >= 0 || view.sizes[v] > base.sizes[b])
      throw std::logic_error(std::string("view \"") + view.name + "\" does not fit its base \"" + base.name + "\"");
    m.cut = b;
  }
  for (int b = 0; b < base.rank; ++b)
    if (!taken[static_cast<std::size_t>(b)] && base.sizes[b] > 1) {
      if (m.cut >= 0) throw std::logic_error(std::string("view \"") + view.name + "\" cuts two dimensions of its base");
      m.cut = b;
    }
  return m;
}

// Whether the view is a reshape: nothing is cut, and no dimensions change places.
bool keeps_order(const Match& m, const Tensor& view) {
  if (m.cut >= 0) return false;
  return std::is_sorted(m.base.begin(), m.base.begin() + view.rank);
}

// Returns the base's index for index i of a view along a dimension that is cut.
std::int64_t index_in_base(std::int64_t i, const Tensor& view, int v, const Tensor& base, int b,
                           const Position& position) {
  const std::int64_t begin = view.alias_begin;
  // This rank's part of what the base has for all ranks.
  if (const Division whole = base.over[b]; view.over[v] != whole && view.over[v].begins_with(whole))
    return position.part(view.over[v].behind(whole)) * view.sizes[v] + i;
  if (base.axes[b] != Axis::sequence) return begin + i;
  // A chunk of the whole is the same chunk of each shard. (With another deal it is a chunk of the sequence.)
  const std::int64_t local = position.sequence / position.cp_degree, t = position.tp_degree;
  if (t > 1 && base.sizes[b] == local && local % t == 0 && view.sizes[v] % t == 0 && view.deal(v) == base.deal(b)) {
    const std::int64_t part = view.sizes[v] / t;
    return i / part * (local / t) + begin / t + i % part;
  }
  return begin + i;
}

class Viewer {
 public:
  Viewer(const Piece& piece, const Position& position) : piece_(piece), position_(position) {}

  std::vector<ElementMap> run() {
    views_.resize(piece_.tensors.size());
    for (std::size_t id = 0; id < views_.size(); ++id) find(static_cast<TensorId>(id));
    return std::move(views_);
  }

 private:
  const ElementMap& find(TensorId id) {
    ElementMap& view = views_[id];
    if (view.root != kNoTensor) return view;
    const Tensor& t = piece_.tensors[id];
    if (t.alias_of == kNoTensor) {
      view.root = id;
      return view;
    }
    const ElementMap& base = find(t.alias_of);
    const Tensor& of = piece_.tensors[t.alias_of];
    view.root = base.root;
    const bool flat = of.rank == 1 && (of.category == Category::parameter || of.category == Category::gradient ||
                                       of.category == Category::optimizer_state || of.axes[0] == Axis::none);
    if (flat) {  // slices of a flat buffer; a part of a division of the base begins where the rank's part does
      view.offset = base.offset + t.alias_begin;
      if (t.rank == 1 && t.axes[0] == Axis::none)
        view.offset += position_.part(t.over[0].behind(of.over[0])) * t.sizes[0];
      return view;
    }
    const std::int64_t n = t.elements();
    const bool slots_in_chunks = t.find(Axis::chunks) >= 0 && of.find(Axis::chunks) < 0;  // a reshape
    if (base.dense() && slots_in_chunks && n == of.elements()) {
      view.offset = base.offset;
      return view;
    }
    const Match m = match(t, of);
    if (base.dense() && keeps_order(m, t)) {
      view.offset = base.offset;
      return view;
    }
    positions_.clear();
    if (const int d = t.find(Axis::sequence); d >= 0)
      positions_ = position_.dealt(t, d, t.sizes[d] * position_.mesh->size(t.over[d].group()));
    std::vector<std::int64_t> index(static_cast<std::size_t>(n));
    for (std::int64_t e = 0; e < n; ++e) index[static_cast<std::size_t>(e)] = base.at(element(e, t, of, m));
    bool dense = true;
    for (std::int64_t e = 0; e < n; ++e) dense = dense && index[static_cast<std::size_t>(e)] == index[0] + e;
    if (dense) {
      view.offset = index[0];
    } else {
      view.index = std::move(index);
    }
    return view;
  }

  // Returns the base's element for the view's element e.
  std::int64_t element(std::int64_t e, const Tensor& view, const Tensor& base, const Match& m) const {
    std::array<std::int64_t, Tensor::kMaxRank> at{};
    for (int v = view.rank; v-- > 0;) {
      const int b = m.base[static_cast<std::size_t>(v)];
      std::int64_t i = e % view.sizes[v];
      e /= view.sizes[v];
      const bool rows_of_positions = view.axes[v] == Axis::sequence && base.axes[b] == Axis::none;
      if (rows_of_positions) {
        i = positions_.at(static_cast<std::size_t>(i));
      } else if (b == m.cut) {
        i = index_in_base(i, view, v, base, b, position_);
      }
      at[static_cast<std::size_t>(b)] = i;
    }
    if (m.cut >= 0 && std::find(m.base.begin(), m.base.begin() + view.rank, m.cut) == m.base.begin() + view.rank)
      at[static_cast<std::size_t>(m.cut)] = view.alias_begin;
    std::int64_t linear = 0;
    for (int b = 0; b < base.rank; ++b) {
      if (at[static_cast<std::size_t>(b)] >= base.sizes[b])
        throw std::logic_error(std::string("view \"") + view.name + "\" reaches beyond its base \"" + base.name + "\"");
      linear = linear * base.sizes[b] + at[static_cast<std::size_t>(b)];
    }
    return linear;
  }

  const Piece& piece_;
  const Position& position_;
  std::vector<std::int64_t> positions_;  // of the view under consideration
  std::vector<ElementMap> views_;
};

std::uint64_t mix(std::uint64_t z) { return mixed(z + kSplitMixStep); }

}  // namespace

double counter_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const std::uint64_t bits = mix(mix(mix(seed) ^ stream) ^ index);
  return static_cast<double>(bits >> 11) * 0x1p-52 - 1;
}

// T5's buckets (Raffel et al. 2019, arXiv 1910.10683, section 2.1) as in its authors' code: half of the buckets hold
// single distances, the others get wider by a constant factor, up to distance 128.
std::int64_t position_bucket(std::int64_t distance, bool causal, std::int64_t buckets) {
  constexpr double kFarthest = 128;
  std::int64_t first = 0, n = buckets, d = std::max<std::int64_t>(-distance, 0);
  if (!causal) {
    n = buckets / 2;
    if (distance > 0) first = n;
    d = std::abs(distance);
  }
  const std::int64_t single = n / 2;
  if (d < single || n < 2) return first + std::min(d, std::max<std::int64_t>(n - 1, 0));
  const double ratio = static_cast<double>(d) / static_cast<double>(single);
  const double wide = std::log(ratio) / std::log(kFarthest / static_cast<double>(single));
  return first + std::min(n - 1, single + static_cast<std::int64_t>(wide * static_cast<double>(n - single)));
}

std::vector<std::size_t> Position::group(MeshGroup group) const {
  const std::span<const Digit> digits = mesh->digits();
  auto first = static_cast<std::int64_t>(rank);
  for (std::size_t d = 0; d < digits.size(); ++d)
    if (group.contains(static_cast<int>(d)))
      first -= static_cast<std::int64_t>(rank) / digits[d].stride % digits[d].size * digits[d].stride;
  std::vector<std::size_t> members;
  for (const std::int64_t offset : mesh->offsets(group)) members.push_back(static_cast<std::size_t>(first + offset));
  return members;
}

std::vector<std::int64_t> positions_of_tokens(const Piece& piece, TensorId id, const Position& position) {
  const Tensor& t = piece.tensors[id];
  const int d = t.find(Axis::sequence);
  if (d < 0) return {};
  if (t.sizes[d] * position.mesh->size(t.over[d].group()) == position.sequence)
    return position.dealt(t, d, position.sequence);
  const int of = t.alias_of == kNoTensor ? -1 : piece.tensors[t.alias_of].find(Axis::sequence);
  if (of < 0) return {};
  const std::vector<std::int64_t> base = positions_of_tokens(piece, t.alias_of, position);
  std::vector<std::int64_t> positions;
  if (base.empty()) return positions;
  for (std::int64_t i = 0; i < t.sizes[d]; ++i)
    positions.push_back(
        base.at(static_cast<std::size_t>(index_in_base(i, t, d, piece.tensors[t.alias_of], of, position))));
  return positions;
}

AttentionPositions attention_positions(const Op& op, const Piece& piece, const Position& position) {
  const std::size_t first = queries_operand(op.kind);
  const Tensor &q = piece.tensors[op.reads[first]], &kv = piece.tensors[op.reads[first + 1]];
  const std::int64_t whole = q.sizes[1] * op.parts;
  const auto dealt = [&](const Tensor& t, std::size_t rank) {
    return dealt_indices(t.deal(1), t.over[1], whole, t.sizes[1], *position.mesh, static_cast<std::int64_t>(rank));
  };
  const std::vector<std::size_t> ring = position.group(kv.over[1].group());
  const auto own = std::find(ring.begin(), ring.end(), position.rank) - ring.begin();
  return {dealt(q, position.rank), dealt(kv, ring[static_cast<std::size_t>(op.part_of_keys(own))])};
}

Position position_of(std::size_t rank, const Program& program, std::int64_t sequence) {
  const Mesh& mesh = program.mesh;
  Position p;
  p.rank = rank;
  p.mesh = &mesh;
  const auto r = static_cast<std::int64_t>(rank);
  p.tp_degree = mesh.size(MeshAxis::tp);
  p.cp_degree = mesh.size(MeshAxis::cp);
  p.pp = mesh.coordinate(r, MeshAxis::pp);
  p.replica = mesh.coordinate(r, mesh.replicas());
  p.sequence = sequence;
  for (const Piece& piece : program.pieces)
    for (const ParameterGradient& parameter : piece.parameters)
      if (const Tensor& t = piece.tensors[parameter.parameter]; t.find(Axis::experts) >= 0)
        p.experts = p.experts | t.over[t.find(Axis::experts)].group();
  p.expert_of_slot = program.expert_of_slot;
  return p;
}

std::vector<ElementMap> views_of(const Piece& piece, const Position& position) { return Viewer(piece, position).run(); }

std::vector<WholeParameter> whole_parameters(const Program& one_rank, bool tied) {
  std::vector<WholeParameter> all;
  std::int64_t layer = 0, table = -1;
  for (const PieceRun& run : one_rank.stages[0][0].runs) {
    const Piece& piece = one_rank.pieces[run.piece];
    for (std::int64_t i = 0; i < run.count; ++i) {
      for (const ParameterGradient& p : piece.parameters) {
        WholeParameter w;
        w.tensor = piece.tensors[p.parameter];
        w.name = std::string(piece.name) + (is_layer(piece) ? " " + std::to_string(layer) : "") + " " + w.tensor.name;
        w.initial = InitialValue::shift;
        w.frozen = p.gradient == kNoTensor;
        TensorId quantised = kNoTensor;
        for (const Op& op : piece.forward.ops) {
          if (op.kind == OpKind::cast && op.reads[0] == p.parameter) quantised = op.writes[0];
          if (op.reads[1] == kNoTensor || (op.reads[1] != p.parameter && op.reads[1] != quantised)) continue;
          if (op.kind == OpKind::norm) w.initial = InitialValue::scale;
          if (op.kind == OpKind::embedding) w.initial = InitialValue::table;
          if (op.kind == OpKind::linear) {
            w.initial = InitialValue::matrix;
            const Tensor& x = piece.tensors[op.reads[0]];
            std::int64_t k = 1;
            for (int d = 0; d < op.inner_dims; ++d) k *= x.sizes[x.rank - 1 - d];
            w.deviation = 1 / std::sqrt(static_cast<double>(k));
          }
        }
        if (w.tensor.rank == 2 && w.initial == InitialValue::shift) w.initial = InitialValue::table;  // positions
        w.values_of = static_cast<std::int64_t>(all.size());
        if (w.tensor.rank == 2 && w.tensor.axes[0] == Axis::vocab) {
          if (table < 0) {
            table = w.values_of;
          } else if (tied || w.initial == InitialValue::table) {  // both stacks use one table
            w.values_of = table;
          }
        }
        all.push_back(std::move(w));
      }
      layer += is_layer(piece) ? 1 : 0;
    }
  }
  return all;
}

bool is_contiguous_part(const Tensor& whole, const Tensor& part, int dim) {
  return part.deal(dim) == Deal::contiguous || part.over[dim].empty() || !whole.over[dim].empty();
}

int copied_dimension(const Tensor& t, const Position& position) {
  return position.expert_of_slot.empty() ? -1 : t.find(Axis::experts);
}

std::int64_t slot_of(const Tensor& t, int dim, std::int64_t element, const Position& position) {
  for (int d = t.rank; --d > dim;) element /= t.sizes[d];
  return position.begin(t, dim) + element % t.sizes[dim];
}

bool is_whole(const Tensor& local, const Tensor& whole, const Position& position) {
  return copied_dimension(local, position) < 0 && local.rank == whole.rank && local.sizes == whole.sizes &&
         local.axes == whole.axes;
}

std::vector<std::int64_t> whole_elements(const Tensor& local, const Tensor& whole, const Position& position) {
  const Mesh& mesh = *position.mesh;
  std::array<std::vector<std::int64_t>, Tensor::kMaxRank> indices;
  const int copied = copied_dimension(local, position);
  for (int d = 0; d < local.rank; ++d) {
    const std::int64_t parts = mesh.size(local.over[d].group());
    if (d == copied) {
      const std::span<const std::int64_t> own = position.expert_of_slot.subspan(
          static_cast<std::size_t>(position.begin(local, d)), static_cast<std::size_t>(local.sizes[d]));
      indices[static_cast<std::size_t>(d)].assign(own.begin(), own.end());
      continue;
    }
    if (local.deal(d) != Deal::query_heads && local.sizes[d] * parts != whole.sizes[d])
      throw InputError(
          {"", "/plan/tensor_parallel"},
          std::string("\"") + local.name + "\" with " + std::to_string(local.sizes[d] * parts) + " rows over all ranks",
          std::to_string(whole.sizes[d]) +
              ", the number on one rank: a vocabulary whose padding does not depend on tensor_parallel");
    indices[static_cast<std::size_t>(d)] = position.dealt(local, d, whole.sizes[d]);
  }
  std::vector<std::int64_t> map(static_cast<std::size_t>(local.elements()));
  for (std::size_t e = 0; e < map.size(); ++e) {
    auto rest = static_cast<std::int64_t>(e);
    std::int64_t stride = 1, at = 0;
    for (int d = local.rank; d-- > 0;) {
      at += indices[static_cast<std::size_t>(d)][static_cast<std::size_t>(rest % local.sizes[d])] * stride;
      rest /= local.sizes[d];
      stride *= whole.sizes[d];
    }
    map[e] = at;
  }
  return map;
}

}  // namespace orrery::realrun
