#include "realrun/cuda/backend.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <utility>

#include "realrun/cuda/events.h"
#include "realrun/cuda/fp8.h"
#include "realrun/cuda/host_kernels.h"
#include "realrun/cuda/host_numbers.h"
#include "realrun/cuda/kernels.h"
#include "realrun/cuda/matmul.h"
#include "realrun/cuda/matmul_plan.h"
#include "realrun/cuda/memory.h"
#include "realrun/cuda/runtime.h"

namespace orrery {

using namespace cuda;

namespace {

constexpr std::int64_t kTransferElements = 8 << 20;  // elements that write() and read() convert at a time
constexpr std::int64_t kScaleSlots = 256;            // fp8 scales in one allocation
constexpr std::uintptr_t kFp8PointerAlignment = 16;  // cuBLAS manual, "cublasLtMatmul", fp8

bool has_priority(Stream stream) { return stream != Stream::compute && stream != Stream::host; }

// Returns "580.65.06", or the CUDA version that the driver supports if the kernel module does not report its version.
std::string driver_text() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;)
    if (!word.empty() && word.find_first_not_of("0123456789.") == std::string::npos &&
        word.find('.') != std::string::npos)
      return word;
  int version = 0;
  check(cudaDriverGetVersion(&version), "asking for the driver's version");
  return "for " + version_text(version);
}

Workers& host_workers() {
  static Workers workers(std::max(1u, std::thread::hardware_concurrency()));
  return workers;
}

std::uint64_t hash_of(std::span<const std::int64_t> values) {  // FNV-1a, by words
  constexpr std::uint64_t kBasis = 14695981039346656037ull, kPrime = 1099511628211ull;
  std::uint64_t hash = kBasis;
  for (const std::int64_t v : values) hash = (hash ^ static_cast<std::uint64_t>(v)) * kPrime;
  return hash;
}

// Memory of one op, allocated and freed in the stream's order.
class Temporary {
 public:
  Temporary(std::int64_t bytes, cudaStream_t stream) : stream_(stream) {
    check(cudaMallocAsync(&data_, static_cast<std::size_t>(bytes), stream), "allocating memory for an op");
  }
  ~Temporary() { cudaFreeAsync(data_, stream_); }
  Temporary(const Temporary&) = delete;
  void* data() const { return data_; }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
};

bool is_aligned(const void* pointer, std::uintptr_t to) { return reinterpret_cast<std::uintptr_t>(pointer) % to == 0; }

const void* at(const void* data, std::int64_t elements, Dtype dtype) {
  return static_cast<const char*>(data) + bytes_of(dtype, elements);
}

}  // namespace

struct CudaBackend::State {
  State(int device_number, bool tf32);
  ~State();

  void use() const {
    thread_local int current = -1;
    if (current == device) return;
    check(cudaSetDevice(device), "choosing the GPU");
    current = device;
  }
  cudaStream_t stream(Stream s);
  void synchronize(Stream s);
  void synchronize();
  void throw_host_failure();
  void refuse_capture(const char* what) const {
    if (capturing)
      throw DeviceError(fmt::format("CUDA: {} inside a capture: run the block once before capturing", what));
  }

  // Memory for the kernels of a stream; each op may use it in turn.
  struct Scratch {
    void* data = nullptr;
    std::int64_t bytes = 0;
  };
  Scratch& scratch(Stream s, std::int64_t bytes);

  // Puts constants into device memory, once.
  const std::int64_t* place(std::span<const std::int64_t> values);
  const std::int64_t* positions(std::span<const std::int64_t> values);
  DeviceSlice slice(const Slice& from);

  void run_matmul(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes, Stream s);
  bool run_product(const BlasProduct& product, std::span<const BlasLaunch> launches, bool fast_accumulation,
                   const Matmul::Operands& operands, Stream s);
  bool run_fp8(const Op& op, const MatmulPlan& plan, std::span<const Operand> reads, const Matmul::Operands& operands,
               Stream s);
  void run_cast(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                const KernelContext& context, Stream s);
  void run_kernel(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                  const KernelContext& context, Stream s);
  void run_host(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                const KernelContext& context);

