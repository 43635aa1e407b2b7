#include "realrun/bench/operands.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

namespace orrery::bench {
namespace {

constexpr std::int64_t kTile = 1 << 16;  // number of elements that are generated; larger tensors repeat them

// The same numbers in every run of every build.
const std::vector<float>& normal_numbers() {
  static const std::vector<float> numbers = [] {
    std::mt19937 generator(1);
    std::vector<float> values(kTile);
    constexpr double kTerms = 12;  // the sum of this many uniform numbers has variance 1
    for (float& value : values) {
      double sum = -kTerms / 2;
      for (int i = 0; i < static_cast<int>(kTerms); ++i) sum += static_cast<double>(generator()) / 4294967296.0;
      value = static_cast<float>(sum);
    }
    return values;
  }();
  return numbers;
}

std::vector<float> tile_of(const Contents& contents, std::int64_t elements) {
  std::vector<float> tile(static_cast<std::size_t>(std::min(elements, kTile)), static_cast<float>(contents.value));
  if (contents.kind == Contents::Kind::constant) return tile;
  std::mt19937 generator(2);
  const auto below = static_cast<std::uint32_t>(contents.value);
  for (std::size_t i = 0; i < tile.size(); ++i) {
    const float x = normal_numbers()[i];
    tile[i] = contents.kind == Contents::Kind::normal     ? x
              : contents.kind == Contents::Kind::positive ? std::abs(x)
                                                          : static_cast<float>(generator() % below);
  }
  return tile;
}

}  // namespace

Operands::Operands(Backend& backend, const KernelCase& kernel)
    : backend_(backend), case_(kernel), memory_(kernel.tensors.size(), nullptr) {
  const auto operand = [&](TensorId id) -> Operand {
    if (id == kNoTensor) return {};
    return {place(id), &case_.tensors[id]};
  };
  try {
    for (const TensorId id : case_.op.reads) reads_.push_back(operand(id));
    for (const TensorId id : case_.op.writes) writes_.push_back(operand(id));
    while (!reads_.empty() && reads_.back().data == nullptr) reads_.pop_back();
    while (!writes_.empty() && writes_.back().data == nullptr) writes_.pop_back();
    backend_.synchronize();
  } catch (...) {  // the destructor will not run
    for (void* memory : memory_)
      if (memory != nullptr) backend_.release(memory);
    throw;
  }
}

Operands::~Operands() {
  try {
    backend_.synchronize();
  } catch (const DeviceError&) {  // was already thrown to the caller that ran the op
  }
  for (void* memory : memory_)
    if (memory != nullptr) backend_.release(memory);
}

void* Operands::place(std::size_t id) {
  void*& memory = memory_[id];
  if (memory != nullptr) return memory;
  const Tensor& tensor = case_.tensors[id];
  memory = backend_.allocate(tensor.elements(), tensor.dtype, tensor.place, Stream::compute);
  fill(memory, tensor, case_.contents[id]);
  return memory;
}

void Operands::fill(void* memory, const Tensor& tensor, const Contents& contents) {
  const std::int64_t elements = tensor.elements();
  if (tensor.dtype == Dtype::fp8) {  // written through a cast, which sets the scale
    Tensor wide = tensor;
    wide.dtype = Dtype::bf16;
    void* const from = backend_.allocate(elements, wide.dtype, Place::device, Stream::compute);
    fill(from, wide, contents);
    Op op;
    op.kind = OpKind::cast;
    op.name = "cast";
    const std::array<Operand, 1> read{{{from, &wide}}}, write{{{memory, &tensor}}};
    backend_.run(op, read, write, {});
    backend_.release(from);
    return;
  }
  const std::vector<float> tile = tile_of(contents, elements);
  const auto filled = static_cast<std::int64_t>(tile.size());
  backend_.write({memory, tensor.dtype, 0, filled}, tile);
  // Copies what is there behind itself: a few copies fill gigabytes faster than the host would.
  const std::int64_t size = backend_.stored_bytes(tensor.dtype);
  auto* const bytes = static_cast<std::byte*>(memory);
  for (std::int64_t done = filled; done < elements;) {
    const std::int64_t more = std::min(done, elements - done);
    backend_.copy(Stream::compute, bytes + done * size, bytes, more * size);
    done += more;
  }
}

void Operands::run() {
  const Op& op = case_.op;
  if (op.kind != OpKind::copy) {
    backend_.run(op, reads_, writes_, case_.context);
    return;
  }
  const Tensor& tensor = *reads_[0].tensor;
  backend_.copy(op.stream, writes_[0].data, reads_[0].data, tensor.elements() * backend_.stored_bytes(tensor.dtype));
}

}  // namespace orrery::bench
