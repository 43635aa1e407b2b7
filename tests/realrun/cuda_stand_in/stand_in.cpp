#include "stand_in.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define ORRERY_FIBERS_UNDER_ASAN 1
#else
#define ORRERY_FIBERS_UNDER_ASAN 0
#endif

#if defined(__x86_64__) && !ORRERY_FIBERS_UNDER_ASAN
#define ORRERY_OWN_SWITCH 1
#else
#define ORRERY_OWN_SWITCH 0
#include <ucontext.h>
#endif

#if ORRERY_OWN_SWITCH
// Saves what a call must preserve (System V ABI) and goes on from another stack: swapcontext without its system call.
extern "C" void orrery_stand_in_switch(void** from, void* to);
asm(R"(
.text
.globl orrery_stand_in_switch
.type orrery_stand_in_switch, @function
orrery_stand_in_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size orrery_stand_in_switch, .-orrery_stand_in_switch
)");
#endif

namespace orrery::stand_in {
namespace {

constexpr unsigned kLanes = 32;
// Of compute capability 9.0: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
constexpr int kMaxThreads = 1024;
constexpr std::int64_t kMaxShared = 227 << 10;
constexpr unsigned kMaxGridYz = 65535;
constexpr std::size_t kStackBytes = 128 << 10;
constexpr unsigned char kPoison = 0xff;  // a NaN in every floating-point dtype

enum class State { ready, at_barrier, in_warp_operation, done };

struct Copy {
  void* to;
  const void* from;
  int bytes;
};

struct Fiber {
  char* stack = nullptr;
#if ORRERY_OWN_SWITCH
  void* pointer = nullptr;
#else
  ucontext_t context{};
  void* fake_stack = nullptr;
#endif
  State state = State::done;
  unsigned index = 0;
  std::vector<Copy> issued;               // since the last commit
  std::vector<std::vector<Copy>> groups;  // committed, oldest first
};

struct Warp {
  unsigned arrived = 0, mask = 0;
  const char* operation = nullptr;
  Slots slots{};
};

char* map(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("stand-in: no memory");
  return static_cast<char*>(memory);
}

struct Machine {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  unsigned threads = 0;
  Fiber* running = nullptr;
#if ORRERY_OWN_SWITCH
  void* scheduler = nullptr;
#else
  ucontext_t scheduler{};
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  std::size_t scheduler_stack_bytes = 0;
#endif
  char *shared_end = nullptr, *shared = nullptr;
  std::size_t shared_bytes = 0;
  void (*body)(void*) = nullptr;
  void* argument = nullptr;
  std::string error;
  Schedule schedule = Schedule::forward;
  std::mt19937 random;
  Facts facts;
};

Machine& machine() {
  static Machine m;
  return m;
}

void to_scheduler(bool for_good) {
  Machine& m = machine();
  Fiber& f = *m.running;
#if ORRERY_OWN_SWITCH
  (void)for_good;
  orrery_stand_in_switch(&f.pointer, m.scheduler);
#else
#if ORRERY_FIBERS_UNDER_ASAN
  __sanitizer_start_switch_fiber(for_good ? nullptr : &f.fake_stack, m.scheduler_stack, m.scheduler_stack_bytes);
#else
  (void)for_good;
#endif
  swapcontext(&f.context, &m.scheduler);
#if ORRERY_FIBERS_UNDER_ASAN
  __sanitizer_finish_switch_fiber(f.fake_stack, nullptr, nullptr);
#endif
#endif
}

void fiber_main() {
  Machine& m = machine();
#if ORRERY_FIBERS_UNDER_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &m.scheduler_stack, &m.scheduler_stack_bytes);
#endif
  Fiber& f = *m.running;
  m.body(m.argument);
  if (!f.issued.empty() || !f.groups.empty()) fail("copies were never awaited");
  f.state = State::done;
  to_scheduler(true);
}

void begin(Fiber& f) {
  Machine& m = machine();
  if (f.stack == nullptr) f.stack = map(kStackBytes);
  f.state = State::ready;
  f.issued.clear();
  f.groups.clear();
#if ORRERY_OWN_SWITCH
  (void)m;
  // As if fiber_main had been called: its return address (none), then six registers below its entry.
  auto* top = reinterpret_cast<void**>(f.stack + kStackBytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&fiber_main);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  f.pointer = top;
#else
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack;
  f.context.uc_stack.ss_size = kStackBytes;
  f.context.uc_link = nullptr;
  makecontext(&f.context, fiber_main, 0);
  f.fake_stack = nullptr;
#endif
}

void resume(Fiber& f) {
  Machine& m = machine();
  m.running = &f;
  threadIdx = dim3(f.index, 0, 0);
#if ORRERY_OWN_SWITCH
  orrery_stand_in_switch(&m.scheduler, f.pointer);
#else
#if ORRERY_FIBERS_UNDER_ASAN
  __sanitizer_start_switch_fiber(&m.scheduler_fake_stack, f.stack, kStackBytes);
#endif
  swapcontext(&m.scheduler, &f.context);
#if ORRERY_FIBERS_UNDER_ASAN
  __sanitizer_finish_switch_fiber(m.scheduler_fake_stack, nullptr, nullptr);
#endif
#endif
  m.running = nullptr;
}

// Indices 0 .. n-1 in the schedule's order.
std::vector<unsigned> order(unsigned n) {
  Machine& m = machine();
  std::vector<unsigned> o(n);
  for (unsigned i = 0; i < n; ++i) o[i] = m.schedule == Schedule::reverse ? n - 1 - i : i;
  if (m.schedule == Schedule::shuffled) std::ranges::shuffle(o, m.random);
  return o;
}

void run_warp(unsigned warp, const std::vector<unsigned>& lanes) {
  Machine& m = machine();
  for (bool moved = true; moved && m.error.empty();) {
    moved = false;
    for (const unsigned lane : lanes) {
      Fiber& f = m.fibers[warp * kLanes + lane];
      if (f.state != State::ready) continue;
      resume(f);
      moved = true;
      if (!m.error.empty()) return;
    }
  }
}

// What keeps the block from going on.
std::string stuck() {
  Machine& m = machine();
  for (unsigned w = 0; w < m.warps.size(); ++w)
    if (m.warps[w].arrived != 0)
      return "warp " + std::to_string(w) + " waits in " + m.warps[w].operation + " for lanes that do not come";
  for (unsigned t = 0; t < m.threads; ++t)
    if (m.fibers[t].state == State::done)
      return "thread " + std::to_string(t) + " has returned while others wait at a barrier";
  return "threads wait for each other";
}

void run_block() {
  Machine& m = machine();
  std::memset(m.shared, kPoison, static_cast<std::size_t>(m.shared_end - m.shared));
  for (Warp& w : m.warps) w = {};
  for (unsigned t = 0; t < m.threads; ++t) begin(m.fibers[t]);
  while (true) {
    for (const unsigned w : order(static_cast<unsigned>(m.warps.size()))) {
      run_warp(w, order(kLanes));
      if (!m.error.empty()) return;
    }
    const auto in = [&](State s) {
      return std::all_of(m.fibers.begin(), m.fibers.begin() + m.threads, [s](const Fiber& f) { return f.state == s; });
    };
    if (in(State::done)) break;
    if (!in(State::at_barrier)) {
      m.error = stuck();
      return;
    }
    ++m.facts.barriers;
    for (unsigned t = 0; t < m.threads; ++t) m.fibers[t].state = State::ready;
  }
  for (const char* c = m.shared + m.shared_bytes; c < m.shared_end; ++c)
    if (static_cast<unsigned char>(*c) != kPoison) m.error = "shared memory was written behind its end";
}

bool in_shared(const void* p) {
  const Machine& m = machine();
  return p >= m.shared && p < m.shared_end;
}

}  // namespace

Facts& facts() { return machine().facts; }
void set_schedule(Schedule schedule) { machine().schedule = schedule; }

void run(const char* name, dim3 grid, int threads, std::int64_t shared_bytes, void (*body)(void*), void* argument) {
  Machine& m = machine();
  const std::string kernel = std::string("kernel ") + name + ": ";
  if (m.running != nullptr) throw std::runtime_error(kernel + "is launched by a kernel");
  if (threads < 1 || threads > kMaxThreads || threads % static_cast<int>(kLanes) != 0)
    throw std::runtime_error(kernel + std::to_string(threads) + " threads are no whole warps, or too many");
  if (shared_bytes < 0 || shared_bytes > kMaxShared)
    throw std::runtime_error(kernel + std::to_string(shared_bytes) + " bytes of shared memory are too many");
  if (grid.x > static_cast<unsigned>(std::numeric_limits<int>::max()) || grid.y > kMaxGridYz || grid.z > kMaxGridYz)
    throw std::runtime_error(kernel + "too many blocks");
  if (m.shared_end == nullptr) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t bytes = (static_cast<std::size_t>(kMaxShared) + page - 1) / page * page;
    m.shared_end = map(bytes + page) + bytes;
    if (mprotect(m.shared_end, page, PROT_NONE) != 0) throw std::runtime_error("stand-in: no guard page");
  }
  constexpr std::size_t kSharedAlignment = 128;
  m.shared_bytes = static_cast<std::size_t>(shared_bytes);
  m.shared = m.shared_end - (m.shared_bytes + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
  m.threads = static_cast<unsigned>(threads);
  m.warps.resize(m.threads / kLanes);
  if (m.fibers.size() < m.threads) m.fibers.resize(m.threads);
  for (unsigned t = 0; t < m.threads; ++t) m.fibers[t].index = t;
  m.body = body;
  m.argument = argument;
  m.error.clear();
  blockDim = dim3(m.threads, 1, 1);
  gridDim = grid;
  ++m.facts.launches;
  const unsigned blocks = grid.x * grid.y * grid.z;
  for (const unsigned b : order(blocks)) {
    blockIdx = dim3(b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y);
    run_block();
    ++m.facts.blocks;
    if (!m.error.empty()) throw std::runtime_error(kernel + m.error);
  }
}

void fail(const char* what) {
  Machine& m = machine();
  m.error = what;
  m.running->state = State::done;
  to_scheduler(true);
  __builtin_unreachable();
}

void* shared_memory() { return machine().shared; }

void barrier() {
  machine().running->state = State::at_barrier;
  to_scheduler(false);
}

void warp_operation(const char* name, unsigned mask, void* slot, void (*work)(Slots& slots, unsigned mask)) {
  Machine& m = machine();
  const unsigned lane = m.running->index % kLanes, first = m.running->index - lane;
  Warp& w = m.warps[m.running->index / kLanes];
  if ((mask >> lane & 1) == 0) fail("a lane is not in its own mask");
  if (w.arrived == 0) {
    w.operation = name;
    w.mask = mask;
  } else if ((w.operation != name && std::strcmp(w.operation, name) != 0) || w.mask != mask) {
    fail("lanes of a warp are in different warp operations");
  }
  w.slots[lane] = slot;
  w.arrived |= 1u << lane;
  if (w.arrived == w.mask) {
    w.arrived = 0;
    work(w.slots, mask);
    for (unsigned l = 0; l < kLanes; ++l)
      if (mask >> l & 1) m.fibers[first + l].state = State::ready;
    return;
  }
  m.running->state = State::in_warp_operation;
  to_scheduler(false);
}

void copy_async(void* to, const void* from, int bytes) {
  constexpr std::uintptr_t kBytes = 16;
  if (bytes != 0 && bytes != static_cast<int>(kBytes)) fail("an asynchronous copy of neither 0 nor 16 bytes");
  if (!in_shared(to) || reinterpret_cast<std::uintptr_t>(to) % kBytes != 0 ||
      reinterpret_cast<std::uintptr_t>(from) % kBytes != 0)
    fail("an asynchronous copy to no shared memory, or not aligned to 16 bytes");
  std::memset(to, kPoison, kBytes);
  machine().running->issued.push_back({to, from, bytes});
}

void commit_copies() {
  Fiber& f = *machine().running;
  f.groups.push_back(std::move(f.issued));
  f.issued.clear();
}

void await_copies(int pending) {
  constexpr std::size_t kBytes = 16;
  Fiber& f = *machine().running;
  while (f.groups.size() > static_cast<std::size_t>(pending)) {
    for (const Copy& c : f.groups.front()) {
      std::memset(c.to, 0, kBytes);
      if (c.bytes > 0) std::memcpy(c.to, c.from, static_cast<std::size_t>(c.bytes));
    }
    f.groups.erase(f.groups.begin());
  }
}

namespace {

struct MatrixSlot {
  const void* row;
  std::uint32_t result[4];
};

template <bool kTransposed>
void give_matrices(Slots& slots, unsigned) {
  constexpr unsigned kRows = 8, kRowBytes = 16;
  const auto row_of = [&](unsigned matrix, unsigned row) {
    return static_cast<const std::uint16_t*>(static_cast<MatrixSlot*>(slots[matrix * kRows + row])->row);
  };
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    unsigned banks = 0;
    for (unsigned row = 0; row < kRows; ++row) {
      const auto address = reinterpret_cast<std::uintptr_t>(row_of(matrix, row));
      if (!in_shared(row_of(matrix, row)) || address % kRowBytes != 0)
        fail("ldmatrix of no shared memory, or not aligned to 16 bytes");
      const unsigned bank = 1u << address / kRowBytes % kRows;
      if (banks & bank) ++machine().facts.bank_conflicts;
      banks |= bank;
    }
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      const unsigned i = lane / 4, j = lane % 4 * 2;
      const std::uint16_t low = kTransposed ? row_of(matrix, j)[i] : row_of(matrix, i)[j],
                          high = kTransposed ? row_of(matrix, j + 1)[i] : row_of(matrix, i)[j + 1];
      static_cast<MatrixSlot*>(slots[lane])->result[matrix] = low | static_cast<std::uint32_t>(high) << 16;
    }
  }
}

