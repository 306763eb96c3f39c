package file

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// DefaultLane returns the recommended settings of a lane: one batch at a time, each with one fsync per
// file.
func DefaultLane() delivery.Lane {
	return delivery.Lane{Concurrency: 1, Batch: 1000, Timeout: 3 * lockWithin}
}

// Config names the files.
type Config struct {
	// The file, relative to the configuration file, such as
	// `archive/{{ date "2006-01-02" .Event.CreatedAt }}.jsonl`. Values are escaped.
	// The folder before the first template must exist; folders after it are made.
	//
	// Each value stays in its part of the path. In a Go program the path is
	// relative to the directory of [handlers.WithBaseDir].
	Path string `json:"path" yaml:"path" kind:"template" unset:"required"`
}

// Within returns how long one batch waits for the locks of its files: the lane's timeout has to be longer.
func (Config) Within() time.Duration { return lockWithin }

// Validate returns the mistakes, each a [*handlers.FieldError]. It opens no file.
func (c Config) Validate() error {
	_, err := c.parse()
	return err
}

// parse reads the template of the path.
func (c Config) parse() (*tmpl.Template, error) {
	switch {
	case c.Path == "":
		return nil, field.Errorf("path", "missing: name the file, such as archive/events.jsonl")
	case strings.ContainsRune(c.Path, 0):
		return nil, field.Errorf("path", "must have no NUL in it")
	}

	t, err := tmpl.Path.Parse("path", c.Path)
	if err != nil {
		return nil, field.Errorf("path", "%w", err)
	}

	parts := strings.Split(literal(c.Path[len(c.stem()):]), "/")
	if parts[len(parts)-1] == "" {
		return nil, field.Errorf("path", "is a folder: add the name of the file, such as events.jsonl")
	}

	for _, part := range parts {
		if err := checkPart(part); err != nil {
			return nil, field.Errorf("path", "%w: each event would fail", err)
		}
	}

	return t, nil
}

// literal replaces each action of a template by a NUL, which no path has: the output of an action is not
// known.
func literal(text string) string {
	var b strings.Builder
	for {
		before, action, ok := strings.Cut(text, "{{")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		b.WriteByte(0)
		text = action[actionEnd(action):]
	}
}

// actionEnd returns the offset behind the "}}" of an action. A comment and a quoted text may have others in them.
func actionEnd(action string) int {
	if comment := strings.TrimLeft(strings.TrimPrefix(action, "-"), " \t\r\n"); strings.HasPrefix(comment, "/*") {
		end := len(action) - len(comment) + strings.Index(comment, "*/")
		return end + strings.Index(action[end:], "}}") + len("}}")
	}

	var quote byte // that is open, 0 for none
	for i := 0; i < len(action); i++ {
		switch c := action[i]; {
		case quote != 0 && c == '\\' && quote != '`':
			i++
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
		case c == '"', c == '`', c == '\'':
			quote = c
		case strings.HasPrefix(action[i:], "}}"):
			return i + len("}}")
		}
	}

	return len(action) // the template was parsed, so this is not reached
}

// stem is the path up to the last folder before the first template. It ends with a slash, or is "".
func (c Config) stem() string {
	fixed, _, _ := strings.Cut(c.Path, "{{")
	return fixed[:strings.LastIndexByte(fixed, '/')+1]
}

// inside returns a path below dir, or below the working directory if dir is "", unless it is absolute.
func inside(dir, path string) string {
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	return filepath.Clean(path)
}

func checkPart(part string) error {
	if part == "" || part == "." || part == ".." {
		return fmt.Errorf("has the part %q", part)
	}
	return nil
}
