// Does what is written straight read as what a tree of values would?
#include "sim/base/json_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

template <class Value>
std::string written(const Value& value) {
  std::string text;
  JsonWriter(text).value(value);
  return text;
}

TEST(JsonWriter, NumbersReadBackAsTheSame) {
  for (const double number : {0.0, -0.0, 1.0, -2.0, 0.1, 1.0 / 3, 1e15, 1e16, 1e17, 123456789.125, 1e-4, 1e-5, 5e-324,
                              1.7976931348623157e308, 9007199254740993.0, 6.02214076e23}) {
    const OrderedJson read = OrderedJson::parse(written(number));
    EXPECT_TRUE(read.is_number_float()) << written(number);
    EXPECT_EQ(read.get<double>(), number);
    EXPECT_EQ(std::signbit(read.get<double>()), std::signbit(number));
  }
  for (const std::int64_t number : {std::int64_t{0}, std::int64_t{-7}, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_TRUE(OrderedJson::parse(written(number)).is_number_integer());
    EXPECT_EQ(OrderedJson::parse(written(number)).get<std::int64_t>(), number);
  }
  for (const double number : {INFINITY, -INFINITY, NAN}) EXPECT_EQ(written(number), OrderedJson(number).dump());
}

TEST(JsonWriter, TextsAreEscapedAsInATree) {
  for (const std::string text : {"", "plain", "a \"b\" \\ c", "tab\t line\n \x01", "é µ", "\xff broken \xc3"})
    EXPECT_EQ(written(std::string_view(text)),
              OrderedJson(text).dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
}

TEST(JsonWriter, PutsCommasBetween) {
  std::string text;
  JsonWriter w(text);
  w.begin_object();
  w.field("a", true);
  w.key("b");
  w.begin_array();
  w.begin_object();
  w.end_object();
  w.begin_array();
  w.end_array();
  w.value("c");
  w.value(std::int64_t{1});
  w.end_array();
  w.field("d", false);
  w.end_object();
  EXPECT_EQ(text, R"({"a":true,"b":[{},[],"c",1],"d":false})");
}

}  // namespace
}  // namespace orrery
