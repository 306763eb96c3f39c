package config

import (
	"maps"
	"slices"
)

// Settings are the settings of one destination: a pointer to a struct with
// yaml tags.
//
// Fields may be strings, booleans, numbers, time.Duration, secret.String,
// pointers, structs, slices and maps of these, and whatever implements
// encoding.TextUnmarshaler. A slice of strings accepts a single string as well.
// Of the tag "jsonschema", the words required, enum=, minimum= and maximum= are
// enforced when a file is read, and all of them go into the JSON Schema.
type Settings interface {
	// Validate returns the mistakes that the types cannot express, joined by
	// errors.Join, each a *field.Error whose path is relative to the struct.
	// It must not contact anything.
	Validate() error
}

// Type makes the settings of a destination type, with the defaults filled in:
// a new pointer at every call. A setting with the name of one in [Lane] is
// decoded into both, and its default replaces that of the lane.
type Type func() Settings

// Registry holds the destination types by the word that chooses them.
type Registry map[string]Type

// names returns the types that exist, sorted.
func (r Registry) names() []string { return slices.Sorted(maps.Keys(r)) }
