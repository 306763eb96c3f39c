package tmpl

import (
	"errors"
	"fmt"
	htmltemplate "html/template"
	"regexp"
	"strconv"
	"strings"
	texttemplate "text/template"
)

// funcError is an error of one of the template functions. Its text holds nothing from the payload, so it may be shown.
type funcError struct {
	text string
	at   string // the expression in the template; "" if the template packages name it
}

func (e *funcError) Error() string { return e.text }

func funcErrorf(format string, args ...any) error {
	return &funcError{text: fmt.Sprintf(format, args...)}
}

// parseError rewrites an error of the template packages: it names the template, the line, the mistake and the cure.
func parseError(name string, err error) error {
	msg := strings.TrimPrefix(err.Error(), "template: ")
	msg = strings.TrimPrefix(msg, name+":")

	line := 1
	if number, rest, ok := strings.Cut(msg, ": "); ok {
		if n, err := strconv.Atoi(number); err == nil {
			line = n
			msg = rest
		}
	}

	return fmt.Errorf("template %q, line %d: %s: %s", name, line, msg, parseCure(msg))
}

// ContextError is the error about HTML in which no value can be escaped, because a tag, a quote or a comment is open.
type ContextError struct {
	Path   string // of the part
	Line   int
	Reason string
}

// Error returns the place, the mistake and the cure.
func (e *ContextError) Error() string {
	return fmt.Sprintf("template %q, line %d: %s: close the tag, quote or comment that is open where the value stands",
		e.Path, e.Line, e.Reason)
}

// contextError rewrites an error of html/template. files has the paths of the templates.
func contextError(files map[string]string, bad *htmltemplate.Error) error {
	name, _, _ := strings.Cut(bad.Name, "$htmltemplate") // html/template names a copy for another context so
	reason, _, _ := strings.Cut(bad.Description, ": {")  // the state of its parser
	return &ContextError{Path: files[name], Line: max(bad.Line, 1), Reason: reason}
}

func parseCure(msg string) string {
	switch {
	case strings.Contains(msg, "not defined"):
		return "use one of " + strings.Join(FuncNames(), ", ")
	case strings.Contains(msg, "undefined variable"):
		return "declare it before with {{ $x := ... }}"
	case strings.Contains(msg, "unexpected EOF"):
		return "close every {{if}}, {{range}}, {{with}} and {{define}} with {{end}}"
	case strings.Contains(msg, "unexpected {{end}}"), strings.Contains(msg, "unexpected {{else}}"):
		return "remove it, or open an {{if}}, {{range}} or {{with}} before it"
	default:
		return `close every {{ with }} and write text in double quotes, as in {{ date "2006-01-02" .Event.CreatedAt }}`
	}
}

// where finds the place in the text of an execution error:
// `template: NAME:LINE:COL: executing "NAME" at <.Payload.x>: REASON`.
func where() *regexp.Regexp {
	return regexp.MustCompile(`(?s)^template: (.*?):(\d+):\d+: executing .*? at <(.*?)>: (.*)$`)
}

// execError names the template, or the file that it calls, and the field. It keeps only reasons that quote no value.
func execError(name string, err error) error {
	var own *funcError
	isOwn := errors.As(err, &own)

	var exec texttemplate.ExecError
	if !errors.As(err, &exec) {
		if isOwn {
			return fmt.Errorf("template %q: %w", name, own)
		}
		return fmt.Errorf("template %q cannot be executed", name)
	}

	m := where().FindStringSubmatch(exec.Err.Error())
	if m == nil {
		if isOwn {
			return fmt.Errorf("template %q: %w", name, own)
		}
		return fmt.Errorf("template %q cannot be executed", name)
	}

	file := m[1]
	line := m[2]
	node := m[3]
	reason := m[4]

	if isOwn && own.at != "" {
		node = own.at
	}

	if isOwn {
		return fmt.Errorf("template %q, line %s, at {{ %s }}: %w", file, line, node, own)
	}

	return fmt.Errorf("template %q, line %s, at {{ %s }}: %s", file, line, node, execReason(reason))
}

func execReason(reason string) string {
	switch {
	case strings.HasPrefix(reason, "map has no entry for key"):
		return "the event has no such field: fix the event, or use get and default for a field that may be absent"
	case strings.Contains(reason, "nil pointer evaluating"), strings.Contains(reason, "nil data"):
		return "the field above it is null or absent: fix the event, or use get and default for a field that may be absent"
	case strings.HasPrefix(reason, "can't evaluate field"):
		return "the value above it is not an object with that field"
	case strings.HasPrefix(reason, "range can't iterate over"):
		return "the value is not a list or an object"
	case strings.HasPrefix(reason, "wrong type for value"), strings.HasPrefix(reason, "error calling eq"),
		strings.HasPrefix(reason, "error calling lt"), strings.HasPrefix(reason, "error calling gt"),
		strings.HasPrefix(reason, "error calling le"), strings.HasPrefix(reason, "error calling ge"),
		strings.HasPrefix(reason, "error calling ne"):
		return "the value has the wrong type: for a number from the payload use int"
	default:
		return "the value does not fit what the template does with it"
	}
}
