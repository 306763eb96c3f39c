package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// variable matches a shell's variable that is a whole text, or in a URL.
var variable = regexp.MustCompile(`^\$[A-Z_][A-Z0-9_]*$|^[A-Za-z][A-Za-z0-9+.-]*://(?:\S*[^$\s])?\$[A-Z_][A-Z0-9_]+(?:[^A-Za-z0-9_\s]\S*)?$`)

// shellVariable reports whether a text of the file has a variable in a shell's notation.
func shellVariable(s string) bool { return variable.MatchString(s) }

// LookupEnv returns an environment variable and whether it is set, as
// os.LookupEnv does.
type LookupEnv func(name string) (string, bool)

// maxFile bounds the file of "${file:PATH}": a secret or a template, not a disk.
const maxFile = 1 << 20

var (
	envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

	// The messages do not repeat the text: "${" may be part of a password.
	errUnknownExpansion = errors.New("only ${env:NAME}, ${env:NAME:-default} and ${file:PATH} are expanded: write $$ for a dollar sign")
	errShellVariable    = errors.New("a variable is written ${env:NAME}, $NAME is not expanded: write $$ for a dollar sign")
	errOpenExpansion    = errors.New("${ without a closing brace: write $$ for a dollar sign")
	errNestedExpansion  = errors.New("an expansion inside an expansion is not supported")
	errRedacted         = errors.New(redacted + " stands for a secret that was not shown when this was printed: " +
		"write the secret in its place, best as ${env:NAME} or ${file:PATH}")
	errEnvName  = errors.New("the name in ${env:NAME} must be letters, digits and underscores")
	errFileName = errors.New("${file:PATH} names no file")
)

// expander replaces "${env:NAME}" and "${file:PATH}" in the values of a file.
type expander struct {
	lookup LookupEnv
	// dir is the folder of the configuration file. Relative paths start there, not
	// in the daemon's working directory.
	dir string
	// values are secrets and expanded texts, which no message may show. Numbers and
	// the like are left out: a 1 would redact every 1.
	values []string
}

func (x *expander) keep(value string) {
	if value != "" {
		x.values = append(x.values, value)
	}
}

// expand returns s with its expansions replaced, and whether there were any.
// The result of an expansion is not expanded again.
func (x *expander) expand(s string) (text string, used bool, errs []error) {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i+1 == len(s) {
			b.WriteString(s)
			return b.String(), used, errs
		}

		b.WriteString(s[:i])
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			s = s[i+2:]
		case '{':
			end := strings.IndexByte(s[i:], '}')
			if end < 0 {
				return b.String(), used, append(errs, errOpenExpansion)
			}

			value, err := x.value(s[i+2 : i+end])
			if err != nil {
				errs = append(errs, err)
			}

			b.WriteString(value)
			used = true
			s = s[i+end+1:]
		default:
			b.WriteByte('$')
			s = s[i+1:]
		}
	}
}

// value returns the value of the expression between the braces.
func (x *expander) value(inner string) (string, error) {
	if inner == redactedName {
		return "", errRedacted
	}
	if strings.Contains(inner, "${") {
		return "", errNestedExpansion
	}
	if name, ok := strings.CutPrefix(inner, "env:"); ok {
		return x.env(name)
	}
	if path, ok := strings.CutPrefix(inner, "file:"); ok {
		return x.file(path)
	}
	return "", errUnknownExpansion
}

func (x *expander) env(name string) (string, error) {
	name, fallback, hasFallback := strings.Cut(name, ":-")
	if !envName.MatchString(name) {
		return "", errEnvName
	}

	value, ok := x.lookup(name)
	switch {
	case hasFallback && value == "":
		return fallback, nil
	case !ok:
		return "", fmt.Errorf("the environment variable %s is not set: set it, or write ${env:%s:-default}", name, name)
	default:
		return value, nil
	}
}

func (x *expander) file(path string) (string, error) {
	if path == "" {
		return "", errFileName
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(x.dir, path)
	}

	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("cannot read the file of ${file:}: %w", err)
	}
	defer f.Close() //nolint:errcheck // nothing was written

	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", fmt.Errorf("cannot read the file of ${file:}: %w", err)
	}

	if len(data) > maxFile {
		return "", fmt.Errorf("the file %s is larger than 1 MiB", path)
	}

	text := strings.TrimSuffix(string(data), "\n")
	return strings.TrimSuffix(text, "\r"), nil
}