  Fp8Scale* scale_of(const void* tensor) const;
  Fp8Scale* make_scale(const void* tensor, std::int64_t bytes);
  void forget_scales(const void* begin, std::int64_t bytes);

  struct CheckDevice {  // before anything else in this backend uses the GPU
    explicit CheckDevice(int device) {
      require_device(device);
      check(cudaSetDevice(device), "choosing the GPU");
    }
  };

  int device;
  CheckDevice checked;
  std::int64_t processors = 1;
  Memory memory;
  Matmul matmul;
  std::array<cudaStream_t, kStreams> streams{};
  Events events;
  Marks marks;

  std::array<Scratch, kStreams> scratches, workspaces;
  struct DeviceIndex {
    const std::int64_t* starts = nullptr;
    std::int64_t run = 1, alignment = 1;
  };
  std::unordered_map<const std::vector<std::int64_t>*, DeviceIndex> indices;
  struct Positions {
    std::vector<std::int64_t> values;
    const std::int64_t* on_device = nullptr;
  };
  std::unordered_multimap<std::uint64_t, Positions> known_positions;

  struct Scaled {
    Fp8Scale* scale = nullptr;
    std::int64_t bytes = 0;
  };
  std::map<const void*, Scaled> scales;  // by the first address of the tensor that has the scale
  std::vector<Fp8Scale*> free_scales;
  std::int32_t* nan_flag = nullptr;

  // The product's sizes depend on the data. They differ each time, so timing candidates does not pay.
  bool sizes_follow_data = false;
  bool capturing = false;
  Stream capture_stream = Stream::compute;
  std::vector<cudaGraphExec_t> graphs;

  std::mutex host_mutex;
  std::exception_ptr host_failure;
};

namespace {

// An op of Stream::host on its way to the CPU.
struct HostWork {
  Op op;
  std::vector<Tensor> tensors;
  std::vector<Operand> reads, writes;
  KernelContext context;
  std::vector<std::int64_t> query_positions, key_positions;
  std::mutex* mutex = nullptr;
  std::exception_ptr* failure = nullptr;
};

void run_host_work(void* data) {
  const std::unique_ptr<HostWork> work(static_cast<HostWork*>(data));
  try {
    run_on_host(work->op, work->reads, work->writes, work->context, host_workers());
  } catch (...) {
    const std::lock_guard lock(*work->mutex);
    if (!*work->failure) *work->failure = std::current_exception();
  }
}

}  // namespace

CudaBackend::State::State(int device_number, bool tf32)
    : device(device_number), checked(device_number), memory(device_number), matmul(tf32) {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "asking for the multiprocessors");
  processors = count;
}

