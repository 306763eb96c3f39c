package config

import (
	"maps"
	"slices"
)

// Settings are the settings of one destination: a pointer to a struct with
// yaml tags.
//
// Fields may be strings, booleans, numbers, time.Duration, secret.String,
// pointers, structs, slices and maps of these, and types that implement
// encoding.TextUnmarshaler. A slice of strings accepts a single string as well.
// Reading a file enforces required, enum=, minimum= and maximum= of the tag
// "jsonschema"; the JSON Schema has the whole tag.
type Settings interface {
	// Validate returns the mistakes that the types cannot express, joined by
	// errors.Join, each a *field.Error whose path is relative to the struct.
	// It must not contact anything.
	Validate() error
}

// Effective is implemented by settings whose defaults depend on other settings, or are
// those of another package: [Print] and [Diff] show and compare what it returns.
type Effective interface {
	// Effective returns a copy with every default filled in, which is valid if the
	// settings are.
	Effective() Settings
}

// Type creates the settings of a destination type, with the defaults filled in: a
// new pointer at every call. A setting with the name of one in [Lane] is decoded
// into both, which must have the same type, and its default replaces that of the lane.
type Type func() Settings

// Registry holds the destination types by name.
type Registry map[string]Type

// names returns the names of the types, sorted.
func (r Registry) names() []string { return slices.Sorted(maps.Keys(r)) }
