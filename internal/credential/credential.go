// Package credential gets passwords and tokens that expire: from a program that prints one, or from AWS.
package credential

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// RunTimeout bounds one run of a program. It is below the time that a relay has for a connection.
	RunTimeout = 8 * time.Second
	// DefaultLifetime is how long a credential is used for new connections if nothing else is configured.
	DefaultLifetime = time.Minute
	// maxBytes bounds the output of a program. Tokens of clouds have up to some thousand bytes.
	maxBytes = 64 << 10
	// shownBytes bounds what an error shows of the standard error of a program.
	shownBytes = 200
)

// Command gets a credential from a program. It is safe for concurrent use: concurrent callers wait for one run.
type Command struct {
	argv     []string
	lifetime time.Duration
	run      func(ctx context.Context, argv []string) (stdout, stderr []byte, err error)

	running chan struct{} // capacity 1: held while the program runs
	last    atomic.Pointer[result]
}

// result is the last credential.
type result struct {
	text  string
	until time.Time
}

// NewCommand returns a Command that runs a program with its arguments, without a shell. The output is used for that
// lifetime; 0 runs the program every time.
func NewCommand(argv []string, lifetime time.Duration) *Command {
	return &Command{argv: argv, lifetime: lifetime, run: run, running: make(chan struct{}, 1)}
}

// Get returns the credential. An error does not contain the output of the program.
func (c *Command) Get(ctx context.Context) (string, error) {
	if r := c.last.Load(); r != nil && time.Now().Before(r.until) {
		return r.text, nil
	}

	select {
	case c.running <- struct{}{}:
		defer func() { <-c.running }()
	case <-ctx.Done():
		return "", fmt.Errorf("wait for %s: %w", c.argv[0], context.Cause(ctx))
	}

	if r := c.last.Load(); r != nil && time.Now().Before(r.until) { // another caller has just got it
		return r.text, nil
	}

	began := time.Now()
	text, err := c.get(ctx)
	if err != nil {
		return "", err
	}

	c.last.Store(&result{text, began.Add(c.lifetime)})
	return text, nil
}

func (c *Command) get(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, RunTimeout, fmt.Errorf("it did not end within %v", RunTimeout))
	defer cancel()

	stdout, stderr, err := c.run(ctx, c.argv)
	switch {
	case err != nil && ctx.Err() != nil:
		return "", fmt.Errorf("run %s: %w", c.argv[0], context.Cause(ctx))
	case err != nil:
		return "", fmt.Errorf("run %s: %w%s", c.argv[0], err, lineOf(stderr, stdout))
	}

	text, err := credentialOf(stdout)
	if err != nil {
		return "", fmt.Errorf("run %s: %w%s", c.argv[0], err, lineOf(stderr, stdout))
	}

	return text, nil
}

// credentialOf returns the single line that a program has printed.
func credentialOf(stdout []byte) (string, error) {
	if len(stdout) > maxBytes {
		return "", fmt.Errorf("it printed more than %d bytes: must be one line with the credential", maxBytes)
	}

	text := strings.TrimRight(string(stdout), "\r\n")
	switch {
	case strings.TrimSpace(text) == "":
		return "", errors.New("it printed nothing: must be one line with the credential")
	case strings.ContainsAny(text, "\r\n"):
		return "", errors.New("it printed several lines: must be one line with the credential")
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return "", errors.New("it printed no text: must be one line with the credential")
	}

	return text, nil
}

// lineOf returns the first line of the standard error, for an error. A program may print a secret there as well; a line
// that shares a word of the output is not shown.
func lineOf(stderr, stdout []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(stderr)), "\n")
	line = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(strings.TrimSpace(line), ""))

	for word := range strings.FieldsSeq(string(stdout)) {
		if strings.Contains(line, word) {
			return ""
		}
	}

	if line == "" {
		return ""
	}

	if len(line) > shownBytes {
		line = strings.ToValidUTF8(line[:shownBytes], "") + "..."
	}
	return ": " + line
}