CudaBackend::State::~State() {
  cudaSetDevice(device);
  for (const cudaStream_t s : streams)
    if (s != nullptr) cudaStreamSynchronize(s);
  for (const cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
  for (const cudaStream_t s : streams)
    if (s != nullptr) cudaStreamDestroy(s);
}

cudaStream_t CudaBackend::State::stream(Stream s) {
  use();
  cudaStream_t& found = streams[static_cast<std::size_t>(s)];
  if (found != nullptr) return found;
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for stream priorities");
  check(cudaStreamCreateWithPriority(&found, cudaStreamNonBlocking, has_priority(s) ? greatest : least),
        "creating a stream");
  return found;
}

void CudaBackend::State::throw_host_failure() {
  const std::lock_guard lock(host_mutex);
  if (host_failure) std::rethrow_exception(std::exchange(host_failure, nullptr));
}

void CudaBackend::State::synchronize(Stream s) {
  refuse_capture("waiting for the GPU");
  const cudaStream_t waited = stream(s);
  check(cudaStreamSynchronize(waited), "work on the GPU");
  events.all_done(s);
  throw_host_failure();
}

void CudaBackend::State::synchronize() {
  for (std::size_t s = 0; s < streams.size(); ++s)
    if (streams[s] != nullptr) synchronize(static_cast<Stream>(s));
}

CudaBackend::State::Scratch& CudaBackend::State::scratch(Stream s, std::int64_t bytes) {
  Scratch& found = scratches[static_cast<std::size_t>(s)];
  if (found.bytes >= bytes) return found;
  refuse_capture("a kernel wants more scratch memory");
  const cudaStream_t on = stream(s);
  if (found.data != nullptr) {  // after its last use
    synchronize(s);
    memory.release(found.data, nullptr);
    found = {};
  }
  found.data = memory.allocate(bytes, Place::device, on);
  found.bytes = bytes;
  return found;
}

const std::int64_t* CudaBackend::State::place(std::span<const std::int64_t> values) {
  refuse_capture("an index list or positions are new");
  const auto bytes = static_cast<std::int64_t>(values.size_bytes());
  const cudaStream_t on = stream(Stream::host_to_device);
  void* const placed = memory.allocate(bytes, Place::device, on);
  check(cudaMemcpyAsync(placed, values.data(), values.size_bytes(), cudaMemcpyDefault, on), "copying an index list");
  check(cudaStreamSynchronize(on), "copying an index list");
  return static_cast<const std::int64_t*>(placed);
}

const std::int64_t* CudaBackend::State::positions(std::span<const std::int64_t> values) {
  if (values.empty()) return nullptr;
  const std::uint64_t hash = hash_of(values);
  const auto [begin, end] = known_positions.equal_range(hash);
  for (auto p = begin; p != end; ++p)
    if (std::ranges::equal(p->second.values, values)) return p->second.on_device;
  const std::int64_t* const placed = place(values);
  known_positions.emplace(hash, Positions{{values.begin(), values.end()}, placed});
  return placed;
}

DeviceSlice CudaBackend::State::slice(const Slice& from) {
  DeviceSlice s{.base = from.base, .dtype = from.dtype, .offset = from.offset, .elements = from.elements};
  if (from.index == nullptr) return s;
  const auto [found, is_new] = indices.try_emplace(from.index);
  if (is_new) {
    const IndexPlan plan = plan_index(*from.index);
    found->second = {place(plan.starts), plan.run, plan.alignment};
  }
  s.starts = found->second.starts;
  s.run = found->second.run;
  s.alignment = found->second.alignment;
  s.elements = static_cast<std::int64_t>(from.index->size());
  return s;
}

Fp8Scale* CudaBackend::State::scale_of(const void* tensor) const {
  auto found = scales.upper_bound(tensor);  // parts of a tensor, e.g. of one expert, have the scale of the whole
  if (found == scales.begin()) return nullptr;
  --found;
  return tensor < static_cast<const char*>(found->first) + found->second.bytes ? found->second.scale : nullptr;
}

Fp8Scale* CudaBackend::State::make_scale(const void* tensor, std::int64_t bytes) {
  // Forgets the scales of its parts, which are about to be overwritten.
  if (bytes > 1) forget_scales(static_cast<const char*>(tensor) + 1, bytes - 1);
  Scaled& scaled = scales[tensor];
  scaled.bytes = std::max<std::int64_t>(bytes, 1);
  Fp8Scale*& found = scaled.scale;
  if (found != nullptr) return found;
  if (free_scales.empty()) {
    refuse_capture("an fp8 tensor is new");
    const cudaStream_t on = stream(Stream::compute);
    auto* const slots = static_cast<Fp8Scale*>(
        memory.allocate(kScaleSlots * static_cast<std::int64_t>(sizeof(Fp8Scale)), Place::device, on));
    check(cudaStreamSynchronize(on), "allocating fp8 scales");
    for (std::int64_t i = 0; i < kScaleSlots; ++i) free_scales.push_back(slots + i);
  }
  found = free_scales.back();
  free_scales.pop_back();
  return found;
}

void CudaBackend::State::forget_scales(const void* begin, std::int64_t bytes) {
  auto s = scales.lower_bound(begin);
  while (s != scales.end() && s->first < static_cast<const char*>(begin) + bytes) {
    free_scales.push_back(s->second.scale);
    s = scales.erase(s);
  }
}

bool CudaBackend::State::run_product(const BlasProduct& product, std::span<const BlasLaunch> launches,
                                     bool fast_accumulation, const Matmul::Operands& operands, Stream s) {
  Scratch& workspace = workspaces[static_cast<std::size_t>(s)];
  if (workspace.data == nullptr) {
    refuse_capture("a matrix product is the first of its stream");
    workspace.bytes = Matmul::kWorkspaceBytes;
    workspace.data = memory.allocate(workspace.bytes, Place::device, stream(s));
  }
  const Matmul::Place place{.stream = stream(s),
                            .workspace = workspace.data,
                            .workspace_bytes = static_cast<std::size_t>(workspace.bytes),
                            .may_wait = !capturing && !sizes_follow_data};
  for (const BlasLaunch& launch : launches) {
    Matmul::Operands moved = operands;
    moved.a = at(operands.a, launch.a_offset, product.a.dtype);
    moved.b = at(operands.b, launch.b_offset, product.b.dtype);
    moved.c = const_cast<void*>(at(operands.c, launch.c_offset, product.c.dtype));
    if (!matmul.run(product, launch.accumulate, fast_accumulation, moved, place)) return false;
  }
  return true;
}

bool CudaBackend::State::run_fp8(const Op& op, const MatmulPlan& plan, std::span<const Operand> reads,
                                 const Matmul::Operands& operands, Stream s) {
  const cudaStream_t on = stream(s);
  const BlasProduct& product = plan.product;
  Matmul::Operands moved = operands;
  if (product.c.batch == 1 && plan.launches.size() == 1 && fp8_sizes_fit(product)) {
    const Fp8Plan fp8 = along_k(product);
    std::optional<Temporary> a, b;
    const auto transpose = [&](const BlasMatrix& m, const void*& data, std::optional<Temporary>& to) {
      to.emplace(m.rows * m.columns, on);
      transpose_bytes(on, data, to->data(), m.columns, m.rows);
      data = to->data();
    };
    if (fp8.copy_a) transpose(product.a, moved.a, a);
    if (fp8.copy_b) transpose(product.b, moved.b, b);
    const bool aligned = is_aligned(moved.a, kFp8PointerAlignment) && is_aligned(moved.b, kFp8PointerAlignment) &&
                         is_aligned(moved.c, kFp8PointerAlignment);
    if (aligned && run_product(fp8.product, plan.launches, op.kind == OpKind::linear, moved, s)) return true;
  }
  // For batches and sizes that fp8 units do not support: multiplies the same numbers in 16 bits.
  BlasProduct wide = product;
  wide.a.dtype = wide.b.dtype = product.c.dtype == Dtype::fp16 ? Dtype::fp16 : Dtype::bf16;
  const auto widen = [&](std::size_t read, Temporary& to) {
    dequantise(on, reads[read].data, scale_of(reads[read].data), to.data(), wide.a.dtype,
               reads[read].tensor->elements());
  };
  const auto bytes = [&](std::size_t read) { return reads[read].tensor->elements() * bytes_of(wide.a.dtype, 1); };
  Temporary a(bytes(plan.a_read), on), b(bytes(plan.b_read), on);
  widen(plan.a_read, a);
  widen(plan.b_read, b);
  return run_product(wide, plan.launches, false, {.a = a.data(), .b = b.data(), .c = operands.c}, s);
}

void CudaBackend::State::run_matmul(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                                    Stream s) {
  const MatmulPlan plan = plan_matmul(op, reads, writes);
  const BlasProduct& product = plan.product;
  if (product.m == 0 || product.n == 0 || product.c.batch == 0) return;
  const auto fail = [&](const char* what) {
    throw std::logic_error(fmt::format("kernel {} ({}): {}: {} x {} -> {}, {} x {} x {}", name_of(op.kind), op.name,
                                       what, name_of(product.a.dtype), name_of(product.b.dtype),
                                       name_of(product.c.dtype), product.m, product.n, product.k));
  };
  Matmul::Operands operands{
      .a = reads[plan.a_read].data, .b = reads[plan.b_read].data, .c = writes[0].data, .bias_stride = plan.bias_stride};
  std::optional<Temporary> rounded;
  const auto round = [&](const BlasMatrix& m, std::size_t read, const void*& data) {
    Tensor narrow = *reads[read].tensor;
    narrow.dtype = m.dtype;
    rounded.emplace(narrow.bytes(), stream(s));
    Op cast;
    cast.kind = OpKind::cast;
    cast.name = op.name;
    const Operand to{rounded->data(), &narrow};
    run_kernel(cast, {&reads[read], 1}, {&to, 1}, {}, s);
    data = rounded->data();
  };
  if (plan.round_a) round(product.a, plan.a_read, operands.a);
  if (plan.round_b) round(product.b, plan.b_read, operands.b);
  if (!dtypes_multiply(product)) fail("matrix units do not multiply these dtypes");
  const bool fp8 = product.a.dtype == Dtype::fp8;
  if (fp8) {
    const auto scale = [&](const void* tensor) {
      const Fp8Scale* const found = scale_of(tensor);
      return found == nullptr ? nullptr : &found->scale;
    };
    operands.a_scale = scale(operands.a);
    operands.b_scale = scale(operands.b);
  }
  bool bias_pending = plan.bias;
  bool is_done = false;
  if (plan.bias && !fp8 && reads[2].tensor->dtype == product.c.dtype) {
    Matmul::Operands with_bias = operands;
    with_bias.bias = reads[2].data;
    is_done = run_product(product, plan.launches, false, with_bias, s);
    bias_pending = !is_done;
  }
  if (!is_done)
    is_done = fp8 ? run_fp8(op, plan, reads, operands, s) : run_product(product, plan.launches, false, operands, s);
  if (!is_done) fail("cuBLASLt has no kernel for this product");
  if (!bias_pending) return;
  Op add;
  add.kind = OpKind::add;
  add.name = op.name;
  // For grouped products, adds each expert's bias to its own rows.
  Tensor rows = *writes[0].tensor, bias = *reads[2].tensor;
  const std::int64_t experts = plan.bias_stride > 0 ? product.c.batch : 1;
  for (int d = 0; plan.bias_stride > 0 && d < op.group_dims; ++d) rows.sizes[d] = bias.sizes[d] = 1;
  for (std::int64_t e = 0; e < experts; ++e) {
    const Operand to{const_cast<void*>(at(writes[0].data, e * rows.elements(), rows.dtype)), &rows},
        of_expert{const_cast<void*>(at(reads[2].data, e * bias.elements(), bias.dtype)), &bias};
    const std::array<Operand, 3> added{to, Operand{}, of_expert};
    run_kernel(add, added, {&to, 1}, {}, s);
  }
}

void CudaBackend::State::run_cast(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                                  const KernelContext& context, Stream s) {
  const Operand &from = reads[0], &to = writes[0];
  const bool to_fp8 = to.tensor->dtype == Dtype::fp8, from_fp8 = from.tensor->dtype == Dtype::fp8;
  if (to_fp8 == from_fp8) {  // copies bytes and their scale
    run_kernel(op, reads, writes, context, s);
    const Fp8Scale* const scale = to_fp8 ? scale_of(from.data) : nullptr;
    if (scale != nullptr)
      check(cudaMemcpyAsync(make_scale(to.data, to.tensor->bytes()), scale, sizeof(Fp8Scale), cudaMemcpyDefault,
                            stream(s)),
            "copying an fp8 scale");
    return;
  }
  if (from.tensor->elements() != to.tensor->elements())
    throw std::logic_error("kernel cast: tensors differ in their number of elements");
  if (to_fp8) {
    quantise(stream(s), processors, from.data, from.tensor->dtype, to.data, to.tensor->elements(),
             make_scale(to.data, to.tensor->bytes()));
  } else {
    dequantise(stream(s), from.data, scale_of(from.data), to.data, to.tensor->dtype, to.tensor->elements());
  }
}

void CudaBackend::State::run_kernel(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                                    const KernelContext& context, Stream s) {
  Launch launch{.stream = stream(s), .processors = processors};
  launch.scratch_bytes = scratch_bytes(op, reads, writes, processors);
  if (launch.scratch_bytes > 0) launch.scratch = scratch(s, launch.scratch_bytes).data;
  launch.query_positions = positions(context.query_positions);
  launch.key_positions = positions(context.key_positions);
  launch.expert_of_slot = positions(context.expert_of_slot);
  cuda::run_kernel(op, reads, writes, context, launch);
}

void CudaBackend::State::run_host(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                                  const KernelContext& context) {
  refuse_capture("an op of the CPU");
  auto work = std::make_unique<HostWork>();
  work->op = op;
  work->reads.assign(reads.begin(), reads.end());
  work->writes.assign(writes.begin(), writes.end());
  work->tensors.reserve(reads.size() + writes.size());
  for (std::vector<Operand>* operands : {&work->reads, &work->writes})
    for (Operand& operand : *operands)
      if (operand.tensor != nullptr) operand.tensor = &work->tensors.emplace_back(*operand.tensor);
  work->context = context;
  work->query_positions.assign(context.query_positions.begin(), context.query_positions.end());
  work->key_positions.assign(context.key_positions.begin(), context.key_positions.end());
  work->context.query_positions = work->query_positions;
  work->context.key_positions = work->key_positions;
  work->mutex = &host_mutex;
  work->failure = &host_failure;
  check(cudaLaunchHostFunc(stream(Stream::host), run_host_work, work.get()), "issuing an op to the CPU");
  work.release();
}

// ---- The interface ----

CudaBackend::CudaBackend(int device, bool tf32) : state_(std::make_unique<State>(device, tf32)) {}
CudaBackend::~CudaBackend() = default;

BackendFacts CudaBackend::facts() const {
  state_->use();
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, state_->device), "asking for the GPU's properties");
  constexpr std::size_t kMajor = 10000, kMinor = 100;  // decimal places of cublasLtGetVersion
  const std::size_t blas = cublasLtGetVersion();
  BackendFacts facts;
  facts.kind = "cuda";
  facts.device = properties.name;
  facts.software = fmt::format("{}, driver {}, cuBLASLt {}.{}.{}", version_text(CUDART_VERSION), driver_text(),
                               blas / kMajor, blas % kMajor / kMinor, blas % kMinor);
  facts.processors = state_->processors;
  facts.memory_bytes = static_cast<double>(properties.totalGlobalMem);
  facts.asynchronous_streams = true;
  return facts;
}