struct ProductSlot {
  float* c;
  std::uint32_t a[4], b[2];
  float (*to_float)(std::uint16_t);
};

// Fragments as in the PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
void give_products(Slots& slots, unsigned) {
  constexpr unsigned kM = 16, kN = 8, kK = 16;
  float a[kM][kK], b[kK][kN];
  const auto slot = [&](unsigned lane) -> ProductSlot& { return *static_cast<ProductSlot*>(slots[lane]); };
  const auto half = [](std::uint32_t word, unsigned i) { return static_cast<std::uint16_t>(word >> 16 * i); };
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const ProductSlot& s = slot(lane);
    const unsigned group = lane / 4, thread = lane % 4;
    for (unsigned i = 0; i < 8; ++i)
      a[i % 4 < 2 ? group : group + 8][thread * 2 + i % 2 + (i < 4 ? 0 : 8)] = s.to_float(half(s.a[i / 2], i % 2));
    for (unsigned i = 0; i < 4; ++i)
      b[thread * 2 + i % 2 + (i < 2 ? 0 : 8)][group] = s.to_float(half(s.b[i / 2], i % 2));
  }
  float sums[kM][kN];
  const auto each = [&](auto visit) {
    for (unsigned lane = 0; lane < kLanes; ++lane)
      for (unsigned i = 0; i < 4; ++i)
        visit(sums[i < 2 ? lane / 4 : lane / 4 + 8][lane % 4 * 2 + i % 2], slot(lane).c[i]);
  };
  each([](float& sum, const float& c) { sum = c; });
  for (unsigned row = 0; row < kM; ++row)
    for (unsigned k = 0; k < kK; ++k)
      for (unsigned column = 0; column < kN; ++column) sums[row][column] += a[row][k] * b[k][column];
  each([](const float& sum, float& c) { c = sum; });
  ++machine().facts.tensor_core_products;
}

}  // namespace

