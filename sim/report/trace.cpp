#include "sim/report/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace orrery {
namespace {

constexpr std::size_t kUpdate = 3;  // Interval::kind beyond SlotKind
constexpr std::array<const char*, 4> kKindNames{"forward", "backward", "weight_gradient", "update"};
constexpr std::array<const char*, 4> kKindLetters{"F", "B", "W", "update"};

std::size_t kind_of(const Interval& interval) { return std::min<std::size_t>(interval.kind, kUpdate); }

// Whole nanoseconds, so that slices which touch still touch after rounding.
using Nanoseconds = std::int64_t;
Nanoseconds nanoseconds(double seconds) { return std::llround(seconds * 1e9); }
std::string microseconds(Nanoseconds ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int thread_of(Stream stream) { return static_cast<int>(stream) + 1; }  // viewers treat thread 0 in special ways

// One line of the file, to be sorted by time.
struct Event {
  Nanoseconds at = 0;
  std::string text;
};

struct Slice {
  Nanoseconds begin = 0, end = 0;
};

std::string slice_event(const Interval& interval, Slice slice) {
  const bool compute = interval.stream == Stream::compute;
  std::string args = fmt::format(R"("kind":"{}","seconds":{})", kKindNames[kind_of(interval)],
                                 interval.end_seconds - interval.begin_seconds);
  if (kind_of(interval) != kUpdate)
    args += fmt::format(R"(,"micro_batch":{},"chunk":{})", interval.micro_batch, interval.chunk);
  return fmt::format(R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
                     json_text(interval_name(interval)),
                     compute ? kKindNames[kind_of(interval)] : name_of(interval.stream), interval.stage,
                     thread_of(interval.stream), microseconds(slice.begin), microseconds(slice.end - slice.begin),
                     args);
}

std::string flow_event(char phase, std::size_t id, std::int32_t stage, Nanoseconds at) {
  return fmt::format(R"({{"ph":"{}","name":"message","cat":"message","id":{},"pid":{},"tid":{},"ts":{}{}}})", phase, id,
                     stage, thread_of(Stream::compute), microseconds(at), phase == 'f' ? R"(,"bp":"e")" : "");
}

std::string counter_event(const MemorySample& sample) {
  std::string args;
  for (int c = 0; c < kCategories; ++c) {
    const auto category = static_cast<Category>(c);
    if (category == Category::host_copy) continue;
    args += fmt::format(R"({}"{}":{:.0f})", args.empty() ? "" : ",", name_of(category),
                        sample.bytes[static_cast<std::size_t>(c)]);
  }
  return fmt::format(R"({{"ph":"C","name":"memory bytes","pid":{},"tid":0,"ts":{},"args":{{{}}}}})", sample.stage,
                     microseconds(nanoseconds(sample.seconds)), args);
}

std::vector<std::string> metadata(const std::map<std::int32_t, std::set<Stream>>& tracks) {
  std::vector<std::string> events;
  for (const auto& [stage, streams] : tracks) {
    events.push_back(
        fmt::format(R"({{"ph":"M","name":"process_name","pid":{0},"tid":0,"args":{{"name":"stage {0}"}}}})", stage));
    events.push_back(fmt::format(
        R"({{"ph":"M","name":"process_sort_index","pid":{0},"tid":0,"args":{{"sort_index":{0}}}}})", stage));
    for (const Stream stream : streams) {
      events.push_back(fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
                                   stage, thread_of(stream), name_of(stream)));
      events.push_back(
          fmt::format(R"({{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})", stage,
                      thread_of(stream), thread_of(stream)));
    }
  }
  return events;
}

// Arrows tie slices together: each end is moved to an instant inside the slice that sent or that waited for it.
void add_flows(const Timeline& timeline, std::map<std::int32_t, std::vector<Slice>>& compute,
               std::vector<Event>& events) {
  for (auto& [stage, slices] : compute)
    std::sort(slices.begin(), slices.end(), [](Slice a, Slice b) { return a.begin < b.begin; });
  for (std::size_t id = 0; id < timeline.arrows.size(); ++id) {
    const Arrow& arrow = timeline.arrows[id];
    const auto& senders = compute[arrow.from_stage];
    const auto& receivers = compute[arrow.to_stage];
    const Nanoseconds sent = nanoseconds(arrow.from_seconds), arrived = nanoseconds(arrow.to_seconds);
    const auto after = std::partition_point(senders.begin(), senders.end(), [&](Slice s) { return s.begin < sent; });
    const auto receiver =
        std::partition_point(receivers.begin(), receivers.end(), [&](Slice s) { return s.begin < arrived; });
    if (after == senders.begin() || receiver == receivers.end()) continue;  // to or from outside the timeline
    const Slice sender = *std::prev(after);
    const Nanoseconds inside = std::max(sender.begin, std::min(sent, sender.end - 1));
    events.push_back({inside, flow_event('s', id + 1, arrow.from_stage, inside)});
    events.push_back({receiver->begin, flow_event('f', id + 1, arrow.to_stage, receiver->begin)});
  }
}

}  // namespace

std::string interval_name(const Interval& interval) {
  const std::size_t kind = kind_of(interval);
  if (interval.stream != Stream::compute && interval.name[0] != '\0') return interval.name;
  if (kind == kUpdate) return interval.name[0] != '\0' ? interval.name : kKindLetters[kind];
  return fmt::format("{} {}", kKindLetters[kind], interval.micro_batch);
}

std::string report_trace(const Report& report) {
  std::map<std::int32_t, std::set<Stream>> tracks;
  std::map<std::int32_t, std::vector<Slice>> compute;
  std::vector<Event> events;
  events.reserve(report.timeline.intervals.size() + 2 * report.timeline.arrows.size() + report.timeline.memory.size());
  for (const Interval& interval : report.timeline.intervals) {
    const Slice slice{nanoseconds(interval.begin_seconds), nanoseconds(interval.end_seconds)};
    if (slice.end <= slice.begin) continue;  // nothing to see
    tracks[interval.stage].insert(interval.stream);
    if (interval.stream == Stream::compute) compute[interval.stage].push_back(slice);
    events.push_back({slice.begin, slice_event(interval, slice)});
  }
  for (const MemorySample& sample : report.timeline.memory) {
    tracks[sample.stage];
    events.push_back({nanoseconds(sample.seconds), counter_event(sample)});
  }
  add_flows(report.timeline, compute, events);
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.at < b.at; });

  std::string out =
      fmt::format(R"({{"displayTimeUnit":"ms","otherData":{{"engine":{},"step_seconds":{}}},"traceEvents":[)",
                  json_text(report.engine), report.step_seconds);
  const char* separator = "\n";
  const auto append = [&](const std::string& text) {
    out += separator;
    out += text;
    separator = ",\n";
  };
  for (const std::string& text : metadata(tracks)) append(text);
  for (const Event& event : events) append(event.text);
  return out + "\n]}\n";
}

}  // namespace orrery