void* CudaBackend::allocate(std::int64_t elements, Dtype dtype, Place place, Stream stream) {
  state_->refuse_capture("memory is allocated");
  return state_->memory.allocate(bytes_of(dtype, elements), place, state_->stream(stream));
}

void CudaBackend::release(void* memory) noexcept {
  if (memory == nullptr) return;
  state_->forget_scales(memory, state_->memory.bytes_at(memory));
  state_->memory.release(memory, state_->streams[static_cast<std::size_t>(Stream::compute)]);
}

void CudaBackend::fill(Stream stream, const Slice& to, float value) {
  cuda::fill(state_->stream(stream), state_->slice(to), value);
}

void CudaBackend::copy(Stream stream, void* to, const void* from, std::int64_t bytes) {
  const cudaStream_t on = state_->stream(stream);
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, on), "copying");
  if (const Fp8Scale* const scale = state_->scale_of(from))
    check(cudaMemcpyAsync(state_->make_scale(to, bytes), scale, sizeof(Fp8Scale), cudaMemcpyDefault, on),
          "copying an fp8 scale");
}

void CudaBackend::gather(Stream stream, const Slice& from, void* to) {
  cuda::gather(state_->stream(stream), state_->slice(from), to);
}

void CudaBackend::scatter(Stream stream, const void* from, const Slice& to, bool add) {
  cuda::scatter(state_->stream(stream), from, state_->slice(to), add);
}

