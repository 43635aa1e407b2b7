#include <limits>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/memory/allocation_trace.h"

namespace orrery {
namespace {

// Writes Python's pickle, protocol 2 (PEP 307), for the types that a snapshot has.
class Pickle {
 public:
  Pickle() : bytes_("\x80\x02") {}

  template <class Fill>
  void dictionary(const Fill& fill) {
    bytes_ += "}(";
    fill();
    bytes_ += 'u';
  }
  template <class Fill>
  void list(const Fill& fill) {
    bytes_ += "](";
    fill();
    bytes_ += 'e';
  }
  template <class Fill>
  void list(std::string_view key, const Fill& fill) {
    text(key);
    list(fill);
  }
  void text(std::string_view value) {
    if (const auto known = memo_.find(value); known != memo_.end()) {
      bytes_ += 'j';  // LONG_BINGET
      number(known->second);
      return;
    }
    bytes_ += 'X';  // BINUNICODE
    number(static_cast<std::uint32_t>(value.size()));
    bytes_ += value;
    const auto place = static_cast<std::uint32_t>(memo_.size());
    memo_.emplace(value, place);
    bytes_ += 'r';  // LONG_BINPUT
    number(place);
  }
  void integer(std::int64_t value) {
    if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
      bytes_ += 'J';  // BININT
      number(static_cast<std::uint32_t>(value));
      return;
    }
    constexpr int kBytes = 8, kBits = 8;
    bytes_ += '\x8a';  // LONG1
    bytes_ += static_cast<char>(kBytes);
    for (int i = 0; i < kBytes; ++i) bytes_ += static_cast<char>(value >> (i * kBits) & 0xff);
  }
  void truth(bool value) { bytes_ += value ? '\x88' : '\x89'; }

  void entry(std::string_view key, std::int64_t value) {
    text(key);
    integer(value);
  }
  void entry(std::string_view key, std::string_view value) {
    text(key);
    text(value);
  }

  std::string done() && { return std::move(bytes_) + '.'; }

 private:
  void number(std::uint32_t value) {
    constexpr int kBytes = 4, kBits = 8;
    for (int i = 0; i < kBytes; ++i) bytes_ += static_cast<char>(value >> (i * kBits) & 0xff);
  }

  std::string bytes_;
  std::map<std::string, std::uint32_t, std::less<>> memo_;
};

class Snapshot {
 public:
  Snapshot(const Program& program, const AllocationTrace& trace) : program_(program), trace_(trace) {
    for (std::size_t p = 0; p < program.pieces.size(); ++p) titles_.push_back(piece_title(program, p));
  }

  std::string of(const Replay& replay, const CachingAllocator::Options& options) && {
    pickle_.dictionary([&] {
      pickle_.list("segments", [&] {
        for (const CachingAllocator::Segment& s : replay.segments) segment(s, options.expandable_segments);
      });
      pickle_.list("device_traces", [&] {
        pickle_.list([&] {
          for (const CachingAllocator::Event& e : replay.events) event(e);
          if (replay.out_of_memory) out_of_memory(replay);
        });
      });
      pickle_.text("allocator_settings");
      pickle_.dictionary([&] {
        pickle_.text("expandable_segments");
        pickle_.truth(options.expandable_segments);
      });
    });
    return std::move(pickle_).done();
  }

 private:
  void segment(const CachingAllocator::Segment& s, bool expandable) {
    std::int64_t allocated = 0, requested = 0;
    for (const CachingAllocator::Block& b : s.blocks)
      if (b.allocated) allocated += b.bytes, requested += b.requested;
    pickle_.dictionary([&] {
      pickle_.entry("device", 0);
      pickle_.entry("address", s.address);
      pickle_.entry("total_size", s.bytes);
      pickle_.entry("stream", s.stream);
      pickle_.entry("segment_type", s.small ? "small" : "large");
      pickle_.entry("allocated_size", allocated);
      pickle_.entry("active_size", allocated);
      pickle_.entry("requested_size", requested);
      pickle_.text("is_expandable");
      pickle_.truth(expandable);
      pickle_.list("frames", [] {});
      pickle_.list("blocks", [&] {
        for (const CachingAllocator::Block& b : s.blocks)
          pickle_.dictionary([&] {
            pickle_.entry("address", b.address);
            pickle_.entry("size", b.bytes);
            pickle_.entry("requested_size", b.requested);
            pickle_.entry("state", b.allocated ? "active_allocated" : "inactive");
            frames(b.allocated, b.tag);
          });
      });
    });
  }

  void event(const CachingAllocator::Event& e) {
    using enum CachingAllocator::Action;
    switch (e.action) {
      case alloc:
        return one("alloc", e, true);
      case free:
        one("free_requested", e, true);
        return one("free_completed", e, true);
      case segment_alloc:
        return one("segment_alloc", e, false);
      case segment_free:
        return one("segment_free", e, false);
    }
  }
  void one(const char* action, const CachingAllocator::Event& e, bool has_tensor) {
    pickle_.dictionary([&] {
      pickle_.entry("action", action);
      pickle_.entry("addr", e.address);
      pickle_.entry("size", e.bytes);
      pickle_.entry("stream", e.stream);
      frames(has_tensor, e.tag);
    });
  }
  void out_of_memory(const Replay& replay) {
    const Allocation& failed = trace_.allocations[replay.failed];
    pickle_.dictionary([&] {
      pickle_.entry("action", "oom");
      pickle_.entry("addr", 0);
      pickle_.entry("device_free", 0);
      pickle_.entry("size", failed.bytes);
      pickle_.entry("stream", failed.stream);
      frames(true, replay.failed);
    });
  }

  void frames(bool has_tensor, std::uint32_t allocation) {
    pickle_.list("frames", [&] {
      if (!has_tensor) return;
      const Allocation& a = trace_.allocations[allocation];
      if (a.tensor == kNoTensor)
        return pickle_.dictionary([&] {
          pickle_.entry("name", a.buffer);
          pickle_.entry("filename", "stack");
          pickle_.entry("line", 0);
        });
      const Piece& piece = program_.pieces[a.piece];
      const Tensor& t = piece.tensors[a.tensor];
      pickle_.dictionary([&] {
        pickle_.entry("name", titles_[a.piece] + "." + t.name);
        pickle_.entry("filename", name_of(t.category));
        pickle_.entry("line", 0);
      });
    });
  }

  const Program& program_;
  const AllocationTrace& trace_;
  std::vector<std::string> titles_;  // by piece
  Pickle pickle_;
};

}  // namespace

std::string memory_snapshot(const Program& program, const AllocationTrace& trace, const Replay& replay,
                            const CachingAllocator::Options& options) {
  return Snapshot(program, trace).of(replay, options);
}

}  // namespace orrery
