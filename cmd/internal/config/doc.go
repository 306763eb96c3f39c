// Package config reads notifyd.yaml, strictly: it reports all mistakes of the
// file at once, each with its line and column.
//
// The file is parsed into a tree of nodes that know their position (tree.go),
// "${env:NAME}" and "${file:PATH}" are expanded in the values of that tree
// (expand.go), and the tree is then walked against the Go structs by reflection
// (decode.go). Mistakes are collected, never returned at once.
//
// The package knows no destination. The settings of a destination type are a
// struct that the caller's [Registry] creates; the same struct defines the JSON
// Schema for editors (schema.go) and the tables of the documentation (reference.go).
package config
