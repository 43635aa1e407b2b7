#include "realrun/cuda/backend.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "realrun/cuda/host_kernels.h"
#include "realrun/cuda/host_numbers.h"
#include "realrun/cuda/kernels.h"
#include "realrun/cuda/matmul.h"
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

bool is_aligned(const void* pointer, std::uintptr_t to) { return reinterpret_cast<std::uintptr_t>(pointer) % to == 0; }

const void* at(const void* data, std::int64_t elements, Dtype dtype) {
  return static_cast<const char*>(data) + elements * bytes_of(dtype, 1);
}

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

// Returns the number of a GPU that is usable and now in use.
int chosen(int device) {
  require_device(device);
  check(cudaSetDevice(device), "choosing the GPU");
  return device;
}

void run_host_work(void* data) {
  const std::unique_ptr<HostWork> work(static_cast<HostWork*>(data));
  try {
    run_on_host(work->op, work->reads, work->writes, work->context, host_workers());
  } catch (...) {
    const std::lock_guard lock(*work->mutex);
    if (!*work->failure) *work->failure = std::current_exception();
  }
}

// The address of elements [begin, begin + elements) of a dense device slice.
void* part_of(const DeviceSlice& s, std::int64_t begin) {
  return static_cast<char*>(s.base) + (s.offset + begin) * bytes_of(s.dtype, 1);
}

