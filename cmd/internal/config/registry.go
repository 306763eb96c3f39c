package config

import (
	"maps"
	"slices"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/field"
)

// Settings are the settings of one destination: a pointer to a struct with
// yaml tags.
//
// Fields may be strings, booleans, numbers, time.Duration, handlers.Secret,
// pointers, structs, slices and maps of these, and types that implement
// encoding.TextUnmarshaler. A slice of strings accepts a single string as well.
// Reading a file enforces the tag "enum", and required, minimum= and maximum= of the
// tag "jsonschema"; the JSON Schema has the whole tag.
//
// The first paragraph of a field's doc comment describes it in [Schema] and [Reference], with code in backticks:
// [Descriptions]. Two tags write code in single quotes, as in 'tls: implicit', because a tag cannot contain backticks:
//
//	kind   the type, if the type of the field does not tell it: template, path, 1 to 100
//	unset  the default, if the value of the field does not tell it: required, 'host', 587; 465 with 'tls: implicit'
type Settings interface {
	// Validate returns the mistakes that the types cannot express, joined by
	// errors.Join, each a [*handlers.FieldError] whose path is relative to the struct.
	// It must not contact anything.
	Validate() error
}

// Effective is implemented by settings whose defaults come from other settings or from another package. [Print] shows the
// result, and [Diff] compares it.
type Effective interface {
	// Effective returns a copy with every default filled in, which is valid if the
	// settings are.
	Effective() Settings
}

// Warner is implemented by settings that may be allowed but probably not intended.
type Warner interface {
	// Warnings returns such settings of a valid configuration, joined by errors.Join, each a [*handlers.FieldError]
	// whose path is relative to the struct.
	Warnings() error
}

// Ordered is implemented by settings that may work only in a stream that keeps order.
type Ordered interface {
	// NeedsOrder returns the setting that needs it, such as "exactly_once: true"; "" if none does.
	NeedsOrder() (setting string)
}

// needsOrder returns the setting of a destination's type that needs order, "" if none does.
func (d *Destination) needsOrder() string {
	if s, ok := d.Settings.(Ordered); ok {
		return s.NeedsOrder()
	}
	return ""
}

// checkOrder wants order where the type needs it.
func (d *Destination) checkOrder() error {
	if setting := d.needsOrder(); setting != "" && d.Order == delivery.OrderNone {
		return field.Errorf("order", "%s keeps the order of events: use auto or aggregate", setting)
	}
	return nil
}

// Exclusive is implemented by settings that may name what only one destination of one outbox may use.
type Exclusive interface {
	// Exclusive returns the name of the setting, such as "transactional_id", and its value for each shard. It returns no
	// values if the setting is empty or differs between outboxes.
	Exclusive(shards int) (setting string, values []string)
}

// Dependent is implemented by settings with a default that depends on another setting.
type Dependent interface {
	// Complete sets such defaults; given reports whether a key is in the file.
	Complete(given func(key string) bool)
}

// Type creates the settings of a destination type, with the defaults filled in: a
// new pointer at every call. A setting with the name of one in [Lane] is decoded
// into both, which must have the same type, and its default replaces that of the lane.
type Type func() Settings

// Registry holds the destination types by name.
type Registry map[string]Type

// names returns the names of the types, sorted.
func (r Registry) names() []string { return slices.Sorted(maps.Keys(r)) }
