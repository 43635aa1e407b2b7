#include "tests/realrun/cuda_runtime/stand_in.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "realrun/backend.h"
#include "realrun/cuda/host_kernels.h"
#include "realrun/cuda/host_numbers.h"
#include "realrun/cuda/kernels.h"

using orrery::Dtype;

// --- Streams and events

using Task = std::function<bool()>;  // false: not done, to be tried again

struct CUstream_st {
  std::deque<Task> queue;
  std::uint64_t done = 0;

  std::uint64_t issued() const { return done + queue.size(); }
  // As far as it goes; whether it got there. Under the lock.
  bool advance(std::uint64_t to);
};

struct CUevent_st {
  CUstream_st* stream = nullptr;
  std::uint64_t position = 0;
  bool timed = true;
  std::chrono::steady_clock::time_point time;
  double clock = 0;  // seconds, where the test has chosen one
};

namespace {

std::recursive_mutex mutex;
std::set<CUstream_st*> streams;
orrery::cuda_stand_in::Facts known;
std::int64_t memory_bytes = std::int64_t{1} << 40;
int driver_version = CUDART_VERSION, device_count = 1;
thread_local cudaError_t last_error = cudaSuccess;

using Lock = std::lock_guard<std::recursive_mutex>;

cudaError_t failed(cudaError_t error) { return last_error = error; }

void push_task(cudaStream_t stream, Task task) {
  const Lock lock(mutex);
  stream->queue.push_back(std::move(task));
}
void push(cudaStream_t stream, std::function<void()> work) {
  push_task(stream, [work = std::move(work)] { return work(), true; });
}

// Not under the lock: what the stream waits for may need other threads.
void wait_for(CUstream_st* stream, std::uint64_t to) {
  constexpr std::chrono::microseconds kBetweenTries{20};
  while (true) {
    {
      const Lock lock(mutex);
      if (stream->advance(to)) return;
      orrery::cuda_stand_in::go_on();
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
}

cudaStream_t new_stream() {
  const Lock lock(mutex);
  return *streams.insert(new CUstream_st).first;
}

// What streams have done since the clock was last asked, in their order.
enum class Kind { product, copy, event };
struct Happening {
  Kind kind = Kind::event;
  double left = 0;  // seconds at full speed
  cudaEvent_t event = nullptr;
};
std::optional<orrery::cuda_stand_in::Clock> chosen_clock;
double clock_seconds = 0;
std::vector<std::pair<cudaStream_t, std::deque<Happening>>> happened;

void happen(cudaStream_t stream, const Happening& what) {
  for (auto& [known_stream, all] : happened)
    if (known_stream == stream) return all.push_back(what);
  happened.push_back({stream, {what}});
}

// Runs the clock until all of it is done.
void run_clock() {
  const orrery::cuda_stand_in::Clock& c = *chosen_clock;
  while (!happened.empty()) {
    for (auto& [stream, all] : happened)
      while (!all.empty() && all.front().kind == Kind::event) {
        all.front().event->clock = clock_seconds;
        all.pop_front();
      }
    std::erase_if(happened, [](const auto& stream) { return stream.second.empty(); });
    if (happened.empty()) return;
    const auto runs = [&](Kind kind) {
      return std::any_of(happened.begin(), happened.end(),
                         [&](const auto& s) { return s.second.front().kind == kind; });
    };
    const bool both = runs(Kind::product) && runs(Kind::copy) && !c.take_turns;
    const std::size_t running = c.take_turns ? 1 : happened.size();
    const auto times = [&](const Happening& h) {
      return !both ? 1 : 1 + (h.kind == Kind::product ? c.product_slowdown : c.copy_slowdown);
    };
    double next = std::numeric_limits<double>::infinity();
    for (std::size_t s = 0; s < running; ++s) {
      const Happening& h = happened[s].second.front();
      next = std::min(next, h.left * times(h));
    }
    clock_seconds += next;
    constexpr double kRounding = 1e-12;
    for (std::size_t s = 0; s < running; ++s) {
      std::deque<Happening>& all = happened[s].second;
      all.front().left -= next / times(all.front());
      if (all.front().left < kRounding) all.pop_front();
    }
    std::erase_if(happened, [](const auto& stream) { return stream.second.empty(); });
  }
}

// Allocations, to find what is freed twice or used outside.
struct Allocation {
  std::size_t bytes = 0;
  bool device = false;
};
std::map<const void*, Allocation> allocations;

constexpr std::size_t kAlignment = 256;

void* new_memory(std::size_t bytes, bool device) {
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* const memory = std::aligned_alloc(kAlignment, std::max(rounded, kAlignment));
  std::memset(memory, 0xff, rounded);  // a NaN in every floating-point format
  allocations[memory] = {bytes, device};
  if (device) {
    known.device_bytes += static_cast<std::int64_t>(bytes);
    known.device_peak = std::max(known.device_peak, known.device_bytes);
  }
  return memory;
}

cudaError_t free_memory(void* memory) {
  const auto found = allocations.find(memory);
  if (found == allocations.end()) return failed(cudaErrorInvalidValue);
  if (found->second.device) known.device_bytes -= static_cast<std::int64_t>(found->second.bytes);
  allocations.erase(found);
  std::free(memory);
  return cudaSuccess;
}

}  // namespace

bool CUstream_st::advance(std::uint64_t to) {
  while (done < to) {
    if (!queue.front()()) return false;
    queue.pop_front();
    ++done;
    ++known.tasks;
  }
  return true;
}

namespace orrery::cuda_stand_in {
Facts facts() {
  const Lock lock(mutex);
  return known;
}
void set_memory(std::int64_t bytes) { memory_bytes = bytes; }
void set_driver(int version, int devices) {
  driver_version = version;
  device_count = devices;
}
void set_clock(const Clock& clock) {
  const Lock lock(mutex);
  chosen_clock = clock;
  happened.clear();
}
void unset_clock() {
  const Lock lock(mutex);
  chosen_clock.reset();
  happened.clear();
}
void go_on() {
  const Lock lock(mutex);
  for (CUstream_st* stream : streams) stream->advance(stream->done + (stream->queue.empty() ? 0 : 1));
}
void push(CUstream_st* stream, std::function<bool()> task) { push_task(stream, std::move(task)); }
bool is_allocated(const void* memory, std::int64_t bytes) {
  const Lock lock(mutex);
  auto after = allocations.upper_bound(memory);
  if (after == allocations.begin()) return false;
  const auto& [begin, allocation] = *--after;
  const auto offset = static_cast<const char*>(memory) - static_cast<const char*>(begin);
  return offset + bytes <= static_cast<std::int64_t>(allocation.bytes);
}
void keep_streams_going() {
  static const std::jthread device([](const std::stop_token& stop) {
    constexpr std::chrono::milliseconds kBetweenTasks{1};
    while (!stop.stop_requested()) {
      go_on();
      std::this_thread::sleep_for(kBetweenTasks);
    }
  });
}
}  // namespace orrery::cuda_stand_in

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) { return *version = driver_version, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = device_count, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 4, cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char* address, int length, int device) {
  return std::snprintf(address, static_cast<std::size_t>(length), "0000:%02x:00.0", device), cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "stand-in");
  properties->totalGlobalMem = static_cast<std::size_t>(memory_bytes);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -1, cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) { return "stand-in error"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the stand-in"; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return *stream = new_stream(), cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return *stream = new_stream(), cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  std::uint64_t issued = 0;
  {
    const Lock lock(mutex);
    issued = stream->issued();
  }
  wait_for(stream, issued);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Lock lock(mutex);
  if (stream->queue.empty()) return cudaSuccess;
  stream->advance(stream->done + 1);
  return failed(cudaErrorNotReady);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cudaStreamSynchronize(stream);
  const Lock lock(mutex);
  streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(mutex);
  if (event->stream == nullptr || event->stream == stream) return cudaSuccess;
  push_task(stream, [from = event->stream, position = event->position] {
    return streams.count(from) == 0 || from->advance(position);
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new CUevent_st, cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(mutex);
  event->stream = stream;
  if (event->timed)
    push(stream, [event, stream] {
      event->time = std::chrono::steady_clock::now();
      if (chosen_clock) happen(stream, {Kind::event, 0, event});
    });
  event->position = stream->issued();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(mutex);
  if (event->stream == nullptr || event->stream->done >= event->position) return cudaSuccess;
  event->stream->advance(event->stream->done + 1);
  return failed(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  wait_for(event->stream, event->position);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const Lock lock(mutex);
  if (end->stream->done < end->position) return failed(cudaErrorNotReady);
  if (chosen_clock) {
    run_clock();
    constexpr double kMilliseconds = 1e3;
    *milliseconds = static_cast<float>(kMilliseconds * (end->clock - begin->clock));
    return cudaSuccess;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return cudaSuccess;
}

// --- Memory

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) { return *pool = nullptr, cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = static_cast<std::size_t>(memory_bytes);
  *free = static_cast<std::size_t>(memory_bytes - known.device_bytes);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t) {
  const Lock lock(mutex);
  if (known.device_bytes + static_cast<std::int64_t>(bytes) > memory_bytes) return failed(cudaErrorMemoryAllocation);
  *memory = new_memory(bytes, true);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  push(stream, [memory] { free_memory(memory); });
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  const Lock lock(mutex);
  *memory = new_memory(bytes, false);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  const Lock lock(mutex);
  return free_memory(memory);
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  push(stream, [=] {
    std::memmove(to, from, bytes);
    if (chosen_clock)
      happen(stream, {Kind::copy, static_cast<double>(bytes) / chosen_clock->copy_bytes_per_second, nullptr});
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  push(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  push(stream, [=] { function(data); });
  return cudaSuccess;
}

}  // extern "C"

// --- cuBLASLt

namespace {

struct Layout {
  std::uint32_t type;
  std::int32_t batch;
  std::uint64_t rows, columns;
  std::int64_t leading, stride;
};
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));

struct Operation {
  std::int32_t compute, transpose_a, transpose_b, bias_type;
  std::uint32_t epilogue;
  const void* bias;
  const float *a_scale, *b_scale;
  std::int64_t bias_stride;
};
static_assert(sizeof(Operation) <= sizeof(cublasLtMatmulDescOpaque_t));

struct Preference {
  std::uint64_t workspace;
  std::uint32_t a, b, c, d;
};
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));

template <class Known, class Opaque>
Known& as(Opaque* opaque) {
  return *reinterpret_cast<Known*>(opaque);
}

Dtype dtype_of(std::uint32_t type) {
  switch (type) {
    case CUDA_R_32F:
      return Dtype::fp32;
    case CUDA_R_16F:
      return Dtype::fp16;
    case CUDA_R_16BF:
      return Dtype::bf16;
    case CUDA_R_8F_E4M3:
      return Dtype::fp8;
    default:
      throw std::logic_error("cuBLASLt: an unknown type");
  }
}

float load(const void* data, Dtype dtype, std::int64_t i) {
  float value = 0;
  orrery::cuda::to_floats(static_cast<const char*>(data) + i * orrery::bytes_of(dtype, 1), dtype, &value, 1);
  return value;
}
void store(void* data, Dtype dtype, std::int64_t i, float value) {
  orrery::cuda::from_floats(&value, static_cast<char*>(data) + i * orrery::bytes_of(dtype, 1), dtype, 1);
}

// The manual's table of types, and the demands on fp8.
bool is_supported(const Operation& o, const Layout& a, const Layout& b, const Layout& c) {
  if (a.type != b.type || a.batch != c.batch || b.batch != c.batch) return false;
  const bool fp8 = a.type == CUDA_R_8F_E4M3;
  if (!fp8 && c.type != a.type && c.type != CUDA_R_32F) return false;
  if (fp8) {
    constexpr std::int64_t kMultiple = 16;
    if (o.transpose_a != CUBLAS_OP_T || o.transpose_b != CUBLAS_OP_N) return false;
    if (a.leading % kMultiple != 0 || b.leading % kMultiple != 0 || c.leading % kMultiple != 0) return false;
  }
  return o.epilogue != CUBLASLT_EPILOGUE_BIAS || o.bias_type == static_cast<std::int32_t>(c.type);
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return *handle = nullptr, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
std::size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
const char* cublasLtGetStatusName(cublasStatus_t) { return "stand-in status"; }

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, std::size_t, cublasComputeType_t compute,
                                               cudaDataType_t) {
  as<Operation>(desc) = {.compute = compute,
                         .transpose_a = CUBLAS_OP_N,
                         .transpose_b = CUBLAS_OP_N,
                         .bias_type = -1,
                         .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                         .bias = nullptr,
                         .a_scale = nullptr,
                         .b_scale = nullptr,
                         .bias_stride = 0};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  auto& o = as<Operation>(desc);
  const auto set = [&](auto& field) {
    if (bytes != sizeof field) throw std::logic_error("cuBLASLt: an attribute of another size");
    std::memcpy(&field, value, bytes);
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      set(o.transpose_a);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      set(o.transpose_b);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      set(o.epilogue);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      set(o.bias_type);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      set(o.bias);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
      set(o.bias_stride);
      break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      set(o.a_scale);
      break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      set(o.b_scale);
      break;
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      if (bytes != 1) throw std::logic_error("cuBLASLt: an attribute of another size");
      break;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, std::size_t, cudaDataType type,
                                                 std::uint64_t rows, std::uint64_t columns, std::int64_t leading) {
  as<Layout>(layout) = {static_cast<std::uint32_t>(type), 1, rows, columns, leading, 0};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
  auto& l = as<Layout>(layout);
  const auto set = [&](auto& field) {
    if (bytes != sizeof field) throw std::logic_error("cuBLASLt: an attribute of another size");
    std::memcpy(&field, value, bytes);
  };
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return set(l.batch), CUBLAS_STATUS_SUCCESS;
  if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) return set(l.stride), CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, std::size_t) {
  as<Preference>(preference) = {0, kAlignment, kAlignment, kAlignment, kAlignment};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  auto& p = as<Preference>(preference);
  const auto set = [&](auto& field) {
    if (bytes != sizeof field) throw std::logic_error("cuBLASLt: an attribute of another size");
    std::memcpy(&field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(p.workspace);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(p.a);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(p.b);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(p.c);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(p.d);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}
// A candidate remembers the alignment that it was chosen for, and demands it.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  const Lock lock(mutex);
  ++known.heuristics;
  *found = 0;
  if (!is_supported(as<Operation>(operation), as<Layout>(a), as<Layout>(b), as<Layout>(c)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  constexpr int kCandidates = 3;
  for (; *found < std::min(wanted, kCandidates); ++*found) {
    results[*found] = {};
    as<Preference>(&results[*found].algo) = as<Preference>(preference);
    results[*found].state = *found == 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  const auto& chosen_for = *reinterpret_cast<const Preference*>(algorithm);
  const auto aligned = [](const void* p, std::uint32_t to) { return reinterpret_cast<std::uintptr_t>(p) % to == 0; };
  if (!aligned(a, chosen_for.a) || !aligned(b, chosen_for.b) || !aligned(c, chosen_for.c) ||
      workspace_bytes < chosen_for.workspace || workspace == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  const Operation o = as<Operation>(operation);
  const Layout la = as<Layout>(a_layout), lb = as<Layout>(b_layout), lc = as<Layout>(c_layout);
  if (!is_supported(o, la, lb, lc)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const float factor = *static_cast<const float*>(beta), of_product = *static_cast<const float*>(alpha);
  push(stream, [=] {
    ++known.products;
    if (chosen_clock) happen(stream, {Kind::product, chosen_clock->product_seconds, nullptr});
    const Dtype ta = dtype_of(la.type), tb = dtype_of(lb.type), tc = dtype_of(lc.type);
    const auto m = static_cast<std::int64_t>(lc.rows), n = static_cast<std::int64_t>(lc.columns);
    const auto k = static_cast<std::int64_t>(o.transpose_a == CUBLAS_OP_T ? la.rows : la.columns);
    const float scale = (o.a_scale != nullptr ? *o.a_scale : 1) * (o.b_scale != nullptr ? *o.b_scale : 1);
    for (std::int64_t batch = 0; batch < lc.batch; ++batch)
      for (std::int64_t column = 0; column < n; ++column)
        for (std::int64_t row = 0; row < m; ++row) {
          float sum = 0;
          for (std::int64_t i = 0; i < k; ++i) {
            const std::int64_t at_a = o.transpose_a == CUBLAS_OP_T ? row * la.leading + i : i * la.leading + row;
            const std::int64_t at_b = o.transpose_b == CUBLAS_OP_T ? i * lb.leading + column : column * lb.leading + i;
            sum += load(a, ta, batch * la.stride + at_a) * load(b, tb, batch * lb.stride + at_b);
          }
          sum *= of_product * scale;
          const std::int64_t at = batch * lc.stride + column * lc.leading + row;
          if (factor != 0) sum += factor * load(c, tc, at);
          if (o.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += load(o.bias, tc, batch * o.bias_stride + row);
          store(d, tc, at, sum);
        }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"

// --- The kernels, as their headers promise them

namespace orrery::cuda {
namespace {

std::vector<float> values_of(const void* data, Dtype dtype, std::int64_t elements) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  to_floats(data, dtype, values.data(), elements);
  return values;
}

Workers& nobody() {
  static Workers none(0);
  return none;
}

std::vector<std::int64_t> elements_of(const DeviceSlice& s) {
  std::vector<std::int64_t> elements(static_cast<std::size_t>(s.elements));
  for (std::int64_t i = 0; i < s.elements; ++i)
    elements[static_cast<std::size_t>(i)] = s.offset + (s.starts == nullptr ? i : s.starts[i / s.run] + i % s.run);
  return elements;
}

}  // namespace

std::int64_t scratch_bytes(const Op& op, std::span<const Operand>, std::span<const Operand>, std::int64_t) {
  return op.kind == OpKind::norm_backward ? 1024 : 0;
}

void run_kernel(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                const KernelContext& context, const Launch& launch) {
  // As after every launch: an error that somebody left behind ends the run.
  if (cudaGetLastError() != cudaSuccess) throw orrery::DeviceError("a launch failed");
  if (op.kind == OpKind::norm_backward && launch.scratch == nullptr) throw std::logic_error("no scratch memory");
  struct Held {
    std::vector<Operand> reads, writes;
    std::vector<Tensor> tensors;
  };
  const auto held = std::make_shared<Held>();
  held->reads.assign(reads.begin(), reads.end());
  held->writes.assign(writes.begin(), writes.end());
  held->tensors.reserve(reads.size() + writes.size());
  for (std::vector<Operand>* operands : {&held->reads, &held->writes})
    for (Operand& o : *operands)
      if (o.tensor != nullptr) o.tensor = &held->tensors.emplace_back(*o.tensor);
  push(launch.stream, [held, op, context, launch] {
    KernelContext here = context;  // positions as the device has them
    here.query_positions = {launch.query_positions, context.query_positions.size()};
    here.key_positions = {launch.key_positions, context.key_positions.size()};
    run_on_host(op, held->reads, held->writes, here, nobody());
  });
}

IndexPlan plan_index(std::span<const std::int64_t> index) { return {{index.begin(), index.end()}, 1, 1}; }

void fill(CUstream_st* stream, const DeviceSlice& to, float value) {
  push(stream, [=] {
    for (const std::int64_t i : elements_of(to)) store(to.base, to.dtype, i, value);
  });
}
void gather(CUstream_st* stream, const DeviceSlice& from, void* to) {
  push(stream, [=] {
    std::int64_t at = 0;
    const std::int64_t size = bytes_of(from.dtype, 1);
    for (const std::int64_t i : elements_of(from))
      std::memcpy(static_cast<char*>(to) + at++ * size, static_cast<const char*>(from.base) + i * size,
                  static_cast<std::size_t>(size));
  });
}
void scatter(CUstream_st* stream, const void* from, const DeviceSlice& to, bool add) {
  push(stream, [=] {
    std::int64_t at = 0;
    const std::int64_t size = bytes_of(to.dtype, 1);
    for (const std::int64_t i : elements_of(to)) {
      if (add) {
        store(to.base, to.dtype, i, load(to.base, to.dtype, i) + load(from, to.dtype, at));
      } else {
        std::memcpy(static_cast<char*>(to.base) + i * size, static_cast<const char*>(from) + at * size,
                    static_cast<std::size_t>(size));
      }
      ++at;
    }
  });
}
void sum(CUstream_st* stream, std::span<const void* const> parts, void* to, std::int64_t elements, Dtype dtype) {
  push(stream, [=, all = std::vector<const void*>(parts.begin(), parts.end())] {
    std::vector<float> total(static_cast<std::size_t>(elements));
    for (const void* const part : all) {
      const std::vector<float> values = values_of(part, dtype, elements);
      for (std::size_t i = 0; i < total.size(); ++i) total[i] += values[i];
    }
    from_floats(total.data(), to, dtype, elements);
  });
}
void merge_statistics(CUstream_st* stream, std::span<const void* const> parts, void* to, std::int64_t tokens) {
  push(stream, [=, all = std::vector<const void*>(parts.begin(), parts.end())] {
    std::vector<float> merged(static_cast<std::size_t>(3 * tokens));
    for (std::int64_t t = 0; t < tokens; ++t) {
      float maximum = -std::numeric_limits<float>::infinity(), total = 0, target = 0;
      for (const void* const part : all) maximum = std::max(maximum, static_cast<const float*>(part)[t]);
      for (const void* const part : all) {
        const auto* const s = static_cast<const float*>(part);
        total += s[tokens + t] * std::exp(s[t] - maximum);
        target += s[2 * tokens + t];
      }
      merged[static_cast<std::size_t>(t)] = maximum;
      merged[static_cast<std::size_t>(tokens + t)] = total;
      merged[static_cast<std::size_t>(2 * tokens + t)] = target;
    }
    std::memcpy(to, merged.data(), merged.size() * sizeof(float));
  });
}
void find_nan(CUstream_st* stream, const DeviceSlice& slice, std::int32_t* flag) {
  push(stream, [=] {
    for (const std::int64_t i : elements_of(slice))
      if (std::isnan(load(slice.base, slice.dtype, i))) *flag = 1;
  });
}

void quantise(cudaStream_t stream, std::int64_t, const void* from, Dtype from_dtype, void* to, std::int64_t elements,
              Fp8Scale* scale) {
  push(stream, [=] {
    std::vector<float> values = values_of(from, from_dtype, elements);
    scale->largest = 0;
    for (const float v : values) scale->largest = std::max(scale->largest, std::abs(v));
    scale->scale = scale->largest == 0 ? 1 : scale->largest / kLargestFp8;
    for (float& v : values) v /= scale->scale;
    from_floats(values.data(), to, Dtype::fp8, elements);
  });
}
void dequantise(cudaStream_t stream, const void* from, const Fp8Scale* scale, void* to, Dtype to_dtype,
                std::int64_t elements) {
  push(stream, [=] {
    std::vector<float> values = values_of(from, Dtype::fp8, elements);
    for (float& v : values) v *= scale == nullptr ? 1 : scale->scale;
    from_floats(values.data(), to, to_dtype, elements);
  });
}
void transpose_bytes(cudaStream_t stream, const void* from, void* to, std::int64_t rows, std::int64_t columns) {
  push(stream, [=] {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        static_cast<std::uint8_t*>(to)[c * rows + r] = static_cast<const std::uint8_t*>(from)[r * columns + c];
  });
}

}  // namespace orrery::cuda