void CudaBackend::sum(Stream stream, std::span<const void* const> parts, void* to, std::int64_t elements, Dtype dtype) {
  cuda::sum(state_->stream(stream), parts, to, elements, dtype);
}

void CudaBackend::merge_statistics(Stream stream, std::span<const void* const> parts, void* to, std::int64_t tokens) {
  cuda::merge_statistics(state_->stream(stream), parts, to, tokens);
}

namespace {

// The address of elements [begin, begin + elements) of a dense device slice.
void* part_of(const DeviceSlice& s, std::int64_t begin) {
  return static_cast<char*>(s.base) + (s.offset + begin) * bytes_of(s.dtype, 1);
}

// Memory of a backend for the duration of one call.
class Held {
 public:
  Held(Memory& memory, std::int64_t bytes, Place place, cudaStream_t stream)
      : memory_(memory), data_(memory.allocate(bytes, place, stream)) {}
  ~Held() { memory_.release(data_, nullptr); }  // the call has waited for its uses
  Held(const Held&) = delete;
  void* data() const { return data_; }

 private:
  Memory& memory_;
  void* data_;
};

}  // namespace

void CudaBackend::write(const Slice& to, std::span<const float> values) {
  State& s = *state_;
  s.synchronize();
  const DeviceSlice slice = s.slice(to);
  if (static_cast<std::int64_t>(values.size()) != slice.elements)
    throw std::logic_error("write: not as many values as the slice has elements");
  if (slice.elements == 0) return;
  s.forget_scales(part_of(slice, 0), 1);
  const cudaStream_t on = s.stream(Stream::host_to_device);
  const std::int64_t size = bytes_of(slice.dtype, 1), chunk = std::min(kTransferElements, slice.elements);
  const Held staging(s.memory, chunk * size, Place::host, on);
  const bool dense = slice.starts == nullptr;
  const Held whole(s.memory, dense ? 1 : slice.elements * size, Place::device, on);
  for (std::int64_t begin = 0; begin < slice.elements; begin += chunk) {
    const std::int64_t elements = std::min(chunk, slice.elements - begin);
    from_floats(values.data() + begin, staging.data(), slice.dtype, elements);
    void* const target = dense ? part_of(slice, begin) : static_cast<char*>(whole.data()) + begin * size;
    check(cudaMemcpyAsync(target, staging.data(), static_cast<std::size_t>(elements * size), cudaMemcpyDefault, on),
          "writing values");
    check(cudaStreamSynchronize(on), "writing values");
  }
  if (dense) return;
  cuda::scatter(on, whole.data(), slice, false);
  check(cudaStreamSynchronize(on), "writing values");
}

