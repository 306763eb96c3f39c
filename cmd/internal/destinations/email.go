package destinations

import (
	"time"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/email"
)

// emailSettings are the settings of the type "email".
type emailSettings struct {
	Settings[email.Config, emailLane]
}

// emailLane has deliveries at once, each with a connection unless connections is set; and time for connecting and
// sending together.
type emailLane struct {
	// Mails sent at the same time, each on its own connection.
	Concurrency int `yaml:"concurrency" jsonschema:"minimum=1,maximum=100"`

	// Longest time for one mail, connecting included.
	Timeout time.Duration `yaml:"timeout"`
}

// Complete implements config.Dependent: by default there is a connection for each delivery at once.
func (s *emailSettings) Complete(func(key string) bool) {
	if s.Config.Connections == 0 {
		s.Config.Connections = max(s.Lane.Concurrency, 1)
	}
}

// Warnings implements config.Warner.
func (s *emailSettings) Warnings() error {
	return s.Config.Warnings(handlers.WithBaseDir(s.traits.baseDir))
}
