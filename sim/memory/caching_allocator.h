// PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp) on one device. It models which blocks and segments a
// process holds for its requests. Requests are rounded up to 512 bytes and served from segments: of 2 MiB for requests
// up to 1 MiB (the small pool), of 20 MiB below 10 MiB, else of the request's size rounded up to 2 MiB. The allocator
// takes the smallest free block of the request's pool and stream that is large enough, and splits it if more than 1 MiB
// remains (small pool: 512 bytes). Freed blocks join their free neighbours. If the device has no room for a new
// segment, whole free segments are returned to it first. With expandable segments, each pool and stream has one
// segment, which grows and shrinks page by page (20 MiB, small pool: 2 MiB) at its end, and every remainder is split
// off.
//
// Not modelled: max_split_size, garbage collection, memory that another stream still uses (record_stream), pools of
// CUDA graphs, and pages that an expandable segment returns from its middle.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

namespace orrery {

class CachingAllocator {
 public:
  static constexpr std::int64_t kLeastBlock = 512, kSmallRequest = 1 << 20, kSmallSegment = 2 << 20,
                                kLargeSegment = 20 << 20, kLeastOwnSegment = 10 << 20, kSegmentStep = 2 << 20;

  struct Options {
    bool expandable_segments = false;
    std::int64_t capacity = std::numeric_limits<std::int64_t>::max();  // limit in bytes for all segments together
  };
  // In bytes. Each `peak` field is the maximum of its quantity; the maxima need not occur at the same instant.
  struct Statistics {
    // `allocated`: sizes of allocated blocks: requests rounded up, with remainders that were not split off.
    std::int64_t requested = 0, allocated = 0, reserved = 0;
    std::int64_t peak_requested = 0, peak_allocated = 0, peak_reserved = 0;
    std::int64_t segments = 0;  // current number of segments
    std::int64_t retries = 0;   // requests for which cached segments were returned first (num_alloc_retries)
  };
  // The kinds of events, by the names in PyTorch's snapshots.
  enum class Action : std::uint8_t { alloc, free, segment_alloc, segment_free };
  struct Event {
    Action action = Action::alloc;
    std::int64_t address = 0, bytes = 0;
    int stream = 0;
    std::uint32_t tag = 0;  // chosen by the caller
  };
  struct Block {
    std::int64_t address = 0, bytes = 0, requested = 0;
    bool allocated = false;
    std::uint32_t tag = 0;
    std::int64_t segment = 0;  // address of its segment
  };
  struct Segment {
    std::int64_t address = 0, bytes = 0;
    int stream = 0;
    bool small = false;
    std::vector<Block> blocks;  // by address, ascending
  };

  explicit CachingAllocator(const Options& options) : options_(options) {}

  // Returns the address, which free() takes, or nothing if there is no room. REQUIRES: bytes >= 0. 0 bytes take no room
  // and get address 0.
  std::optional<std::int64_t> allocate(std::int64_t bytes, int stream, std::uint32_t tag = 0);
  // REQUIRES: `address` is allocated and not freed, or 0. Throws std::logic_error otherwise.
  void free(std::int64_t address);

  const Statistics& statistics() const { return statistics_; }
  void record_events(std::vector<Event>* events) { events_ = events; }  // nullptr: does not record
  std::vector<Segment> segments() const;                                // by address, ascending

 private:
  using Pool = std::pair<int, bool>;                          // stream, small
  using Free = std::tuple<Pool, std::int64_t, std::int64_t>;  // pool, bytes, address
  using Pieces = std::map<std::int64_t, Block>;               // blocks of a segment follow each other without gaps

  std::optional<Pieces::iterator> find(const Pool& pool, std::int64_t bytes);
  std::optional<Pieces::iterator> new_segment(const Pool& pool, std::int64_t bytes);
  std::optional<Pieces::iterator> expanded(const Pool& pool, std::int64_t bytes);
  void give_back();
  void note(Action action, std::int64_t address, std::int64_t bytes, int stream, std::uint32_t tag = 0);
  void reserve(std::int64_t bytes);
  Free free_key(Pieces::const_iterator piece) const;
  bool joins(Pieces::const_iterator a, Pieces::const_iterator b) const;  // b directly behind a in one segment

  Options options_;
  Statistics statistics_;
  Pieces pieces_;  // by address
  std::set<Free> free_;
  std::map<std::int64_t, Segment> areas_;   // segments by address, without their blocks
  std::map<Pool, std::int64_t> expanding_;  // addresses of the expandable segments
  std::int64_t next_address_ = kFirstAddress;
  std::vector<Event>* events_ = nullptr;

  static constexpr std::int64_t kFirstAddress = std::int64_t{1} << 32;
  static constexpr std::int64_t kRoomToGrow = std::int64_t{1} << 44;  // address range of an expandable segment
};

}  // namespace orrery
