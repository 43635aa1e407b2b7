#include "sim/report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sim/report/format.h"
#include "sim/report/memory_verdict.h"
#include "sim/report/terms.h"

namespace orrery {
namespace {

constexpr int kBarColumns = 32;
constexpr std::size_t kLabelColumns = 42;
constexpr std::size_t kValueColumns = 12;
// Number of kernel shapes listed; the others are summed up.
constexpr std::size_t kShapesListed = 8;
// Two engines add the same seconds in different orders: smaller differences than this share of a step count as equal.
constexpr double kRounding = 1e-9;
// Number of rows in each table of the discrete-event engine.
constexpr std::size_t kRowsListed = 8;

enum class Paint { bold, dim, good, bad, time, memory };

std::string paint(std::string_view text, Paint paint, TableStyle style) {
  constexpr std::array kCodes{"1", "2", "32", "1;31", "34", "35"};
  if (!style.colour || text.empty()) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", kCodes.at(static_cast<std::size_t>(paint)), text);
}

std::string share_text(double share, Paint colour, TableStyle style) {
  return fmt::format("{}  {}", right(percent_text(share), 8), paint(bar(share, kBarColumns), colour, style));
}

void heading(std::string& out, std::string_view text, TableStyle style) {
  out += fmt::format("\n{}\n", paint(text, Paint::bold, style));
}

void line(std::string& out, std::string_view label, std::string_view value, std::string_view remark = {}) {
  out += fmt::format("  {}{}{}{}", left(label, kLabelColumns), right(value, kValueColumns), remark.empty() ? "" : "  ",
                     remark);
  out.erase(out.find_last_not_of(' ') + 1);
  out += '\n';
}

std::string stage_words(const StageReport& stage, std::size_t classes) {
  if (classes == 1 && stage.stages == 1) return "every device";
  if (stage.stages == 1) return fmt::format("stage {}", stage.stage);
  return fmt::format("stage {} and {} like it", stage.stage, stage.stages - 1);
}

std::string teraflops_text(double flops_per_second) {
  const double teraflops = flops_per_second * 1e-12;
  return teraflops < 1 ? fmt::format("{:.2g}", teraflops) : fmt::format("{:.1f}", teraflops);
}

void headline(std::string& out, const Report& r, TableStyle style) {
  const auto remark = [&](std::string_view text) { return paint(text, Paint::dim, style); };
  std::string range;
  if (r.expected)
    range = fmt::format("80 %: {} to {} ({})", seconds_text(r.expected->low_seconds),
                        seconds_text(r.expected->high_seconds), r.expected->comparable);
  line(out, "step time", seconds_text(r.step_seconds), remark(range));
  const auto too_much = [&](std::string_view label, double bytes, std::string_view where) {
    if (bytes > 0)
      line(out, label, paint("DOES NOT FIT", Paint::bad, style), bytes_text(bytes) + " too much " + std::string(where));
  };
  const double spare = r.memory_capacity_bytes - r.memory_peak_bytes;
  too_much("memory", -spare, "on the fullest device");
  if (device_is_tight(r))
    line(out, "memory", paint("tight", Paint::bold, style), bytes_text(spare) + " to spare on the fullest device");
  if (!r.host_memory.fits())
    too_much("host memory", r.host_memory.node_bytes - r.host_memory.capacity_bytes, "on the fullest node");
  if (host_is_tight(r))
    line(out, "host memory", paint("tight", Paint::bold, style),
         bytes_text(r.host_memory.capacity_bytes - r.host_memory.node_bytes) + " to spare on the fullest node");
  if (!r.storage.fits()) too_much("storage", r.storage.node_bytes - r.storage.capacity_bytes, "on the fullest node");
  line(out, "tokens/s", rate_text(r.tokens_per_second));
  line(out, "tokens/s per device", rate_text(r.tokens_per_second_per_device));
  line(out, "sequences/s", rate_text(r.sequences_per_second));
  line(out, "model TFLOP/s per device", teraflops_text(r.model_flops_per_second_per_device));
  line(out, "MFU", percent_text(r.mfu), remark("causal attention counted as the lower triangle, no recomputation"));
  if (r.mfu_full_attention != r.mfu)
    line(out, "MFU, full attention", percent_text(r.mfu_full_attention),
         remark("attention counted without the causal mask"));
  line(out, "HFU", percent_text(r.hfu), remark("what the devices execute, recomputation included"));
  line(out, "pipeline bubble", percent_text(r.bubble_fraction), remark("of the step"));
  line(out, "exposed communication", seconds_text(r.exposed_communication_seconds),
       remark(r.step_seconds > 0 ? percent_text(r.exposed_communication_seconds / r.step_seconds) + " of the step"
                                 : ""));
  line(out, "bound by", "", r.bound_by);
  std::vector<Figure> figures = r.figures;
  std::ranges::stable_sort(figures, {}, [](const Figure& figure) { return std::string_view(figure.kind->group); });
  for (const Figure& figure : figures)
    if (*figure.kind->label != '\0') line(out, figure.kind->label, figure_text(figure), remark(figure.remark));
}

void time_table(std::string& out, const Report& r, TableStyle style) {
  if (r.stages.empty()) return;
  const StageReport& stage = r.bounding();
  heading(out,
          fmt::format("Time of one step ({})", stage.who.empty() ? stage_words(stage, r.stages.size()) : stage.who),
          style);
  const double total = stage.time.total();
  for (const TimeTerm& term : time_terms()) {
    const double seconds = term.of(stage.time), share = total > 0 ? seconds / total : 0;
    if (seconds == 0) continue;
    line(out, term.label, seconds_text(seconds), share_text(share, Paint::time, style));
  }
  line(out, "total", seconds_text(total));
}

void task_table(std::string& out, const Report& r, TableStyle style) {
  if (r.tasks.empty()) return;
  heading(out, "Iteration", style);
  for (const TaskReport& task : r.tasks) {
    std::string remark = task.repeats > 1 ? fmt::format("x {}", task.repeats) : "";
    const auto add = [&](std::string_view text) { remark += (remark.empty() ? "" : ", ") + std::string(text); };
    if (task.beside) add("beside the tasks that follow");
    if (task.waiting_seconds > 0) add("waits " + seconds_text(task.waiting_seconds) + " before it begins");
    line(out, task.name, seconds_text(task.seconds), paint(remark, Paint::dim, style));
  }
  double slower = r.iteration_seconds;
  for (const TaskReport& task : r.tasks)
    slower -= task.waiting_seconds + (task.beside ? 0 : static_cast<double>(task.repeats) * task.seconds);
  constexpr double kWorthALine = 1e-6;
  if (slower > kWorthALine * r.iteration_seconds) line(out, "slower beside others", seconds_text(slower));
  line(out, "total", seconds_text(r.iteration_seconds),
       paint("the step time is its mean over the steps", Paint::dim, style));
}

void memory_table(std::string& out, const Report& r, TableStyle style) {
  if (r.stages.empty()) return;
  const StageReport& stage = r.fullest();
  heading(out, fmt::format("Memory of one device at the peak ({})", stage_words(stage, r.stages.size())), style);
  for (const MemoryPart& part : memory_parts()) {
    const double bytes = part.of(stage.memory);
    const double share = r.memory_capacity_bytes > 0 ? bytes / r.memory_capacity_bytes : 0;
    if (bytes == 0 || part.place != Place::device) continue;
    line(out, part.label, bytes_text(bytes), share_text(share, Paint::memory, style));
  }
  const auto verdict = [&](double margin, bool tight = false) {
    return margin >= 0 ? fmt::format("{}, {} to spare",
                                     tight ? paint("tight", Paint::bold, style) : paint("fits", Paint::good, style),
                                     bytes_text(margin))
                       : fmt::format("{}, {} too much", paint("DOES NOT FIT", Paint::bad, style), bytes_text(-margin));
  };
  line(out, "peak", bytes_text(r.memory_peak_bytes),
       fmt::format("of {}: {}", bytes_text(r.memory_capacity_bytes),
                   verdict(r.memory_capacity_bytes - r.memory_peak_bytes, device_is_tight(r))));
  if (const auto interval = peak_interval(r))
    line(out, "", "",
         paint(fmt::format("80 %: {} to {} (published peaks)", bytes_text(interval->low_bytes),
                           bytes_text(interval->high_bytes)),
               Paint::dim, style));
  if (device_is_tight(r))
    line(out, "", "", fmt::format("one published peak in ten was more than {:.2f} times the predicted one", kPeakHigh));
  const auto shared = [&](const SharedMemory& tier, Place place, std::string_view label) {
    if (tier.peak_bytes <= 0) return;
    std::string parts;
    for (const MemoryPart& part : category_parts())
      if (const double bytes = stage.memory.bytes.at(place)[part.category]; bytes > 0)
        parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", part.label, bytes_text(bytes));
    line(out, label, bytes_text(stage.memory.bytes.in(place)), parts);
    std::string node = fmt::format("{} of a node", bytes_text(tier.node_bytes));
    if (tier.process_bytes > 0) node += fmt::format(" ({} of it for processes)", bytes_text(tier.process_bytes));
    const bool tight = place == Place::host && host_is_tight(r);
    line(out, "", "",
         tier.capacity_bytes > 0 ? fmt::format("{}, of {}: {}", node, bytes_text(tier.capacity_bytes),
                                               verdict(tier.capacity_bytes - tier.node_bytes, tight))
                                 : fmt::format("{}, whose capacity is not known", node));
    if (place == Place::host && r.engine != "measured")
      line(out, "", "",
           paint(fmt::format("up to {}: {:.1f} times as much, as DeepSpeed recommends (pinned buffers, copies)",
                             bytes_text(kHostHigh * tier.node_bytes), kHostHigh),
                 Paint::dim, style));
  };
  shared(r.host_memory, Place::host, "in host memory");
  shared(r.storage, Place::storage, "in storage");
}

void stage_table(std::string& out, const Report& r, TableStyle style) {
  if (r.stages.size() < 2) return;
  heading(out, "Stages", style);
  out += fmt::format("  {:>9}  {:>6}  {:>11}  {:>11}  {:>11}  {:>10}  {:>12}\n", "stage", "alike", "busy", "exposed",
                     "bubble", "in flight", "peak memory");
  for (std::size_t i = 0; i < r.stages.size(); ++i) {
    const StageReport& s = r.stages[i];
    double exposed = 0;
    for (const double waiting : s.time.exposed) exposed += waiting;
    std::string remark;
    if (static_cast<std::int64_t>(i) == r.bounding_stage) remark = "  bounds the step";
    if (static_cast<std::int64_t>(i) == r.memory_stage) remark += remark.empty() ? "  fullest" : ", fullest";
    out += fmt::format("  {:>9}  {:>6}  {:>11}  {:>11}  {:>11}  {:>10.4g}  {:>12}{}\n", s.stage, s.stages,
                       seconds_text(s.busy_seconds), seconds_text(exposed), seconds_text(s.time.bubble),
                       s.in_flight_micro_batches, bytes_text(s.memory.peak_bytes), paint(remark, Paint::dim, style));
  }
}

void remarks(std::string& out, const Report& r, TableStyle style) {
  if (!r.unmeasured.empty()) {
    heading(out,
            fmt::format("Kernel shapes without a measured efficiency nearby ({} of the step)",
                        percent_text(r.unmeasured_share)),
            style);
    std::size_t listed = 0;
    double rest = 0;
    for (const UnmeasuredShape& shape : r.unmeasured) {
      if (listed++ < kShapesListed) {
        line(out, shape.op, percent_text(shape.share_of_step), shape.shape);
      } else {
        rest += shape.share_of_step;
      }
    }
    if (listed > kShapesListed) line(out, fmt::format("{} more", listed - kShapesListed), percent_text(rest));
  }
  if (!r.notes.empty()) {
    heading(out, "Notes", style);
    for (const std::string& note : r.notes) out += fmt::format("  - {}\n", note);
  }
}

// ---- two reports side by side

void compared(std::string& out, std::string_view label, std::string_view a, std::string_view b,
              std::string_view change) {
  out += fmt::format("  {}{}  {}  {}", left(label, kLabelColumns), right(a, kValueColumns), right(b, kValueColumns),
                     change);
  out.erase(out.find_last_not_of(' ') + 1);
  out += '\n';
}

std::string relative(double a, double b) {
  if (a == b) return right("same", 9);
  return a == 0 ? std::string() : right(signed_percent_text(b / a - 1), 9);
}

// ---- the discrete-event engine

// A heading and the first of `items` as rows, followed by the number of the others and their seconds.
template <class Item, class Row, class Seconds>
void section(std::string& out, std::string_view title, std::string_view columns, const std::vector<Item>& items,
             TableStyle style, Row row, Seconds seconds) {
  if (items.empty()) return;
  heading(out, title, style);
  std::vector<std::vector<std::string>> rows;
  double rest = 0;
  for (const Item& item : items) {
    if (rows.size() < kRowsListed) {
      rows.push_back(row(item));
    } else {
      rest += seconds(item);
    }
  }
  out += grid(columns, rows);
  if (items.size() <= kRowsListed) return;
  out += fmt::format("  {} more{}\n", items.size() - kRowsListed,
                     rest > 0 ? fmt::format(", {} together", seconds_text(rest)) : "");
}

std::string times_text(double times) { return fmt::format("{:.6g}", times); }

}  // namespace

std::string report_table(const Report& report, const std::vector<std::string>& title, TableStyle style) {
  std::string out;
  for (std::size_t i = 0; i < title.size(); ++i)
    out += paint(title[i], i == 0 ? Paint::bold : Paint::dim, style) + '\n';
  if (!title.empty()) out += '\n';
  headline(out, report, style);
  time_table(out, report, style);
  task_table(out, report, style);
  memory_table(out, report, style);
  stage_table(out, report, style);
  out += discrete_event_table(report, style);
  remarks(out, report, style);
  return out;
}

std::string discrete_event_table(const Report& r, TableStyle style) {
  std::string out;
  if (!r.discrete_event) return out;
  const DiscreteEventReport& d = *r.discrete_event;
  using Cells = std::vector<std::string>;
  heading(out, "Discrete-event simulation", style);
  line(out, "simulated", d.fidelity,
       fmt::format("{} ranks as {}, {} flows as {}, {} links as {}; {} events", d.ranks, d.rank_classes, d.flows,
                   d.flow_classes, d.links, d.link_classes, d.events));
  if (d.uncontended_step_seconds > 0)
    line(out, "in closed form, links unshared", seconds_text(d.uncontended_step_seconds),
         "simulated " + signed_percent_text(r.step_seconds / d.uncontended_step_seconds - 1));
  section(
      out, "Busiest links", "<link|alike|rate|carried|<    used", d.busiest_links, style,
      [&](const LinkReport& link) -> Cells {
        return {link.name, std::to_string(link.links), rate_text(link.bytes_per_second) + "B/s",
                bytes_text(link.busiest_bytes), share_text(link.utilisation, Paint::time, style)};
      },
      [](const LinkReport&) { return 0.0; });
  const auto lost = [](const ContentionReport& c) { return c.seconds - c.seconds_alone; };
  section(
      out, "Collectives slower than alone on undisturbed links (concurrent: times do not add up)",
      "<who|<op|<link|alone|took|lost", d.contention, style,
      [&](const ContentionReport& c) -> Cells {
        return {c.who, c.op, c.link, seconds_text(c.seconds_alone), seconds_text(c.seconds), seconds_text(lost(c))};
      },
      lost);
  section(
      out, "Critical path", "<who|<what|times|seconds|<   share", d.critical_path, style,
      [&](const CriticalPathPart& part) -> Cells {
        const double share = r.step_seconds > 0 ? part.seconds / r.step_seconds : 0;
        return {part.who, part.what, times_text(part.times), seconds_text(part.seconds),
                share_text(share, Paint::time, style)};
      },
      [](const CriticalPathPart& part) { return part.seconds; });
  section(
      out, "Who waited for whom (concurrent: times do not add up)", "<who|<for whom|<at|times|seconds", d.waits, style,
      [](const WaitReport& wait) -> Cells {
        const std::string who =
            wait.alike > 0 ? fmt::format("{} and {} similar kinds", wait.who, wait.alike) : wait.who;
        return {who, wait.for_whom, wait.op, times_text(wait.times), seconds_text(wait.seconds)};
      },
      [](const WaitReport& wait) { return wait.seconds; });
  return out;
}

std::string comparison_table(const Report& a, const Report& b, const std::vector<std::string>& title, TableStyle style,
                             const ComparisonNames& names) {
  std::string out;
  for (const std::string& text : title) out += paint(text, Paint::bold, style) + '\n';
  if (!title.empty()) out += '\n';
  compared(out, "", names.a, names.b, "   change");
  const auto figure = [&](const char* label, auto text, double Report::*its) {
    compared(out, label, text(a.*its), text(b.*its), relative(a.*its, b.*its));
  };
  figure("step time", seconds_text, &Report::step_seconds);
  figure("tokens/s per device", rate_text, &Report::tokens_per_second_per_device);
  figure("model TFLOP/s per device", teraflops_text, &Report::model_flops_per_second_per_device);
  figure("MFU", percent_text, &Report::mfu);
  figure("peak memory", bytes_text, &Report::memory_peak_bytes);
  compared(out, "memory", name_of(memory_verdict(a)), name_of(memory_verdict(b)), "");
  compared(out, "bound by", "", "", fmt::format("{}: {}; {}: {}", names.a, a.bound_by, names.b, b.bound_by));
  if (a.stages.empty() || b.stages.empty()) return out;

  struct Difference {
    const TimeTerm* term = nullptr;
    double a_seconds = 0, b_seconds = 0;
    double change() const { return b_seconds - a_seconds; }
  };
  std::vector<Difference> differences;
  const TimeBreakdown &time_a = a.bounding().time, &time_b = b.bounding().time;
  const double negligible = kRounding * std::max(a.step_seconds, b.step_seconds);
  for (const TimeTerm& term : time_terms()) {
    const double seconds_a = term.of(time_a), seconds_b = term.of(time_b);
    if (std::max(std::fabs(seconds_a), std::fabs(seconds_b)) <= negligible) continue;
    differences.push_back({&term, seconds_a, std::fabs(seconds_b - seconds_a) <= negligible ? seconds_a : seconds_b});
  }
  std::stable_sort(differences.begin(), differences.end(), [](const Difference& x, const Difference& y) {
    return std::fabs(x.change()) > std::fabs(y.change());
  });

  heading(out, "What makes the difference (each on the stage that bounds it)", style);
  double largest = 0;
  for (const Difference& d : differences) largest = std::max(largest, std::fabs(d.change()));
  for (const Difference& d : differences) {
    const std::string change = right(fmt::format("{}{}", d.change() > 0 ? "+" : "", seconds_text(d.change())), 11);
    const std::string length = bar(largest > 0 ? std::fabs(d.change()) / largest : 0, kBarColumns);
    compared(out, d.term->label, seconds_text(d.a_seconds), seconds_text(d.b_seconds),
             fmt::format("{}  {}", change, paint(length, d.change() > 0 ? Paint::bad : Paint::good, style)));
  }
  return out;
}

}  // namespace orrery
