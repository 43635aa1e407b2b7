#include "study/search/plan_field.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/base/error.h"
#include "sim/base/json_reader.h"

namespace orrery {
namespace {

class FieldWriter final : public FieldVisitor {
 public:
  explicit FieldWriter(std::string_view field) : field_(field) {}
  nlohmann::ordered_json value;
  std::optional<std::int64_t> place;
  std::vector<std::string> all;

 protected:
  void integer(const char* name, std::int64_t& of, IntegerRange, const char*) override { take(name, of, of); }
  void boolean(const char* name, bool& of, const char*) override { take(name, of, of ? 1 : 0); }
  void number(const char* name, double& of, NumberRange, const char*) override { take(name, of); }
  void text(const char* name, std::string& of, const char*) override { take(name, of); }
  void integers(const char* name, std::vector<std::int64_t>& of, IntegerRange, const char*) override { take(name, of); }
  void choice(const char* name, std::size_t& of, std::span<const std::string_view> names, const char*) override {
    take(name, std::string(names[of]), static_cast<std::int64_t>(of));
  }
  void choices(const char* name, std::vector<std::int64_t>& of, std::span<const std::string_view> names,
               const char*) override {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const std::int64_t i : of) list.push_back(std::string(names[static_cast<std::size_t>(i)]));
    take(name, list);
  }

 private:
  template <class Value>
  void take(const char* name, const Value& of, std::optional<std::int64_t> number = std::nullopt) {
    all.emplace_back(name);
    if (field_ != name) return;
    value = of;
    place = number;
  }

  std::string_view field_;
};

FieldWriter written(const Plan& plan, std::string_view field) {
  FieldWriter writer(field);
  Plan(plan).visit_fields(writer);
  return writer;
}

}  // namespace

std::string plan_field_named(std::string_view text, const std::string& file) {
  constexpr std::string_view kPlan = "plan.";
  std::string field(text.starts_with(kPlan) ? text.substr(kPlan.size()) : text);
  const std::vector<std::string> names = plan_field_names();
  if (std::find(names.begin(), names.end(), field) == names.end())
    throw InputError({file, "/plan/" + field}, "no field of a plan", "one of them (orrery list fields)",
                     nearest_name(field, names));
  return field;
}

nlohmann::ordered_json field_of(const Plan& plan, std::string_view field) { return written(plan, field).value; }

std::optional<std::int64_t> number_of(const Plan& plan, std::string_view field) { return written(plan, field).place; }

std::vector<std::string> plan_field_names() { return written({}, "").all; }

void set_field(Plan& plan, std::string_view field, const nlohmann::json& value) {
  const nlohmann::json object{{std::string(field), value}};
  JsonReader reader(object, {"", "/plan"});
  plan.visit_fields(reader);
  reader.finish();
}

}  // namespace orrery
