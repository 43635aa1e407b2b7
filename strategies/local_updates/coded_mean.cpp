#include "strategies/local_updates/coded_mean.h"

#include <utility>

#include "sim/program/rewrite.h"

namespace orrery::local_updates {
namespace {

class CodedMean {
 public:
  CodedMean(const Mesh& mesh, const CodedWire& wire, Piece& piece, std::vector<Op>& ops)
      : wire_(wire),
        workers_(mesh.group(MeshAxis::worker)),
        count_(mesh.size(MeshAxis::worker)),
        piece_(piece),
        ops_(ops) {}

  void add(TensorId own, TensorId mean) {
    // `all`: the buffer as [workers, numbers of a part]; `part`: one of its rows.
    Tensor all = piece_.tensors[own];
    all.rank = 2;
    all.alias_of = kNoTensor;
    all.alias_begin = 0;
    all.axes[1] = all.axes[0], all.axes[0] = Axis::none;
    all.over[1] = all.over[0], all.over[0] = {};
    all.sizes[1] = (all.sizes[0] + count_ - 1) / count_, all.sizes[0] = count_;
    Tensor part = all;
    part.sizes[0] = 1;
    part.over[0].append(workers_);

    const TensorId worker_error = add_error(piece_.tensors[own], "worker_error");
    const Coded sent = add_codes(all, "sent_codes", "sent_scales");
    code(computation(OpKind::quantise, "compress", Phase::update, {own}, {sent.codes, sent.scales}), 1, worker_error);
    const Coded received = add_codes(with_contributions(part, count_), "received_codes", "received_scales");
    exchange(OpKind::all_to_all, "workers.all_to_all", sent, received);

    const TensorId server_error = add_error(part, "server_error");
    // Each worker has a part of it, and it follows from means alone.
    if (wire_.feedback) piece_.tensors[server_error].common = true;
    const Coded averaged = add_codes(part, "mean_codes", "mean_scales"),
                gathered = add_codes(all, "all_codes", "all_scales");
    Op average = computation(OpKind::requantise, "compress_mean", Phase::update, {received.codes, received.scales},
                             {averaged.codes, averaged.scales});
    average.scale = 1 / static_cast<double>(count_);
    code(average, 2, server_error);
    exchange(OpKind::all_gather, "workers.all_gather", averaged, gathered);
    put(computation(OpKind::dequantise, "expand_mean", Phase::update, {gathered.codes, gathered.scales}, {mean}));
  }

 private:
  struct Coded {
    TensorId codes, scales;
  };

  // `t`: the layout of the codes, the numbers last.
  Coded add_codes(Tensor t, const char* codes, const char* scales) {
    t.category = Category::communication_buffer;
    t.resident = t.common = false;
    t.name = codes;
    t.dtype = wire_.codes;
    const TensorId id = piece_.add(t);
    std::int64_t& numbers = t.sizes[static_cast<std::size_t>(t.rank - 1)];
    numbers = (numbers + wire_.group - 1) / wire_.group;
    t.name = scales;
    t.dtype = Dtype::fp32;
    return {id, piece_.add(t)};
  }
  TensorId add_error(Tensor t, const char* name) {
    if (!wire_.feedback) return kNoTensor;
    t.alias_of = kNoTensor;
    t.alias_begin = 0;
    t.category = Category::optimizer_state;
    t.dtype = Dtype::fp32;
    t.resident = true;
    t.common = false;
    t.name = name;
    return piece_.add(t);
  }

  // `read`: the index of the read that is the quantiser's error.
  void code(Op op, std::size_t read, TensorId error) {
    op.reads[read] = op.writes[2] = error;
    put(op);
  }
  void exchange(OpKind kind, const char* name, const Coded& from, const Coded& to) {
    for (const auto& [sent, received] : {std::pair(from.codes, to.codes), std::pair(from.scales, to.scales)}) {
      Op op = communication(kind, name, Phase::update, Stream::data_communication, workers_, sent, received);
      if (kind == OpKind::all_to_all) op.reduction = Reduction::mean;
      put(op);
    }
  }
  void put(Op op) {
    op.every = kAllInstances;
    ops_.push_back(op);
  }

  const CodedWire& wire_;
  const MeshGroup workers_;
  const std::int64_t count_;
  Piece& piece_;
  std::vector<Op>& ops_;
};

}  // namespace

void add_coded_mean(const Mesh& mesh, const CodedWire& wire, TensorId own, TensorId mean, Piece& piece,
                    std::vector<Op>& ops) {
  CodedMean(mesh, wire, piece, ops).add(own, mean);
}

}  // namespace orrery::local_updates
