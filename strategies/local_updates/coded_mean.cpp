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
    all.axes[1] = all.axes[0], all.axes[0] = Axis::none;
    all.over[1] = all.over[0], all.over[0] = {};
    all.sizes[1] = (all.sizes[0] + count_ - 1) / count_, all.sizes[0] = count_;
    Tensor part = all;
    part.sizes[0] = 1;
    part.over[0].append(workers_);

    const Coded sent = add_codes(all, "sent_codes", "sent_scales"),
                received = add_codes(with_contributions(part, count_), "received_codes", "received_scales"),
                averaged = add_codes(part, "mean_codes", "mean_scales"),
                gathered = add_codes(all, "all_codes", "all_scales");
    Op compress = computation(OpKind::quantise, "compress", Phase::update, {own}, {sent.codes, sent.scales});
    Op average = computation(OpKind::requantise, "compress_mean", Phase::update, {received.codes, received.scales},
                             {averaged.codes, averaged.scales});
    average.scale = 1 / static_cast<double>(count_);
    if (wire_.feedback) {
      feed_back(piece_, compress, piece_.tensors[own], "worker_error", Dtype::fp32);
      // Each worker has a part of it, and it follows from means alone.
      piece_.tensors[feed_back(piece_, average, part, "server_error", Dtype::fp32)].common = true;
    }
    put(compress);
    exchange(OpKind::all_to_all, "workers.all_to_all", sent, received);
    put(average);
    exchange(OpKind::all_gather, "workers.all_gather", averaged, gathered);
    put(computation(OpKind::dequantise, "expand_mean", Phase::update, {gathered.codes, gathered.scales}, {mean}));
  }

 private:
  Coded add_codes(const Tensor& like, const char* codes, const char* scales) {
    return orrery::add_codes(piece_, like, wire_.codes, wire_.group, codes, scales);
  }
  void exchange(OpKind kind, const char* name, const Coded& from, const Coded& to) {
    for (const auto& [sent, received] : {std::pair(from.codes, to.codes), std::pair(from.scales, to.scales)}) {
      Op op = communication(kind, name, Phase::update, Stream::data_communication, workers_, sent, received);
      if (kind == OpKind::all_to_all) op.reduction = Reduction::mean;
      put(op);
    }
  }
  void put(const Op& op) { ops_.push_back(for_all_instances(op)); }

  const CodedWire& wire_;
  const MeshGroup workers_;
  const std::int64_t count_;
  Piece& piece_;
  std::vector<Op>& ops_;
};

}  // namespace

Op mean_over_workers(const Mesh& mesh, TensorId from, TensorId to) {
  Op op = communication(OpKind::all_reduce, "workers.all_reduce", Phase::update, Stream::data_communication,
                        mesh.group(MeshAxis::worker), from, to);
  op.reduction = Reduction::mean;
  return for_all_instances(op);
}

void add_coded_mean(const Mesh& mesh, const CodedWire& wire, TensorId own, TensorId mean, Piece& piece,
                    std::vector<Op>& ops) {
  CodedMean(mesh, wire, piece, ops).add(own, mean);
}

}  // namespace orrery::local_updates