void load_matrices(std::uint32_t (&to)[4], const void* row, bool transposed) {
  MatrixSlot slot{row, {}};
  warp_operation(transposed ? "ldmatrix.trans" : "ldmatrix", ~0u, &slot,
                 transposed ? give_matrices<true> : give_matrices<false>);
  std::ranges::copy(slot.result, to);
}

void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                  float (*to_float)(std::uint16_t)) {
  ProductSlot slot{c, {a[0], a[1], a[2], a[3]}, {b0, b1}, to_float};
  warp_operation("mma", ~0u, &slot, give_products);
}

float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t float_to_bf16(float value) {
  constexpr std::uint16_t kNan = 0x7fff;
  if (std::isnan(value)) return kNan;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

namespace {

// A small float of `mantissa` bits whose exponent is biased by `bias`, without infinities in the arithmetic: to the
// nearest, ties to even; the result may be above the largest number.
std::uint32_t round_to(float magnitude, int mantissa, int bias) {
  if (magnitude == 0) return 0;
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude in [2^(exponent-1), 2^exponent)
  const int lowest = 1 - bias;       // of normal numbers
  const int unit = std::max(exponent - 1, lowest) - mantissa;
  const double steps = std::nearbyint(std::ldexp(static_cast<double>(magnitude), -unit));
  const double code = std::max(exponent - 1, lowest) == lowest
                          ? steps  // subnormal, or of the lowest binade
                          : steps + std::ldexp(static_cast<double>(exponent - 1 - lowest), mantissa);
  return static_cast<std::uint32_t>(std::min(code, 65535.0));
}

// Exact; of exponents of normal numbers.
float power_of_two(int exponent) { return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23); }

float expand(std::uint32_t magnitude, int mantissa, int bias) {
  const std::uint32_t exponent = magnitude >> mantissa, fraction = magnitude & ((1u << mantissa) - 1);
  const auto e = static_cast<int>(exponent);
  return exponent == 0 ? static_cast<float>(fraction) * power_of_two(1 - bias - mantissa)
                       : static_cast<float>(fraction + (1u << mantissa)) * power_of_two(e - bias - mantissa);
}

}  // namespace