void CudaBackend::read(const Slice& from, std::span<float> values) {
  State& s = *state_;
  s.synchronize();
  const DeviceSlice slice = s.slice(from);
  if (static_cast<std::int64_t>(values.size()) != slice.elements)
    throw std::logic_error("read: not as many values as the slice has elements");
  if (slice.elements == 0) return;
  const cudaStream_t on = s.stream(Stream::device_to_host);
  const std::int64_t size = bytes_of(slice.dtype, 1), chunk = std::min(kTransferElements, slice.elements);
  const Held staging(s.memory, chunk * size, Place::host, on);
  const bool dense = slice.starts == nullptr;
  const Held whole(s.memory, dense ? 1 : slice.elements * size, Place::device, on);
  if (!dense) cuda::gather(on, slice, whole.data());
  for (std::int64_t begin = 0; begin < slice.elements; begin += chunk) {
    const std::int64_t elements = std::min(chunk, slice.elements - begin);
    const void* const source = dense ? part_of(slice, begin) : static_cast<char*>(whole.data()) + begin * size;
    check(cudaMemcpyAsync(staging.data(), source, static_cast<std::size_t>(elements * size), cudaMemcpyDefault, on),
          "reading values");
    check(cudaStreamSynchronize(on), "reading values");
    to_floats(staging.data(), slice.dtype, values.data() + begin, elements);
  }
  const Fp8Scale* const scale = slice.dtype == Dtype::fp8 && dense ? s.scale_of(part_of(slice, 0)) : nullptr;
  if (scale == nullptr) return;
  Fp8Scale known;
  check(cudaMemcpy(&known, scale, sizeof known, cudaMemcpyDefault), "reading an fp8 scale");
  for (float& v : values) v *= known.scale;
}

