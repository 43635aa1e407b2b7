// One table per options struct drives everything that needs to know its fields: strict JSON reading, --set,
// the JSON Schema, `orrery show`, and printing. A struct takes part by having
//
//   void visit_fields(FieldVisitor& v) {
//     v.field("tensor_parallel", tensor_parallel, at_least(1), "ranks that share each layer's matrices");
//     v.field("schedule", schedule, kScheduleNames, "order of forward and backward passes");
//   }
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace orrery {

struct IntegerRange {
  std::int64_t least = 0;
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
};
struct NumberRange {
  double least = 0;
  double most = std::numeric_limits<double>::max();
  bool exclude_least = false;
  bool or_zero = false;  // 0 stands for none
};
inline IntegerRange at_least(std::int64_t least) { return {.least = least}; }
// The range of degrees and of numbers of parts of a job: far above any cluster, and small enough for products not to
// overflow.
inline IntegerRange degree(std::int64_t least = 1) { return {.least = least, .most = std::int64_t{1} << 20}; }
inline NumberRange or_none(NumberRange range) {
  range.or_zero = true;
  return range;
}
inline NumberRange positive() { return {.least = 0, .exclude_least = true}; }

// The part of the model for which a field has one value.
enum class Scope : std::uint8_t {
  all,      // the whole struct; for a field of the plan, the whole step
  mesh,     // all layers of the model: ranks are laid over one mesh
  stream,   // all layers: each rank has the whole residual stream, or all layers hand on parts of it
  buckets,  // all layers: buckets of gradients continue from one layer to the next
  layer,    // single layers: ranges of layers may have values of their own
};

// A field, as its struct's table describes it.
struct VisitedField {
  const char* name;
  const char* doc;
  Scope scope;
  IntegerRange integers = {};                    // of an integer or a list of integers
  NumberRange numbers = {};                      // of a number
  std::span<const std::string_view> names = {};  // of a choice or a set of choices
};
// Its value. A choice is its index in `names`, a set of choices their indices.
using AnyFieldValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>, std::size_t>;
using AnyFieldPointer =
    std::variant<std::int64_t*, double*, bool*, std::string*, std::vector<std::int64_t>*, std::size_t*>;

class FieldVisitor {
 public:
  virtual ~FieldVisitor() = default;

  void field(const char* name, std::int64_t& value, IntegerRange range, const char* doc, Scope scope = Scope::all) {
    visit({.name = name, .doc = doc, .scope = scope, .integers = range}, &value);
  }
  void field(const char* name, double& value, NumberRange range, const char* doc, Scope scope = Scope::all) {
    visit({.name = name, .doc = doc, .scope = scope, .numbers = range}, &value);
  }
  void field(const char* name, bool& value, const char* doc, Scope scope = Scope::all) {
    visit({.name = name, .doc = doc, .scope = scope}, &value);
  }
  void field(const char* name, std::string& value, const char* doc, Scope scope = Scope::all) {
    visit({.name = name, .doc = doc, .scope = scope}, &value);
  }
  void field(const char* name, std::vector<std::int64_t>& value, IntegerRange range, const char* doc,
             Scope scope = Scope::all) {
    visit({.name = name, .doc = doc, .scope = scope, .integers = range}, &value);
  }

  // A set of `names`, given by their indices.
  void field(const char* name, std::vector<std::int64_t>& chosen, std::span<const std::string_view> names,
             const char* doc, Scope scope = Scope::all) {
    visit({.name = name, .doc = doc, .scope = scope, .names = names}, &chosen);
  }

  // An enumeration whose enumerators are 0, 1, 2, ... in the order of `names`.
  template <class Enum>
  requires std::is_enum_v<Enum>
  void field(const char* name, Enum& value, std::span<const std::string_view> names, const char* doc,
             Scope scope = Scope::all) {
    auto index = static_cast<std::size_t>(value);
    visit({.name = name, .doc = doc, .scope = scope, .names = names}, &index);
    value = static_cast<Enum>(index);
  }

 private:
  virtual void visit(const VisitedField& field, AnyFieldPointer value) = 0;
};

// Calls visit(field, value) for each field of a struct with a table of fields.
//   EachField each([&](const VisitedField& field, auto& value) { .. });
//   plan.visit_fields(each);
template <class Visit>
class EachField final : public FieldVisitor {
 public:
  explicit EachField(Visit visit) : visit_(std::move(visit)) {}

 private:
  void visit(const VisitedField& field, AnyFieldPointer value) override {
    std::visit([&](auto* its) { visit_(field, *its); }, value);
  }

  Visit visit_;
};

// The same for a struct that stays as it is. It is copied, because tables of fields take references.
template <class Struct, class Visit>
void for_each_field(Struct its, Visit visit) {
  EachField each(std::move(visit));
  its.visit_fields(each);
}

}  // namespace orrery