std::uint16_t float_to_half(float value) {
  constexpr std::uint32_t kInfinity = 0x7c00, kNan = 0x7fff;
  if (std::isnan(value)) return kNan;
  const std::uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::abs(value);
  return static_cast<std::uint16_t>(
      sign | (std::isinf(magnitude) ? kInfinity : std::min(round_to(magnitude, 10, 15), kInfinity)));
}

float half_to_float(std::uint16_t bits) {
  const std::uint32_t magnitude = bits & 0x7fffu;
  const float value = magnitude > 0x7c00    ? std::numeric_limits<float>::quiet_NaN()
                      : magnitude == 0x7c00 ? std::numeric_limits<float>::infinity()
                                            : expand(magnitude, 10, 15);
  return bits & 0x8000u ? -value : value;
}

std::uint8_t float_to_e4m3(float value) {
  constexpr std::uint32_t kNan = 0x7f, kLargest = 0x7e;  // 448
  if (std::isnan(value)) return kNan;
  const std::uint32_t sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::abs(value);
  return static_cast<std::uint8_t>(sign |
                                   (std::isinf(magnitude) ? kLargest : std::min(round_to(magnitude, 3, 7), kLargest)));
}

float e4m3_to_float(std::uint8_t bits) {
  const std::uint32_t magnitude = bits & 0x7fu;
  const float value = magnitude == 0x7f ? std::numeric_limits<float>::quiet_NaN() : expand(magnitude, 3, 7);
  return bits & 0x80u ? -value : value;
}

}  // namespace orrery::stand_in
