#include "sim/report/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "sim/base/json_writer.h"
#include "sim/report/terms.h"

namespace orrery {
namespace {

constexpr std::size_t kUpdate = 3;  // value of TimelineSpan::kind besides SlotKind's
constexpr std::array<const char*, 4> kKindNames{"forward", "backward", "weight_gradient", "update"};
constexpr std::array<const char*, 4> kKindLetters{"F", "B", "W", "update"};

std::size_t kind_of(const TimelineSpan& interval) { return std::min<std::size_t>(interval.kind, kUpdate); }

// Whole nanoseconds, so that slices that touch still touch after rounding.
using Nanoseconds = std::int64_t;
Nanoseconds nanoseconds(double seconds) { return std::llround(seconds * 1e9); }
std::string microseconds(Nanoseconds ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

std::string text_json(std::string_view text) {
  std::string json;
  JsonWriter(json).value(text);
  return json;
}

// With more slots than this, only stages whose ops are shown are written; the others are like one of them.
constexpr std::size_t kMostSlots = 4000;

int thread_of_ops(Stream stream) { return kStreams + static_cast<int>(stream) + 1; }
int thread_of(Stream stream) { return static_cast<int>(stream) + 1; }  // viewers treat thread 0 specially

// The places of a job's processes in the file.
struct Processes {
  std::string_view job;    // its name; empty: the only one
  std::int32_t first = 0;  // stage 0
  std::int32_t stages = 0;
  std::int32_t ranks = 0;  // single ranks after the stages; the process after them has the links

  std::int32_t stage(std::int32_t s) const { return first + s; }
  std::int32_t rank(std::size_t track) const { return first + stages + static_cast<std::int32_t>(track); }
  std::int32_t links() const { return first + stages + ranks; }
  std::int32_t iteration() const { return links() + 1; }  // of a job that is the only one
  std::int32_t end() const { return links() + 1; }
  std::string name(std::string_view process) const {
    return text_json(job.empty() ? std::string(process) : fmt::format("{}: {}", job, process));
  }
};

// One line of the file; lines are sorted by time.
struct Event {
  Nanoseconds at = 0;
  std::string text;
};

struct Slice {
  Nanoseconds begin = 0, end = 0;
};

// Kind, work and bound, for "args".
std::string work_text(const TimelineOp& op) {
  std::string text = fmt::format(R"("kind":{})", text_json(op.kind));
  if (op.flops > 0) text += fmt::format(R"(,"flops":{:.6g})", op.flops);
  if (op.bytes > 0) text += fmt::format(R"(,"bytes":{:.6g})", op.bytes);
  if (!op.bound.empty()) text += fmt::format(R"(,"bound":{})", text_json(op.bound));
  return text;
}

// "F 3"; an op with a name of its own keeps that name.
std::string interval_name(const TimelineSpan& interval) {
  const std::size_t kind = kind_of(interval);
  if (interval.stream != Stream::compute && interval.name[0] != '\0') return interval.name;
  if (kind == kUpdate) return interval.name[0] != '\0' ? interval.name : kKindLetters[kind];
  return fmt::format("{} {}", kKindLetters[kind], interval.micro_batch);
}

// A slice on a thread. `args`: members of an object.
Event slice_event(std::string_view name, std::string_view category, std::int32_t process, int thread, Slice slice,
                  std::string_view args) {
  return {slice.begin,
          fmt::format(R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
                      text_json(name), category, process, thread, microseconds(slice.begin),
                      microseconds(slice.end - slice.begin), args)};
}

Event slot_event(const TimelineSpan& interval, std::span<const TimelineOp> ops, Slice slice, std::int32_t process) {
  const bool compute = interval.stream == Stream::compute;
  std::string args =
      interval.op != kNoOp ? work_text(ops[interval.op]) : fmt::format(R"("kind":"{}")", kKindNames[kind_of(interval)]);
  args += fmt::format(R"(,"seconds":{})", interval.end_seconds - interval.begin_seconds);
  if (kind_of(interval) != kUpdate)
    args += fmt::format(R"(,"micro_batch":{},"chunk":{})", interval.micro_batch, interval.chunk);
  return slice_event(interval_name(interval), compute ? kKindNames[kind_of(interval)] : name_of(interval.stream),
                     process, thread_of(interval.stream), slice, args);
}

// Writes ops on threads of their own, beside the slots to which they belong. Returns the streams by stage.
std::map<std::int32_t, std::set<Stream>> add_ops(const Timeline& timeline, const Processes& processes,
                                                 std::vector<Event>& events) {
  std::map<std::int32_t, std::set<Stream>> streams;
  for (const OpSlice& slice : timeline.op_slices) {
    const Slice place{nanoseconds(slice.begin_seconds), nanoseconds(slice.end_seconds)};
    if (place.end <= place.begin) continue;
    const TimelineOp& op = timeline.ops[slice.op];
    const char* const category = op.kind == "wait"                 ? "wait"
                                 : slice.stream == Stream::compute ? "kernel"
                                                                   : name_of(slice.stream);
    streams[slice.stage].insert(slice.stream);
    events.push_back(slice_event(op.name, category, processes.stage(slice.stage), thread_of_ops(slice.stream), place,
                                 work_text(op)));
  }
  return streams;
}

std::string flow_event(char phase, std::size_t id, std::int32_t process, Nanoseconds at) {
  return fmt::format(R"({{"ph":"{}","name":"message","cat":"message","id":{},"pid":{},"tid":{},"ts":{}{}}})", phase, id,
                     process, thread_of(Stream::compute), microseconds(at), phase == 'f' ? R"(,"bp":"e")" : "");
}

std::string memory_event(const MemorySample& sample, std::int32_t process) {
  std::string args;
  const auto add = [&args](const char* name, double bytes) {
    args += fmt::format(R"({}"{}":{:.0f})", args.empty() ? "" : ",", name, bytes);
  };
  for (const MemoryPart& part : category_parts()) add(part.name.c_str(), sample.bytes.at(Place::device)[part.category]);
  return fmt::format(R"({{"ph":"C","name":"memory bytes","pid":{},"tid":0,"ts":{},"args":{{{}}}}})", process,
                     microseconds(nanoseconds(sample.seconds)), args);
}

// Utilisation as a step function: one sample at the start of each bin, none after the last bin.
void add_links(const Report& report, const Processes& processes, std::vector<Event>& events) {
  if (!report.discrete_event) return;
  for (const LinkReport& kind : report.discrete_event->link_kinds) {
    const std::size_t bins = kind.over_time.size();
    for (std::size_t bin = 0; bins > 0 && bin <= bins; ++bin) {
      const Nanoseconds at = nanoseconds(report.step_seconds * static_cast<double>(bin) / static_cast<double>(bins));
      const double percent = bin < bins ? kind.over_time[bin] * 100 : 0;
      events.push_back(
          {at, fmt::format(R"({{"ph":"C","name":{},"pid":{},"tid":0,"ts":{},"args":{{"busiest":{:.4g}}}}})",
                           text_json(kind.name + " utilisation %"), processes.links(), microseconds(at), percent)});
    }
  }
}

// Names a process, or a thread of it, and says where viewers show it. `name`: as JSON.
void add_name(const char* what, std::int32_t process, int thread, const std::string& name, int place,
              std::vector<std::string>& metadata) {
  metadata.push_back(fmt::format(R"({{"ph":"M","name":"{}_name","pid":{},"tid":{},"args":{{"name":{}}}}})", what,
                                 process, thread, name));
  metadata.push_back(fmt::format(R"({{"ph":"M","name":"{}_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
                                 what, process, thread, place));
}

void add_process(std::int32_t process, const std::string& name, std::vector<std::string>& metadata) {
  add_name("process", process, 0, name, process, metadata);
}

void add_thread(std::int32_t process, int thread, const std::string& name, std::vector<std::string>& metadata) {
  add_name("thread", process, thread, text_json(name), thread, metadata);
}

void add_tracks(std::int32_t process, const std::string& name, const std::set<Stream>& streams,
                std::vector<std::string>& metadata) {
  add_process(process, name, metadata);
  for (const Stream stream : streams) add_thread(process, thread_of(stream), name_of(stream), metadata);
}

void add_ranks(const Timeline& timeline, const Processes& processes, std::vector<std::string>& metadata,
               std::vector<Event>& events) {
  for (std::size_t k = 0; k < timeline.ranks.size(); ++k) {
    std::set<Stream> streams;
    for (const TimelineSpan& interval : timeline.ranks[k].intervals) {
      const Slice slice{nanoseconds(interval.begin_seconds), nanoseconds(interval.end_seconds)};
      if (slice.end <= slice.begin) continue;
      streams.insert(interval.stream);
      events.push_back(slot_event(interval, timeline.ops, slice, processes.rank(k)));
    }
    add_tracks(processes.rank(k), processes.name(timeline.ranks[k].who), streams, metadata);
  }
}

// Arrows connect slices: each end is moved to an instant inside the slice that sent, or that waited. Their numbers
// start after `id`, which is advanced.
void add_flows(const Timeline& timeline, const Processes& processes,
               std::map<std::int32_t, std::vector<Slice>>& compute, std::size_t& id, std::vector<Event>& events) {
  for (auto& [stage, slices] : compute)
    std::sort(slices.begin(), slices.end(), [](Slice a, Slice b) { return a.begin < b.begin; });
  for (const Arrow& arrow : timeline.arrows) {
    const auto& senders = compute[arrow.from_stage];
    const auto& receivers = compute[arrow.to_stage];
    const Nanoseconds sent = nanoseconds(arrow.from_seconds), arrived = nanoseconds(arrow.to_seconds);
    const auto after = std::partition_point(senders.begin(), senders.end(), [&](Slice s) { return s.begin < sent; });
    const auto receiver =
        std::partition_point(receivers.begin(), receivers.end(), [&](Slice s) { return s.begin < arrived; });
    if (after == senders.begin() || receiver == receivers.end()) continue;  // one end is outside the timeline
    const Slice sender = *std::prev(after);
    const Nanoseconds inside = std::max(sender.begin, std::min(sent, sender.end - 1));
    ++id;
    events.push_back({inside, flow_event('s', id, processes.stage(arrow.from_stage), inside)});
    events.push_back({receiver->begin, flow_event('f', id, processes.stage(arrow.to_stage), receiver->begin)});
  }
}

std::int32_t stages_of(const Timeline& timeline) {
  std::int32_t stages = 0;
  for (const TimelineSpan& interval : timeline.intervals) stages = std::max(stages, interval.stage + 1);
  for (const MemorySample& sample : timeline.memory) stages = std::max(stages, sample.stage + 1);
  return stages;
}

// The stages to write; empty: all.
std::set<std::int32_t> stages_written(const Timeline& timeline) {
  if (timeline.intervals.size() <= kMostSlots) return {};
  return {timeline.op_stages.begin(), timeline.op_stages.end()};
}

// The parts of a job that are left out, as further members of "otherData".
std::string bounds_text(const Timeline& timeline) {
  if (timeline.op_stages.empty()) return "";
  std::string stages;
  for (const std::int32_t stage : timeline.op_stages) stages += fmt::format("{}{}", stages.empty() ? "" : ",", stage);
  const auto slots = std::count_if(timeline.intervals.begin(), timeline.intervals.end(),
                                   [](const TimelineSpan& interval) { return interval.kind < kUpdate; });
  return fmt::format(R"(,"slots":{},"slots_with_ops":{},"stages_with_ops":[{}],"only_those_stages":{})", slots,
                     timeline.slots_with_ops, stages, stages_written(timeline).empty() ? "false" : "true");
}

// The tasks of one iteration (sim/program/task.h), whose first step is the one that the other processes show.
void add_tasks(const Report& report, const Processes& processes, std::vector<std::string>& metadata,
               std::vector<Event>& events) {
  if (report.tasks.empty()) return;
  constexpr int kTasks = 1, kBeside = 2;
  add_process(processes.iteration(), processes.name("iteration"), metadata);
  add_thread(processes.iteration(), kTasks, "tasks", metadata);
  add_thread(processes.iteration(), kBeside, "beside them", metadata);
  for (const TaskReport& task : report.tasks)
    events.push_back(slice_event(task.name, "task", processes.iteration(), task.beside ? kBeside : kTasks,
                                 {nanoseconds(task.begin_seconds), nanoseconds(task.end_seconds)},
                                 fmt::format(R"("repeats":{},"seconds":{},"waiting_seconds":{})", task.repeats,
                                             task.seconds, task.waiting_seconds)));
}

void add_job(const Report& report, const Processes& processes, std::size_t& flow, std::vector<std::string>& metadata,
             std::vector<Event>& events) {
  std::map<std::int32_t, std::set<Stream>> tracks;
  std::map<std::int32_t, std::vector<Slice>> compute;
  const Timeline& timeline = report.timeline;
  const std::set<std::int32_t> written = stages_written(timeline);
  const auto is_written = [&](std::int32_t stage) { return written.empty() || written.contains(stage); };
  events.reserve(events.size() + timeline.intervals.size() + 2 * timeline.arrows.size() + timeline.memory.size());
  for (const TimelineSpan& interval : timeline.intervals) {
    const Slice slice{nanoseconds(interval.begin_seconds), nanoseconds(interval.end_seconds)};
    if (slice.end <= slice.begin || !is_written(interval.stage)) continue;  // of length 0, or not written
    tracks[interval.stage].insert(interval.stream);
    if (interval.stream == Stream::compute) compute[interval.stage].push_back(slice);
    events.push_back(slot_event(interval, timeline.ops, slice, processes.stage(interval.stage)));
  }
  for (const MemorySample& sample : timeline.memory) {
    if (!is_written(sample.stage)) continue;
    tracks[sample.stage];
    events.push_back({nanoseconds(sample.seconds), memory_event(sample, processes.stage(sample.stage))});
  }
  add_flows(timeline, processes, compute, flow, events);
  const std::map<std::int32_t, std::set<Stream>> op_streams = add_ops(timeline, processes, events);
  const std::size_t before = events.size();
  add_links(report, processes, events);
  const bool links = events.size() > before;
  for (const auto& [stage, streams] : tracks) {
    const auto s = static_cast<std::size_t>(stage);
    const std::string name = s < timeline.stages.size() ? timeline.stages[s] : fmt::format("stage {}", stage);
    add_tracks(processes.stage(stage), processes.name(name), streams, metadata);
    const auto ops = op_streams.find(stage);
    if (ops == op_streams.end()) continue;
    for (const Stream stream : ops->second)
      add_thread(processes.stage(stage), thread_of_ops(stream), fmt::format("{} ops", name_of(stream)), metadata);
  }
  add_ranks(timeline, processes, metadata, events);
  if (links) add_process(processes.links(), processes.name("links"), metadata);
  add_tasks(report, processes, metadata, events);
}

}  // namespace

std::string report_trace(const Report& report) {
  const TracedJob job{"", &report};
  return jobs_trace({&job, 1});
}

std::string jobs_trace(std::span<const TracedJob> jobs) {
  std::vector<std::string> metadata;
  std::vector<Event> events;
  std::int32_t first = 0;
  std::size_t flow = 0;
  double seconds = 0;
  for (const TracedJob& job : jobs) {
    const Timeline& timeline = job.report->timeline;
    const Processes processes{job.name, first, stages_of(timeline), static_cast<std::int32_t>(timeline.ranks.size())};
    first = processes.end();
    add_job(*job.report, processes, flow, metadata, events);
    seconds = std::max(seconds, job.report->step_seconds);
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.at < b.at; });

  std::string out =
      fmt::format(R"({{"displayTimeUnit":"ms","otherData":{{"engine":{},"step_seconds":{}{}}},"traceEvents":[)",
                  text_json(jobs.empty() ? "" : jobs.front().report->engine), seconds,
                  jobs.size() == 1 ? bounds_text(jobs.front().report->timeline) : "");
  const char* separator = "\n";
  const auto append = [&](const std::string& text) {
    out += separator;
    out += text;
    separator = ",\n";
  };
  for (const std::string& text : metadata) append(text);
  for (const Event& event : events) append(event.text);
  return out + "\n]}\n";
}

}  // namespace orrery