bool CudaBackend::has_nan(const Slice& slice) {
  State& s = *state_;
  s.synchronize();
  const cudaStream_t on = s.stream(Stream::device_to_host);
  if (s.nan_flag == nullptr)
    s.nan_flag = static_cast<std::int32_t*>(s.memory.allocate(sizeof(std::int32_t), Place::device, on));
  check(cudaMemsetAsync(s.nan_flag, 0, sizeof(std::int32_t), on), "clearing a flag");
  find_nan(on, s.slice(slice), s.nan_flag);
  std::int32_t found = 0;
  check(cudaMemcpyAsync(&found, s.nan_flag, sizeof found, cudaMemcpyDefault, on), "reading a flag");
  check(cudaStreamSynchronize(on), "looking for NaN");
  return found != 0;
}

void CudaBackend::run(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                      const KernelContext& context) {
  State& s = *state_;
  s.use();
  if (op.stream == Stream::host) return s.run_host(op, reads, writes, context);
  if (is_matmul(op.kind)) {
    if (op.accumulate && traits_of(op.kind).accumulates == 0)
      throw std::logic_error(fmt::format("kernel {} ({}) does not add to what it writes", name_of(op.kind), op.name));
    s.sizes_follow_data = context.rows_are_counted;
    return s.run_matmul(op, reads, writes, op.stream);
  }
  if (op.kind == OpKind::cast) return s.run_cast(op, reads, writes, context, op.stream);
  s.run_kernel(op, reads, writes, context, op.stream);
}