class Gpu final : public CudaBackend {
 public:
  Gpu(int device, bool tf32) : device_(chosen(device)), memory_(device), matmul_(tf32) {
    int count = 0;
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "asking for the multiprocessors");
    processors_ = count;
  }
  ~Gpu() override {
    cudaSetDevice(device_);
    for (const cudaStream_t s : streams_)
      if (s != nullptr) cudaStreamSynchronize(s);
    for (const cudaStream_t s : streams_)
      if (s != nullptr) cudaStreamDestroy(s);
  }

  int device() const override { return device_; }
  cudaStream_t stream(Stream s) override {
    use();
    cudaStream_t& found = streams_[static_cast<std::size_t>(s)];
    if (found != nullptr) return found;
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for stream priorities");
    check(cudaStreamCreateWithPriority(&found, cudaStreamNonBlocking, has_priority(s) ? greatest : least),
          "creating a stream");
    return found;
  }

  std::int64_t stored_bytes(Dtype dtype) const override { return bytes_of(dtype, 1); }
  BackendFacts facts() const override {
    use();
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device_), "asking for the GPU's properties");
    constexpr std::size_t kMajor = 10000, kMinor = 100;  // decimal places of cublasLtGetVersion
    const std::size_t blas = cublasLtGetVersion();
    BackendFacts facts;
    facts.kind = "cuda";
    facts.device = properties.name;
    facts.software = fmt::format("{}, driver {}, cuBLASLt {}.{}.{}", version_text(CUDART_VERSION), driver_text(),
                                 blas / kMajor, blas % kMajor / kMinor, blas % kMinor);
    facts.processors = processors_;
    facts.memory_bytes = static_cast<double>(properties.totalGlobalMem);
    facts.asynchronous_streams = true;
    return facts;
  }
  void* allocate(std::int64_t elements, Dtype dtype, Place place, Stream s) override {
    return memory_.allocate(elements * bytes_of(dtype, 1), place, stream(s));
  }
  void release(void* memory) noexcept override {
    if (memory == nullptr) return;
    forget_scales(memory, memory_.bytes_at(memory));
    memory_.release(memory, streams_[static_cast<std::size_t>(Stream::compute)]);
  }
  void fill(Stream s, const Slice& to, float value) override { cuda::fill(stream(s), slice(to), value); }
  void copy(Stream s, void* to, const void* from, std::int64_t bytes) override {
    const cudaStream_t on = stream(s);
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, on), "copying");
    copy_scale(from, to, bytes, s);
  }
  void gather(Stream s, const Slice& from, void* to) override { cuda::gather(stream(s), slice(from), to); }
  void scatter(Stream s, const void* from, const Slice& to, bool add) override {
    cuda::scatter(stream(s), from, slice(to), add);
  }
  void sum(Stream s, std::span<const void* const> parts, void* to, std::int64_t elements, Dtype dtype) override {
    cuda::sum(stream(s), parts, to, elements, dtype);
  }
  void merge_statistics(Stream s, std::span<const void* const> parts, void* to, std::int64_t tokens) override {
    cuda::merge_statistics(stream(s), parts, to, tokens);
  }
  void write(const Slice& to, std::span<const float> values) override {
    synchronize_streams();
    const DeviceSlice target = slice(to);
    if (target.elements > 0) forget_scales(part_of(target, 0), 1);
    transfer(target, values.size(), true, [&](std::int64_t begin, std::int64_t elements, void* staging) {
      from_floats(values.data() + begin, staging, target.dtype, elements);
    });
  }
  void read(const Slice& from, std::span<float> values) override {
    synchronize_streams();
    const DeviceSlice source = slice(from);
    transfer(source, values.size(), false, [&](std::int64_t begin, std::int64_t elements, const void* staging) {
      to_floats(staging, source.dtype, values.data() + begin, elements);
    });
    if (source.dtype != Dtype::fp8 || source.starts != nullptr) return;
    const Fp8Scale* const scale = scale_of(part_of(source, 0));
    if (scale == nullptr) return;
    Fp8Scale known;
    check(cudaMemcpy(&known, scale, sizeof known, cudaMemcpyDefault), "reading an fp8 scale");
    for (float& v : values) v *= known.scale;
  }
  bool has_nan(const Slice& slice) override {
    synchronize_streams();
    const cudaStream_t on = stream(Stream::device_to_host);
    std::int32_t found = 0;
    const Temporary flag(sizeof found, on);
    check(cudaMemsetAsync(flag.data(), 0, sizeof found, on), "clearing a flag");
    find_nan(on, this->slice(slice), static_cast<std::int32_t*>(flag.data()));
    check(cudaMemcpyAsync(&found, flag.data(), sizeof found, cudaMemcpyDefault, on), "reading a flag");
    check(cudaStreamSynchronize(on), "looking for NaN");
    return found != 0;
  }
  void run(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
           const KernelContext& context) override {
    use();
    if (op.stream == Stream::host) return run_host(op, reads, writes, context);
    if (is_matmul(op.kind)) {
      if (op.accumulate && traits_of(op.kind).accumulates == 0)
        throw std::logic_error(fmt::format("kernel {} ({}) does not add to what it writes", name_of(op.kind), op.name));
      sizes_follow_data_ = context.rows_are_counted;
      return run_matmul(op, reads, writes, op.stream);
    }
    if (op.kind == OpKind::cast) return run_cast(op, reads, writes, context, op.stream);
    run_kernel(op, reads, writes, context, op.stream);
  }
  Event record(Stream s) override {
    const cudaStream_t on = stream(s);
    return events_.record(s, on);
  }
  void wait(Stream s, Event event) override { events_.wait(stream(s), event); }
  bool done(Event event) override {
    use();
    return events_.done(event);
  }
  void synchronize(Stream s) override {
    const cudaStream_t waited = stream(s);
    check(cudaStreamSynchronize(waited), "work on the GPU");
    events_.all_done(s);
    throw_host_failure();
  }
  void synchronize() override {
    use();
    synchronize_streams();
    check(cudaGetLastError(), "work on the GPU");
  }
  Mark mark(Stream s) override { return marks_.mark(stream(s)); }
  double seconds(Mark from, Mark to) override { return marks_.seconds(from, to); }
  void forget_marks() override { marks_.forget(); }

 private:
  // Memory for the kernels of a stream; each op may use it in turn.
  struct Scratch {
    void* data = nullptr;
    std::int64_t bytes = 0;
  };
  struct Scaled {
    Fp8Scale* scale = nullptr;
    std::int64_t bytes = 0;
  };

  // Selects the GPU in this thread.
  void use() const {
    thread_local int current = -1;
    if (current == device_) return;
    check(cudaSetDevice(device_), "choosing the GPU");
    current = device_;
  }

  void throw_host_failure() {
    const std::lock_guard lock(host_mutex_);
    if (host_failure_) std::rethrow_exception(std::exchange(host_failure_, nullptr));
  }

  void synchronize_streams() {
    for (std::size_t s = 0; s < streams_.size(); ++s)
      if (streams_[s] != nullptr) synchronize(static_cast<Stream>(s));
  }

  // Returns at least so many bytes.
  void* room(std::array<Scratch, kStreams>& of, Stream s, std::int64_t bytes) {
    Scratch& found = of[static_cast<std::size_t>(s)];
    if (found.bytes >= bytes) return found.data;
    const cudaStream_t on = stream(s);
    if (found.data != nullptr) {  // after its last use
      synchronize(s);
      memory_.release(found.data, nullptr);
      found = {};
    }
    found = {memory_.allocate(bytes, Place::device, on), bytes};
    return found.data;
  }

  // Puts constants into device memory, once.
  const std::int64_t* place(std::span<const std::int64_t> values) {
    const auto bytes = static_cast<std::int64_t>(values.size_bytes());
    const cudaStream_t on = stream(Stream::host_to_device);
    void* const placed = memory_.allocate(bytes, Place::device, on);
    check(cudaMemcpyAsync(placed, values.data(), values.size_bytes(), cudaMemcpyDefault, on), "copying an index list");
    check(cudaStreamSynchronize(on), "copying an index list");
    return static_cast<const std::int64_t*>(placed);
  }

  const std::int64_t* positions(std::span<const std::int64_t> values) {
    if (values.empty()) return nullptr;
    for (const auto& [known, placed] : known_positions_)
      if (std::ranges::equal(known, values)) return placed;
    return known_positions_.emplace_back(std::vector(values.begin(), values.end()), place(values)).second;
  }

  DeviceSlice slice(const Slice& from) {
    if (from.index == nullptr)
      return {.base = from.base, .dtype = from.dtype, .offset = from.offset, .elements = from.elements};
    const auto [found, is_new] = indices_.try_emplace(from.index);
    DeviceSlice& s = found->second;
    if (is_new) {
      const IndexPlan plan = plan_index(*from.index);
      s = {.elements = static_cast<std::int64_t>(from.index->size()),
           .starts = place(plan.starts),
           .run = plan.run,
           .alignment = plan.alignment};
    }
    s.base = from.base;
    s.dtype = from.dtype;
    s.offset = from.offset;
    return s;
  }

  Fp8Scale* scale_of(const void* tensor) const {
    auto found = scales_.upper_bound(tensor);  // parts of a tensor, e.g. of one expert, have the scale of the whole
    if (found == scales_.begin()) return nullptr;
    --found;
    return tensor < static_cast<const char*>(found->first) + found->second.bytes ? found->second.scale : nullptr;
  }

  Fp8Scale* make_scale(const void* tensor, std::int64_t bytes) {
    // Forgets the scales of its parts, which are about to be overwritten.
    if (bytes > 1) forget_scales(static_cast<const char*>(tensor) + 1, bytes - 1);
    Scaled& scaled = scales_[tensor];
    scaled.bytes = std::max<std::int64_t>(bytes, 1);
    Fp8Scale*& found = scaled.scale;
    if (found != nullptr) return found;
    if (free_scales_.empty()) {
      const cudaStream_t on = stream(Stream::compute);
      auto* const slots = static_cast<Fp8Scale*>(
          memory_.allocate(kScaleSlots * static_cast<std::int64_t>(sizeof(Fp8Scale)), Place::device, on));
      check(cudaStreamSynchronize(on), "allocating fp8 scales");
      for (std::int64_t i = 0; i < kScaleSlots; ++i) free_scales_.push_back(slots + i);
    }
    found = free_scales_.back();
    free_scales_.pop_back();
    return found;
  }

  void copy_scale(const void* from, const void* to, std::int64_t bytes, Stream s) {
    if (const Fp8Scale* const scale = scale_of(from))
      check(cudaMemcpyAsync(make_scale(to, bytes), scale, sizeof(Fp8Scale), cudaMemcpyDefault, stream(s)),
            "copying an fp8 scale");
  }

  void forget_scales(const void* begin, std::int64_t bytes) {
    auto s = scales_.lower_bound(begin);
    while (s != scales_.end() && s->first < static_cast<const char*>(begin) + bytes) {
      free_scales_.push_back(s->second.scale);
      s = scales_.erase(s);
    }
  }

  bool run_product(const BlasProduct& product, std::span<const BlasLaunch> launches, bool fast_accumulation,
                   const Matmul::Operands& operands, Stream s) {
    const Matmul::LaunchContext context{.stream = stream(s),
                                        .workspace = room(workspaces_, s, Matmul::kWorkspaceBytes),
                                        .workspace_bytes = Matmul::kWorkspaceBytes,
                                        .may_wait = !sizes_follow_data_};
    for (const BlasLaunch& launch : launches) {
      Matmul::Operands moved = operands;
      moved.a = at(operands.a, launch.a_offset, product.a.dtype);
      moved.b = at(operands.b, launch.b_offset, product.b.dtype);
      moved.c = const_cast<void*>(at(operands.c, launch.c_offset, product.c.dtype));
      if (!matmul_.run(product, launch.accumulate, fast_accumulation, moved, context)) return false;
    }
    return true;
  }

  bool run_fp8(const Op& op, const MatmulPlan& plan, std::span<const Operand> reads, const Matmul::Operands& operands,
               Stream s) {
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
    std::optional<Temporary> a, b;
    const auto widened = [&](const Operand& from, std::optional<Temporary>& to) {
      const std::int64_t elements = from.tensor->elements();
      to.emplace(bytes_of(wide.a.dtype, elements), on);
      dequantise(on, from.data, scale_of(from.data), to->data(), wide.a.dtype, elements);
      return to->data();
    };
    moved = {.a = widened(reads[plan.a_read], a),
             .b = widened(reads[plan.b_read], b),
             .c = operands.c,
             .scale = operands.scale};
    return run_product(wide, plan.launches, false, moved, s);
  }

  void run_matmul(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes, Stream s) {
    const MatmulPlan plan = plan_matmul(op, reads, writes);
    const BlasProduct& product = plan.product;
    if (product.m == 0 || product.n == 0 || product.c.batch == 0) return;
    const auto fail = [&](const char* what) {
      throw std::logic_error(fmt::format("kernel {} ({}): {}: {} x {} -> {}, {} x {} x {}", name_of(op.kind), op.name,
                                         what, name_of(product.a.dtype), name_of(product.b.dtype),
                                         name_of(product.c.dtype), product.m, product.n, product.k));
    };
    Matmul::Operands operands{.a = reads[plan.a_read].data,
                              .b = reads[plan.b_read].data,
                              .c = writes[0].data,
                              .bias_stride = plan.bias_stride,
                              .scale = plan.scale};
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

  void run_cast(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                const KernelContext& context, Stream s) {
    const Operand &from = reads[0], &to = writes[0];
    const bool to_fp8 = to.tensor->dtype == Dtype::fp8, from_fp8 = from.tensor->dtype == Dtype::fp8;
    if (to_fp8 == from_fp8) {  // copies bytes and their scale
      run_kernel(op, reads, writes, context, s);
      if (to_fp8) copy_scale(from.data, to.data, to.tensor->bytes(), s);
      return;
    }
    if (from.tensor->elements() != to.tensor->elements())
      throw std::logic_error("kernel cast: tensors differ in their number of elements");
    if (to_fp8) {
      quantise(stream(s), processors_, from.data, from.tensor->dtype, to.data, to.tensor->elements(),
               make_scale(to.data, to.tensor->bytes()));
    } else {
      dequantise(stream(s), from.data, scale_of(from.data), to.data, to.tensor->dtype, to.tensor->elements());
    }
  }

  void run_kernel(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                  const KernelContext& context, Stream s) {
    Launch launch{.stream = stream(s), .processors = processors_};
    launch.scratch_bytes = scratch_bytes(op, reads, writes, processors_);
    if (launch.scratch_bytes > 0) launch.scratch = room(scratches_, s, launch.scratch_bytes);
    launch.query_positions = positions(context.query_positions);
    launch.key_positions = positions(context.key_positions);
    launch.expert_of_slot = positions(context.expert_of_slot);
    cuda::run_kernel(op, reads, writes, context, launch);
  }

  void run_host(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                const KernelContext& context) {
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
    work->mutex = &host_mutex_;
    work->failure = &host_failure_;
    check(cudaLaunchHostFunc(stream(Stream::host), run_host_work, work.get()), "issuing an op to the CPU");
    work.release();
  }

  // Copies a slice chunk by chunk through pinned memory: `convert(chunk's first element, elements, staging)` fills what
  // is copied to the device, or takes what has come.
  template <class Convert>
  void transfer(const DeviceSlice& slice, std::size_t values, bool to_device, Convert convert) {
    if (static_cast<std::int64_t>(values) != slice.elements)
      throw std::logic_error("write or read: not as many values as the slice has elements");
    if (slice.elements == 0) return;
    const cudaStream_t on = stream(to_device ? Stream::host_to_device : Stream::device_to_host);
    const std::int64_t size = bytes_of(slice.dtype, 1), chunk = std::min(kTransferElements, slice.elements);
    const bool dense = slice.starts == nullptr;
    const auto release = [this](void* memory) {
      memory_.release(memory, nullptr);
    };  // the call has waited for its uses
    using Held = std::unique_ptr<void, decltype(release)>;
    const Held staging(memory_.allocate(chunk * size, Place::host, on), release),
        whole(dense ? nullptr : memory_.allocate(slice.elements * size, Place::device, on), release);
    if (!dense && !to_device) cuda::gather(on, slice, whole.get());
    for (std::int64_t begin = 0; begin < slice.elements; begin += chunk) {
      const std::int64_t elements = std::min(chunk, slice.elements - begin);
      void* const there = dense ? part_of(slice, begin) : static_cast<char*>(whole.get()) + begin * size;
      if (to_device) convert(begin, elements, staging.get());
      check(cudaMemcpyAsync(to_device ? there : staging.get(), to_device ? staging.get() : there,
                            static_cast<std::size_t>(elements * size), cudaMemcpyDefault, on),
            "copying values");
      check(cudaStreamSynchronize(on), "copying values");
      if (!to_device) convert(begin, elements, staging.get());
    }
    if (dense || !to_device) return;
    cuda::scatter(on, whole.get(), slice, false);
    check(cudaStreamSynchronize(on), "copying values");
  }

  int device_;  // first: nothing uses a GPU that is not usable
  std::int64_t processors_ = 1;
  Memory memory_;
  Matmul matmul_;
  std::array<cudaStream_t, kStreams> streams_{};
  Events events_;
  Marks marks_;
  std::array<Scratch, kStreams> scratches_, workspaces_;
  std::unordered_map<const std::vector<std::int64_t>*, DeviceSlice> indices_;  // without an allocation
  // Lists and their copies on the device; few: those of the ranks' parts of a sequence.
  std::vector<std::pair<std::vector<std::int64_t>, const std::int64_t*>> known_positions_;
  std::map<const void*, Scaled> scales_;  // by the first address of the tensor that has the scale
  std::vector<Fp8Scale*> free_scales_;
  // The product's sizes depend on the data. They differ each time, so timing candidates does not pay.
  bool sizes_follow_data_ = false;

  std::mutex host_mutex_;
  std::exception_ptr host_failure_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int device, bool tf32) { return std::make_unique<Gpu>(device, tf32); }
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
