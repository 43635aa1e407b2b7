// Are the figures of operations complete, dated and sourced, and does bad input get its sentence?
#include "sim/planning/presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/hardware/presets.h"

namespace orrery {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

InputError::Where here() { return {"plan.json", "/price"}; }

template <class Read>
std::string message(Read&& read) {
  try {
    read();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}
std::string price_message(std::string_view json) {
  return message([&] { PresetsOf<Price>::read(parse_json(json, "plan.json"), here()); });
}

TEST(PlanningPresets, FilesAreStrictJson) {
  int files = 0;
  for (const EmbeddedFile& file : embedded_files("sim/planning/presets/")) {
    EXPECT_NO_THROW(parse_json(file.text, std::string(file.path)));
    ++files;
  }
  EXPECT_EQ(files, 7);
}

TEST(PlanningPresets, EveryPriceIsPlausibleDatedAndOfADevice) {
  const auto names = PresetsOf<Price>::names();
  EXPECT_GE(names.size(), 90u);
  for (const std::string& name : names) {
    const Price price = PresetsOf<Price>::find(name);
    EXPECT_EQ(price.name, name);
    EXPECT_EQ(find_device(price.device).name, price.device) << name;
    EXPECT_THAT(price.per_device_hour, AllOf(Ge(0.2), Le(30))) << name;
    EXPECT_EQ(price.currency, "USD") << name;
    EXPECT_THAT(price.date, Ge("2024")) << name;
    EXPECT_FALSE(price.provider.empty()) << name;
    EXPECT_GT(price.source.size(), 10u) << name;
  }
}

// A commitment is cheaper than the same device, provider and day without one.
TEST(PlanningPresets, CommitmentsCostLess) {
  int pairs = 0;
  for (const std::string& longer : PresetsOf<Price>::names()) {
    const Price committed = PresetsOf<Price>::find(longer);
    if (committed.term != PriceTerm::one_year && committed.term != PriceTerm::three_year) continue;
    for (const std::string& name : PresetsOf<Price>::names()) {
      const Price price = PresetsOf<Price>::find(name);
      if (price.device != committed.device || price.provider != committed.provider || price.date != committed.date)
        continue;
      if (price.term >= committed.term) continue;
      EXPECT_GT(price.per_device_hour, committed.per_device_hour) << name << ' ' << longer;
      ++pairs;
    }
  }
  EXPECT_GE(pairs, 10);
}

TEST(PlanningPresets, EveryOtherFigureIsPlausibleDatedAndSourced) {
  const auto documented = [](const auto& preset) {
    EXPECT_FALSE(preset.date.empty()) << preset.name;
    EXPECT_GT(preset.source.size(), 5u) << preset.name;
  };
  for (const std::string& name : PresetsOf<Power>::names()) {
    const Power power = PresetsOf<Power>::find(name);
    documented(power);
    EXPECT_THAT(power.busy_watts, AllOf(Ge(200), Le(2000))) << name;
    EXPECT_LE(power.waiting_watts(), power.busy_watts) << name;
    // Board power is the data sheet's (two sources of the B300's differ by a tenth); what a node takes is more.
    const double tdp = find_device(power.device).tdp_watts;
    if (name.ends_with("-board")) {
      EXPECT_NEAR(power.busy_watts, tdp, name == "b300-board" ? 0.1 * tdp : 0) << name;
    } else if (name.find("-node-") != std::string::npos) {
      EXPECT_GT(power.busy_watts, tdp) << name;
    }
  }
  for (const std::string& name : PresetsOf<SiteOverhead>::names()) {
    documented(PresetsOf<SiteOverhead>::find(name));
    EXPECT_THAT(PresetsOf<SiteOverhead>::find(name).pue, AllOf(Ge(1.05), Le(1.7))) << name;
  }
  for (const std::string& name : PresetsOf<Grid>::names()) {
    documented(PresetsOf<Grid>::find(name));
    EXPECT_FALSE(PresetsOf<Grid>::find(name).basis.empty()) << name;
    EXPECT_THAT(PresetsOf<Grid>::find(name).grams_per_kwh, AllOf(Ge(1), Le(800))) << name;
  }
  for (const std::string& name : PresetsOf<FailureRate>::names()) {
    documented(PresetsOf<FailureRate>::find(name));
    EXPECT_THAT(PresetsOf<FailureRate>::find(name).failures_per_node_day, AllOf(Ge(1e-3), Le(2e-2))) << name;
  }
  for (const std::string& name : PresetsOf<CheckpointStorage>::names()) {
    documented(PresetsOf<CheckpointStorage>::find(name));
    EXPECT_THAT(PresetsOf<CheckpointStorage>::find(name).write_bytes_per_second, AllOf(Ge(1e10), Le(1e13))) << name;
  }
  for (const std::string& name : PresetsOf<RestartOverhead>::names()) {
    documented(PresetsOf<RestartOverhead>::find(name));
    const RestartOverhead restart = PresetsOf<RestartOverhead>::find(name);
    EXPECT_THAT(restart.detection_seconds + restart.restart_seconds, AllOf(Ge(100), Le(3600))) << name;
  }
  EXPECT_GE(PresetsOf<Power>::names().size() + PresetsOf<SiteOverhead>::names().size() +
                PresetsOf<FailureRate>::names().size(),
            40u);
  EXPECT_GE(PresetsOf<Grid>::names().size(), 80u);
}

TEST(PlanningPresets, NoSourceNamesAFolderOfTheMachineItWasWrittenOn) {
  for (const EmbeddedFile& file : embedded_files("sim/planning/presets/"))
    for (const char* word : {"/work", "/tmp", "recalled", "from memory"})
      EXPECT_EQ(file.text.find(word), std::string_view::npos) << file.path << ' ' << word;
}

TEST(PlanningPresets, NamesMatchInAnyCaseAndUnknownOnesGetTheNearest) {
  EXPECT_EQ(PresetsOf<Price>::read("AWS H100", here()).name, "aws-h100");
  EXPECT_EQ(price_message(R"("aws-h10")"),
            "plan.json: /price: found \"aws-h10\", expected the name of a price preset (did you mean \"aws-h100\"?)");
  EXPECT_THAT(message([] { PresetsOf<Grid>::read("frnace", {}); }), HasSubstr("did you mean \"france\"?"));
  EXPECT_THAT(price_message(R"({"per_devise_hour": 2, "currency": "USD", "date": "2026"})"),
              HasSubstr("did you mean \"per_device_hour\"?"));
  EXPECT_THAT(price_message(R"({"base": "aws-h100", "device": "h10"})"),
              HasSubstr("found \"h10\", expected the name of "
                        "a device preset"));
}

TEST(PlanningPresets, APriceWithoutCurrencyOrDateIsRefused) {
  EXPECT_EQ(
      price_message(R"({"per_device_hour": 2, "date": "2026-05"})"),
      "plan.json: /price/currency: found nothing, expected the price's currency, three letters of ISO 4217 as USD");
  EXPECT_EQ(price_message(R"({"per_device_hour": 2, "currency": "USD"})"),
            "plan.json: /price/date: found nothing, expected the day of the price as 2026, 2026-05 or 2026-05-31");
  for (const char* date : {"\"05/2026\"", "\"2026-13\"", "\"2026-5\"", "\"2026-05-32\"", "\"26\"", "\"2026-05-3\""})
    EXPECT_THAT(price_message(std::string(R"({"per_device_hour": 2, "currency": "USD", "date": )") + date + "}"),
                HasSubstr("/price/date: found "))
        << date;
  EXPECT_THAT(price_message(R"({"per_device_hour": 2, "currency": "$", "date": "2026"})"),
              HasSubstr("/price/currency: found \"$\""));
  EXPECT_THAT(price_message(R"({"currency": "USD", "date": "2026"})"),
              HasSubstr("/price/per_device_hour: found nothing"));
  EXPECT_EQ(price_message(R"({"per_device_hour": 0, "currency": "EUR", "date": "2026-05-31"})"), "no error");
}

TEST(PlanningPresets, NegativeRatesAreRefused) {
  EXPECT_THAT(price_message(R"({"per_device_hour": -2, "currency": "USD", "date": "2026"})"),
              HasSubstr("/price/per_device_hour: found -2, expected a number from 0"));
  const auto refused = [](auto read, const char* json) {
    return message([&] { read(parse_json(json, "p.json"), InputError::Where{"p.json", ""}); });
  };
  EXPECT_THAT(refused(PresetsOf<FailureRate>::read, R"({"failures_per_node_day": -0.001})"), HasSubstr("found -0.001"));
  EXPECT_THAT(refused(PresetsOf<FailureRate>::read, R"({"failures_per_node_day": 1, "repair_share": 1.5})"),
              HasSubstr("from 0 to 1"));
  EXPECT_THAT(refused(PresetsOf<CheckpointStorage>::read, R"({"write_bytes_per_second": -1})"), HasSubstr("found -1"));
  EXPECT_THAT(refused(PresetsOf<CheckpointStorage>::read, R"({"read_bytes_per_second": 1})"),
              HasSubstr("/write_bytes_per_second"));
  EXPECT_THAT(refused(PresetsOf<RestartOverhead>::read, R"({"detection_seconds": 5})"),
              HasSubstr("/restart_seconds: found nothing"));
  EXPECT_THAT(refused(PresetsOf<Grid>::read, R"({"grams_per_kwh": -1})"), HasSubstr("found -1"));
  EXPECT_THAT(refused(PresetsOf<SiteOverhead>::read, R"({"pue": 0.9})"), HasSubstr("found 0.9"));
  EXPECT_THAT(refused(PresetsOf<Power>::read, R"({"busy_watts": 300, "idle_watts": 301})"),
              HasSubstr("expected at most busy_watts"));
  EXPECT_THAT(refused(PresetsOf<Power>::read, R"({"busy_watts": 300, "date": "May"})"),
              HasSubstr("/date: found \"May\""));
}

// What is written reads as the same, but for the name.
template <class Preset>
void expect_written_as_read() {
  for (const std::string& name : PresetsOf<Preset>::names()) {
    nlohmann::json written = to_json(PresetsOf<Preset>::find(name));
    EXPECT_EQ(written.at("preset"), name);
    written.erase("preset");
    EXPECT_EQ(to_json(PresetsOf<Preset>::read(written, {})), written) << name;
  }
}

TEST(PlanningPresets, AreWrittenAsTheyAreRead) {
  expect_written_as_read<Price>();
  expect_written_as_read<Power>();
  expect_written_as_read<SiteOverhead>();
  expect_written_as_read<Grid>();
  expect_written_as_read<FailureRate>();
  expect_written_as_read<CheckpointStorage>();
  expect_written_as_read<RestartOverhead>();
}

TEST(PlanningPresets, AnObjectChangesThePresetItIsBasedOn) {
  const Price price =
      PresetsOf<Price>::read(parse_json(R"({"base": "gcp-h100", "per_device_hour": 9, "date": "2026-11"})", ""), {});
  EXPECT_EQ(price.per_device_hour, 9);
  EXPECT_EQ(price.date, "2026-11");
  EXPECT_EQ(price.device, PresetsOf<Price>::find("gcp-h100").device);
  EXPECT_EQ(price.name, "");
  const Power power = PresetsOf<Power>::read(parse_json(R"({"base": "a100-bloom", "busy_watts": 350})", ""), {});
  EXPECT_EQ(power.busy_watts, 350);
  // The figure is not of the preset's source, nor of its day.
  EXPECT_EQ(price.source, "the plan, changed from gcp-h100");
  EXPECT_EQ(power.date, "");
  EXPECT_EQ(PresetsOf<Power>::read(parse_json(R"({"base": "a100-bloom"})", ""), {}).date,
            PresetsOf<Power>::find("a100-bloom").date);
  EXPECT_THAT(price_message(R"({"base": "gcp-h100", "per_device_hour": 9})"), HasSubstr("/price/date: found nothing"));
  EXPECT_EQ(power.waiting_watts(), 237);
  EXPECT_EQ(PresetsOf<Power>::find("h100-board").waiting_watts(), 700);  // nobody has published it
}

}  // namespace
}  // namespace orrery