Backend::Event CudaBackend::record(Stream stream) {
  const cudaStream_t on = state_->stream(stream);
  return state_->events.record(stream, on);
}
void CudaBackend::wait(Stream stream, Event event) { state_->events.wait(state_->stream(stream), event); }
bool CudaBackend::done(Event event) {
  state_->use();
  return state_->events.done(event);
}
void CudaBackend::synchronize(Stream stream) { state_->synchronize(stream); }
void CudaBackend::synchronize() {
  state_->use();
  state_->synchronize();
  check(cudaGetLastError(), "work on the GPU");
}

Backend::Mark CudaBackend::mark(Stream stream) { return state_->marks.mark(state_->stream(stream)); }
double CudaBackend::seconds(Mark from, Mark to) { return state_->marks.seconds(from, to); }
void CudaBackend::forget_marks() { state_->marks.forget(); }

int CudaBackend::device() const { return state_->device; }
CUstream_st* CudaBackend::stream(Stream stream) { return state_->stream(stream); }

CudaBackend::MemoryUse CudaBackend::memory_use() const {
  const MemoryCounters& c = state_->memory.counters();
  return {c.device, c.device_peak, c.host, c.host_peak};
}
void CudaBackend::reset_peaks() { state_->memory.reset_peaks(); }

void CudaBackend::begin_capture(Stream stream) {
  State& s = *state_;
  s.refuse_capture("another capture begins");
  s.synchronize();
  // Thread-local: other ranks of the process go on undisturbed.
  check(cudaStreamBeginCapture(s.stream(stream), cudaStreamCaptureModeThreadLocal), "beginning a capture");
  s.capturing = true;
  s.capture_stream = stream;
  s.events.begin_capture();
}

CudaBackend::Graph CudaBackend::end_capture() {
  State& s = *state_;
  if (!s.capturing) throw std::logic_error("end_capture() without begin_capture()");
  s.capturing = false;
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaStreamEndCapture(s.stream(s.capture_stream), &graph);
  s.events.end_capture();
  check(error, "ending a capture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(made, "making a graph of a capture");
  s.graphs.push_back(executable);
  return s.graphs.size() - 1;
}

void CudaBackend::replay(Stream stream, Graph graph) {
  check(cudaGraphLaunch(state_->graphs.at(static_cast<std::size_t>(graph)), state_->stream(stream)),
        "replaying a graph");
}

std::unique_ptr<Backend> make_cuda_backend(int device, bool tf32) {
  return std::make_unique<CudaBackend>(device, tf32);
}
bool built_with_cuda() { return true; }

std::vector<std::string> cuda_devices() {
  require_device(0);
  int count = 0;
  check(cudaGetDeviceCount(&count), "counting the GPUs");
  std::vector<std::string> devices;
  for (int device = 0; device < count; ++device) {
    std::array<char, 32> address{};  // "0000:3b:00.0"
    check(cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), device),
          "asking for a GPU's address");
    devices.emplace_back(address.data());
  }
  return devices;
}

}  // namespace orrery
