// Package config reads notifyd.yaml, strictly: every mistake in the file is
// reported, all in one go, each with its line and column.
//
// The file is parsed into a tree of nodes that know their position (tree.go),
// "${env:NAME}" and "${file:PATH}" are expanded in the values of that tree
// (expand.go), and the tree is then walked against the Go structs by reflection
// (decode.go). Whatever goes wrong is collected, never returned at once.
//
// The package knows no destination. The settings of a destination type are a
// struct that the caller's [Registry] makes; the same struct gives the JSON
// Schema for editors (schema.go).
package config
