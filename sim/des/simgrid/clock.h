// The clock of a run, and the processes that wait on it. A process is a coroutine. It costs a few hundred bytes, and
// some ten nanoseconds per wait; an actor of SimGrid costs a stack, and a microsecond per wait. A run has about ten
// processes per rank class, and they wait millions of times. SimGrid only runs the flows that share links (network.h).
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

// An event that is due at a time, unless its stamp has changed by then. It must outlive that time.
struct Timed {
  std::uint32_t stamp = 0;
  virtual void due(Clock& clock) = 0;

 protected:
  ~Timed() = default;
};

// A subroutine of a process. The caller must `co_await` it. It runs at once, up to its first wait.
class [[nodiscard]] Routine {
 public:
  struct promise_type {
    std::coroutine_handle<> caller;  // the coroutine that waits for the end
    std::exception_ptr failure;

    Routine get_return_object() { return Routine(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_never initial_suspend() noexcept { return {}; }
    struct End {
      bool await_ready() noexcept { return false; }
      void await_suspend(std::coroutine_handle<promise_type> ended) noexcept {
        // The caller frees the frame of `ended`: nothing may be accessed after this.
        if (const std::coroutine_handle<> waits = ended.promise().caller) waits.resume();
      }
      void await_resume() noexcept {}
    };
    End final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { failure = std::current_exception(); }
  };

  explicit Routine(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Routine(Routine&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Routine& operator=(Routine&&) = delete;
  ~Routine() {
    if (handle_) handle_.destroy();
  }

  bool await_ready() const { return handle_.done(); }
  void await_suspend(std::coroutine_handle<> caller) { handle_.promise().caller = caller; }
  void await_resume() {
    if (handle_.promise().failure) std::rethrow_exception(handle_.promise().failure);
  }

 private:
  std::coroutine_handle<promise_type> handle_;
};

// A coroutine that the clock runs. Clock::start only queues it: it begins when the processes ahead of it wait. It frees
// itself at its end. An exception from it ends the run.
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

struct Region;

// A process that others can wake. It may be woken early, and therefore waits in a loop for its condition.
struct Self : Timed {
  std::coroutine_handle<> waiting;  // null: the process does not wait
  Region* region = nullptr;         // the region in which it waits

  void due(Clock& clock) override;
};

// A set of processes whose time may run ahead of all others' while nothing from outside can reach them: the ranks of a
// group within a node, as long as none of them waits for another node. The data that millions of waits touch then stays
// in the processor's cache. As soon as a process waits for something outside, the region continues in the common order
// of time.
struct Region final : Timed {
  void due(Clock& clock) override;

 private:
  friend class Clock;
  struct Entry {
    double time;
    std::uint64_t number;  // of two entries at the same time, the one with the lower number comes first
    Timed* what;
    std::uint32_t stamp;
  };
  static bool later(const Entry& a, const Entry& b) { return a.time != b.time ? a.time > b.time : a.number > b.number; }
  void push(const Entry& entry) {
    heap.push_back(entry);
    std::push_heap(heap.begin(), heap.end(), later);
  }
  Timed* pop() {
    Timed* what = heap.front().what;
    std::pop_heap(heap.begin(), heap.end(), later);
    heap.pop_back();
    return what;
  }
  // Whether any event is due in the region; stores the time of the next one in `time`.
  bool next_due(double& time) {
    while (!heap.empty() && heap.front().stamp != heap.front().what->stamp) pop();
    if (!heap.empty()) time = heap.front().time;
    return !heap.empty();
  }

  double now = 0;
  std::int64_t waits_outside = 0;
  bool queued = false;
  double armed = -1;  // time at which it is queued in the common order; -1: it is not
  std::vector<Entry> heap;
  std::vector<std::coroutine_handle<>> ready;
};

class Clock {
 public:
  // The time of the running process, in seconds from the start of the run, as all times here.
  double now() const { return current_->now; }
  // Number of sleeps.
  std::int64_t sleeps() const { return sleeps_; }

  // The region of everything that belongs to no other region; it keeps the common order of time.
  Region& outside() { return outside_; }
  bool is_outside() const { return current_ == &outside_; }

  // Starts in the region of the caller.
  void start(Process process) { start(process, *current_); }
  void start(Process process, Region& region) { make_ready(process.handle, region); }
  void wake(Self& self) {
    if (!self.waiting) return;
    ++self.stamp;
    make_ready(std::exchange(self.waiting, nullptr), *self.region);
  }
  void at(double time, Timed& what) { current_->push({time, next_++, &what, what.stamp}); }
  // The same for an event outside, called from a region that may be ahead.
  void at_outside(double time, Timed& what) { outside_.push({time, next_++, &what, what.stamp}); }

  struct Block {
    Clock& clock;
    Self& self;
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> process) {
      self.waiting = process;
      self.region = clock.current_;
    }
    void await_resume() const {}
  };
  Block block(Self& self) { return {*this, self}; }
  // Waits until the process is woken, or for `seconds`. REQUIRES: `self` outlives the run.
  Block block_for(Self& self, double seconds) {
    ++sleeps_;
    at(now() + seconds, self);
    return block(self);
  }
  struct Sleep final : Timed {
    Sleep(Clock& of, double until, bool always) : clock(of), time(until), yields(always) {}
    bool await_ready() const { return !yields && !(time > clock.now()); }
    void await_suspend(std::coroutine_handle<> sleeping) {
      process = sleeping;
      if (!yields) ++clock.sleeps_;
      clock.at(time, *this);
    }
    void await_resume() const {}
    void due(Clock& of) override { of.make_ready(process, *of.current_); }

    Clock& clock;
    double time;
    bool yields;
    std::coroutine_handle<> process;
  };
  Sleep sleep_until(double time) { return {*this, time, false}; }
  Sleep sleep(double seconds) { return {*this, now() + seconds, false}; }

  // A process calls enter_outside() or wait_outside() before it waits for something outside its region, and
  // leave_outside() afterwards. The result of enter_outside() must be awaited: it waits until the common order of time
  // has reached the region's time. wait_outside() suffices for a process that waits to be woken.
  Sleep enter_outside() {
    wait_outside();
    return {*this, now(), current_ != &outside_};
  }
  void wait_outside() { ++current_->waits_outside; }
  void leave_outside() { --current_->waits_outside; }

  // For the driver of the clock: runs everything that can run now, then advances.
  void run_ready() {
    do {
      run(outside_);
      for (std::size_t next = 0; next < queue_.size(); ++next) {  // grows during the loop
        queue_[next]->queued = false;
        run(*queue_[next]);
      }
      queue_.clear();
    } while (is_ready());
  }
  bool is_ready() const { return !outside_.ready.empty() || !queue_.empty(); }
  bool next_due(double& time) { return outside_.next_due(time); }
  // Advances to `time`. REQUIRES: no event is due earlier. Events that are due then, or within rounding of it, happen
  // at once.
  void move_to(double time) {
    outside_.now = std::max(outside_.now, time);
    move(outside_, outside_.now);
  }
  double time_of(const Region& region) const { return region.now; }

 private:
  friend struct Region;

  void make_ready(std::coroutine_handle<> process, Region& region) {
    region.ready.push_back(process);
    if (&region == current_ || &region == &outside_) return;
    region.now = std::max(region.now, current_->now);
    queue(region);
  }
  void queue(Region& region) {
    if (region.queued || &region == &outside_) return;
    region.queued = true;
    queue_.push_back(&region);
  }
  static constexpr double kAtOnce = 1e-13;  // SimGrid's surf/precision (configure_simgrid)
  void move(Region& region, double time) {
    for (double due = 0; region.next_due(due) && due <= time + kAtOnce;) {
      region.now = std::max(region.now, time);
      region.pop()->due(*this);
    }
  }
  void run(Region& region) {
    current_ = &region;
    region.now = std::max(region.now, outside_.now);
    for (;;) {
      for (std::size_t next = 0; next < region.ready.size(); ++next) region.ready[next].resume();  // more get ready
      region.ready.clear();
      double due = 0;
      const bool ahead = &region != &outside_ && region.waits_outside == 0;
      if (!ahead || !region.next_due(due)) break;
      move(region, due);
    }
    current_ = &outside_;
    if (&region != &outside_) arm(region);
  }
  // Queues the region's next event in the common order.
  void arm(Region& region) {
    double due = 0;
    if (!region.next_due(due)) return;
    if (region.armed >= 0 && region.armed <= due) return;
    ++region.stamp;  // invalidates the earlier entry
    region.armed = due;
    at_outside(due, region);
  }

  Region outside_;
  Region* current_ = &outside_;
  std::vector<Region*> queue_;
  std::uint64_t next_ = 0;
  std::int64_t sleeps_ = 0;
};

inline void Self::due(Clock& clock) { clock.wake(*this); }
inline void Region::due(Clock& clock) {
  armed = -1;
  clock.current_ = this;
  clock.move(*this, clock.outside_.now);
  clock.current_ = &clock.outside_;
  clock.queue(*this);
}

}  // namespace orrery
