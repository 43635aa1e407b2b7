// Calls visit(field, value) for each field of a struct with a table of fields. The value of a choice is its index.
//   EachField each([&](const VisitedField& field, auto& value) { .. });
//   plan.visit_fields(each);
#pragma once

#include <utility>
#include <variant>

#include "sim/base/fields.h"

namespace orrery {

using AnyFieldValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>, std::size_t>;

struct VisitedField {
  std::string_view name;
  Scope scope;
  std::span<const std::string_view> names = {};  // of a choice
};

template <class Visit>
class EachField final : public FieldVisitor {
 public:
  explicit EachField(Visit visit) : visit_(std::move(visit)) {}

 protected:
  using Names = std::span<const std::string_view>;
  void integer(const char* name, std::int64_t& value, IntegerRange, const char*) override { call(name, value); }
  void number(const char* name, double& value, NumberRange, const char*) override { call(name, value); }
  void boolean(const char* name, bool& value, const char*) override { call(name, value); }
  void text(const char* name, std::string& value, const char*) override { call(name, value); }
  void integers(const char* name, std::vector<std::int64_t>& value, IntegerRange, const char*) override {
    call(name, value);
  }
  void choice(const char* name, std::size_t& index, Names names, const char*) override { call(name, index, names); }
  void choices(const char* name, std::vector<std::int64_t>& chosen, Names, const char*) override { call(name, chosen); }

 private:
  template <class Value>
  void call(const char* name, Value& value, Names names = {}) {
    visit_(VisitedField{name, scope(), names}, value);
  }

  Visit visit_;
};

}  // namespace orrery
