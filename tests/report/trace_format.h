// The rules of the Chrome trace event format that viewers rely on.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace orrery {

inline void expect_trace_format(const nlohmann::json& trace) {
  using nlohmann::json;
  using Track = std::pair<int, int>;  // pid, tid
  struct Slice {
    double begin, end;
  };
  std::map<Track, std::vector<Slice>> slices;
  std::map<int, std::vector<json>> flows;
  std::set<Track> named;
  double last = 0;
  for (const json& event : trace.at("traceEvents")) {
    const std::string phase = event.at("ph");
    ASSERT_TRUE(std::set<std::string>({"X", "s", "f", "C", "M"}).contains(phase)) << phase;
    ASSERT_TRUE(event.at("name").is_string());
    ASSERT_TRUE(event.at("pid").is_number_integer());
    ASSERT_TRUE(event.at("tid").is_number_integer());
    const Track track{event["pid"], event["tid"]};
    if (phase == "M") {
      if (event["name"] == "thread_name") named.insert(track);
      continue;
    }
    ASSERT_TRUE(event.at("ts").is_number());
    const double ts = event["ts"];
    EXPECT_GE(ts, last) << "timestamps are sorted";
    last = ts;
    if (phase == "X") {
      ASSERT_TRUE(event.at("dur").is_number());
      const double duration = event["dur"];
      EXPECT_GT(duration, 0);
      // Half a nanosecond, as the microseconds are decimal fractions.
      if (!slices[track].empty()) {
        EXPECT_GE(ts, slices[track].back().end - 5e-4) << "slices of a track do not overlap";
      }
      slices[track].push_back({ts, ts + duration});
    } else if (phase == "C") {
      for (const auto& [series, value] : event.at("args").items()) EXPECT_TRUE(value.is_number()) << series;
    } else {
      flows[event.at("id").get<int>()].push_back(event);
    }
  }
  for (const auto& [track, unused] : slices) EXPECT_TRUE(named.contains(track)) << "every track has a name";
  for (const auto& [id, ends] : flows) {
    ASSERT_EQ(ends.size(), 2u) << "flow " << id << " starts and ends once";
    EXPECT_EQ(ends[0]["ph"], "s");
    EXPECT_EQ(ends[1]["ph"], "f");
    EXPECT_EQ(ends[1]["bp"], "e");
    for (const json& end : ends) {
      const auto& track = slices[{end["pid"], end["tid"]}];
      const double at = end["ts"];
      EXPECT_TRUE(std::any_of(track.begin(), track.end(), [&](const Slice& s) { return s.begin <= at && at < s.end; }))
          << "flow " << id << " is tied to a slice";
    }
  }
}

}  // namespace orrery
