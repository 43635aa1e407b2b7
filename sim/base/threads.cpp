#include "sim/base/threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <latch>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace orrery {

int hardware_threads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

int startable_threads(int most) {
  if (most <= 0) return 0;
  std::latch counted(1);
  int started = 0;
  {
    std::vector<std::jthread> threads;
    try {
      threads.reserve(static_cast<std::size_t>(most));
      for (; started < most; ++started) threads.emplace_back([&] { counted.wait(); });
    } catch (const std::system_error&) {
    } catch (const std::bad_alloc&) {
    }
    counted.count_down();
  }
  constexpr int kWithRoom = 4;  // one in four of the threads that start has memory to work in
  return started == most ? most : (started + kWithRoom - 1) / kWithRoom;
}

void for_each_index(std::size_t count, int threads, const std::function<void(std::size_t, std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::size_t failed = count;  // the lowest i that has thrown; `count`: none
  std::exception_ptr failure;
  const auto run = [&](std::size_t thread) {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i, thread);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) failed = i, failure = std::current_exception();
        next = count;
      }
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (std::size_t t = 1; t < std::min(count, static_cast<std::size_t>(threads)); ++t) others.emplace_back(run, t);
    } catch (const std::system_error&) {  // the threads that have started do its share
    }
    run(0);
  }
  if (failure) std::rethrow_exception(failure);
}

InputError no_thread(const char* option, const std::system_error& why) {
  return {{option, ""},
          std::string("a thread that the machine cannot start (") + why.what() + ")",
          "fewer threads, or a higher limit of processes and memory (ulimit -u, ulimit -v)"};
}

}  // namespace orrery
