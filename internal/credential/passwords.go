package credential

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Settings name the source of the passwords of a database. The zero value has no source.
type Settings struct {
	// Command is a program with its arguments, and Lifetime how long its output is used.
	Command  []string
	Lifetime time.Duration
	// Region is the AWS region of a database that authenticates with IAM.
	Region string
}

// Passwords has the passwords of one configuration, for all its connections. It is safe for concurrent use.
type Passwords struct {
	mu      sync.Mutex
	command *Command
	tokens  *RDS
}

// Password gets the password of a user for a server at host:port.
type Password func(ctx context.Context, address, user string) (string, error)

// Of returns how a connection gets its password. It returns nil without settings, or if p is nil. The settings must be the
// same at each call.
func (p *Passwords) Of(s Settings) Password {
	if p == nil {
		return nil
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	switch {
	case len(s.Command) > 0:
		if p.command == nil {
			p.command = NewCommand(s.Command, s.Lifetime)
		}
		command := p.command
		return func(ctx context.Context, _, _ string) (string, error) {
			secret, err := command.Get(ctx)
			if err != nil {
				return "", fmt.Errorf("database.password_command: %w", err)
			}
			return secret, nil
		}
	case s.Region != "":
		if p.tokens == nil {
			p.tokens = NewRDS(s.Region)
		}
		tokens := p.tokens
		return func(ctx context.Context, address, user string) (string, error) {
			secret, err := tokens.Get(ctx, address, user)
			if err != nil {
				return "", fmt.Errorf("database.aws_region: %w", err)
			}
			return secret, nil
		}
	}

	return nil
}
