// The clock of a run and the processes that wait on it. A process is a coroutine: it costs a few hundred bytes and some
// ten nanoseconds a wait, where an actor of SimGrid costs a stack and a microsecond; a run has some ten for each class
// of ranks and waits millions of times. SimGrid keeps what it is for, the flows that share links (network.h).
// Internal to sim/des.
#pragma once

#include <algorithm>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

namespace orrery {

class Clock;

// Something that is due at a time, unless its stamp has changed by then. Outlives its being due.
struct Timed {
  std::uint32_t stamp = 0;
  virtual void due(Clock& clock) = 0;

 protected:
  ~Timed() = default;
};

// What a process calls and waits for: `co_await` it, always. It runs at once, up to its first wait.
template <class T>
class [[nodiscard]] Task;

namespace detail {

struct TaskPromise {
  std::coroutine_handle<> caller;  // that waits for the end
  std::exception_ptr failure;

  std::suspend_never initial_suspend() noexcept { return {}; }
  struct End {
    bool await_ready() noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> ended) noexcept {
      // The caller frees the frame of `ended`: nothing may be touched behind.
      if (const std::coroutine_handle<> caller = ended.promise().caller) caller.resume();
    }
    void await_resume() noexcept {}
  };
  End final_suspend() noexcept { return {}; }
  void unhandled_exception() { failure = std::current_exception(); }
};
template <class T>
struct PromiseOf : TaskPromise {
  T value{};
  Task<T> get_return_object();
  void return_value(T v) { value = v; }
  T result() const { return value; }
};
template <>
struct PromiseOf<void> : TaskPromise {
  Task<void> get_return_object();
  void return_void() {}
  void result() const {}
};

}  // namespace detail

template <class T = void>
class [[nodiscard]] Task {
 public:
  using promise_type = detail::PromiseOf<T>;

  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool await_ready() const { return handle_.done(); }
  void await_suspend(std::coroutine_handle<> caller) { handle_.promise().caller = caller; }
  T await_resume() {
    if (handle_.promise().failure) std::rethrow_exception(handle_.promise().failure);
    return handle_.promise().result();
  }

 private:
  std::coroutine_handle<promise_type> handle_;
};

namespace detail {
template <class T>
Task<T> PromiseOf<T>::get_return_object() {
  return Task<T>(std::coroutine_handle<PromiseOf<T>>::from_promise(*this));
}
inline Task<void> PromiseOf<void>::get_return_object() {
  return Task<void>(std::coroutine_handle<PromiseOf<void>>::from_promise(*this));
}
}  // namespace detail

// Begins when whoever starts it waits (Clock::start), and frees itself at its end. What it throws ends the run.
struct Process {
  struct promise_type {
    Process get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    [[noreturn]] void unhandled_exception() { throw; }
  };
  std::coroutine_handle<promise_type> handle;
};

// A process that others can wake. It waits in a loop on what it wants: it may be woken early.
struct Self : Timed {
  std::coroutine_handle<> waiting;  // none: it does not

  void due(Clock& clock) override;
};

class Clock {
 public:
  double now() const { return now_; }
  // Sleeps given to it.
  std::int64_t sleeps() const { return sleeps_; }

  void start(Process process) { ready_.push_back(process.handle); }
  void wake(Self& self) {
    if (!self.waiting) return;
    ++self.stamp;
    ready_.push_back(std::exchange(self.waiting, nullptr));
  }
  void at(double time, Timed& what) {
    heap_.push_back({time, next_++, &what, what.stamp});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  struct Block {
    Self& self;
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> process) { self.waiting = process; }
    void await_resume() const {}
  };
  Block block(Self& self) { return {self}; }
  struct BlockFor {
    Clock& clock;
    Self& self;
    double seconds;
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> process) {
      self.waiting = process;
      ++clock.sleeps_;
      clock.at(clock.now() + seconds, self);
    }
    void await_resume() const {}
  };
  // Until it is woken, or for so long. `self` must outlive the run.
  BlockFor block_for(Self& self, double seconds) { return {*this, self, seconds}; }
  struct Sleep final : Timed {
    Sleep(Clock& of, double until) : clock(of), time(until) {}
    bool await_ready() const { return !(time > clock.now()); }
    void await_suspend(std::coroutine_handle<> sleeping) {
      process = sleeping;
      ++clock.sleeps_;
      clock.at(time, *this);
    }
    void await_resume() const {}
    void due(Clock& of) override { of.ready_.push_back(process); }

    Clock& clock;
    double time;
    std::coroutine_handle<> process;
  };
  Sleep sleep_until(double time) { return {*this, time}; }
  Sleep sleep(double seconds) { return {*this, now_ + seconds}; }

  // Whoever runs the clock: runs what can run now, then moves on.
  void run_ready() {
    for (std::size_t next = 0; next < ready_.size(); ++next) ready_[next].resume();  // they may make others ready
    ready_.clear();
  }
  bool is_ready() const { return !ready_.empty(); }
  // Whether anything is due, ever; `time`: the next.
  bool next_due(double& time) {
    while (!heap_.empty() && heap_.front().stamp != heap_.front().what->stamp) pop();
    if (heap_.empty()) return false;
    time = heap_.front().time;
    return true;
  }
  // To a time that is not before now, and no later than anything is due. What is due then, or within rounding of it,
  // happens at once.
  void move_to(double time) {
    constexpr double kAtOnce = 1e-13;  // SimGrid's surf/precision (configure_simgrid)
    now_ = std::max(now_, time);
    for (double due = 0; next_due(due) && due <= now_ + kAtOnce;) {
      Timed* what = heap_.front().what;
      pop();
      what->due(*this);
    }
  }

 private:
  struct Entry {
    double time;
    std::uint64_t number;  // of two at one time the first comes first
    Timed* what;
    std::uint32_t stamp;
  };
  static bool later(const Entry& a, const Entry& b) { return a.time != b.time ? a.time > b.time : a.number > b.number; }
  void pop() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    heap_.pop_back();
  }

  double now_ = 0;
  std::uint64_t next_ = 0;
  std::int64_t sleeps_ = 0;
  std::vector<Entry> heap_;
  std::vector<std::coroutine_handle<>> ready_;
};

inline void Self::due(Clock& clock) { clock.wake(*this); }

}  // namespace orrery
