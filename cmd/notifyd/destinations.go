package main

import "github.com/notifyd/notifyd/internal/config"

// registry lists the destination types by the word in a destination's "type".
func registry() config.Registry {
	return config.Registry{
		"log": func() config.Settings { return &logSettings{Output: "stdout"} },
	}
}

// logSettings are the settings of the type "log".
type logSettings struct {
	Output string `yaml:"output" jsonschema:"enum=stdout,enum=stderr" jsonschema_description:"Where the lines go."`
}

// Validate has nothing to add to what the tags say.
func (logSettings) Validate() error { return nil }
