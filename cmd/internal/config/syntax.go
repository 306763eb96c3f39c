package config

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v4"
)

// quote quotes text of the file for a message, shortened if it is long.
func quote(s string) string {
	const long = 60
	if r := []rune(s); len(r) > long {
		s = string(r[:long]) + "..."
	}
	return strconv.Quote(s)
}

// addSyntaxError records a syntax error of the YAML library.
func addSyntaxError(list *mistakes, data []byte, err error) {
	var all *yaml.LoadErrors
	if errors.As(err, &all) && len(all.Errors) > 0 {
		for _, e := range all.Errors {
			addSyntaxError(list, data, e)
		}
		return
	}

	var one *yaml.LoadError
	if !errors.As(err, &one) {
		list.add(pos{1, 1}, "", "not valid YAML")
		return
	}

	at := pos{one.Mark.Line, one.Mark.Column}
	if at.line < 1 || at.col < 1 {
		at = offset(data, one.Mark.Index)
	}

	list.add(at, "", "not valid YAML: %s%s", syntaxMessage(one), syntaxHint(data, at, one))
}

// offset returns the position of a byte.
func offset(data []byte, index int) pos {
	before := data[:min(max(index, 0), len(data))]
	return pos{bytes.Count(before, []byte("\n")) + 1, len(before) - (bytes.LastIndexByte(before, '\n') + 1) + 1}
}

// syntaxMessage returns the library's message, unless it repeats text of the
// file: an unquoted password that starts with * is "an unknown anchor".
func syntaxMessage(e *yaml.LoadError) string {
	if strings.HasPrefix(e.Message, "unknown anchor") || strings.Contains(e.ContextMsg, "scanning an alias") {
		return `this alias has no anchor (text that starts with * must be in quotes, such as "*")`
	}

	message := e.Message
	if strings.ContainsAny(message, "\"`") {
		message = "cannot be read"
	}

	if e.ContextMsg != "" {
		message += " " + e.ContextMsg
		if e.ContextMark.Line > 0 && e.ContextMark.Line != e.Mark.Line {
			message += " that starts on line " + strconv.Itoa(e.ContextMark.Line)
		}
	}

	return message
}

// quoteTemplate is the cure of a template that YAML takes for a mapping.
const quoteTemplate = `a template must be in quotes: "{{ ... }}"`

var (
	bareTemplate = regexp.MustCompile(`(?:[:,\[-]\s*|^\s*)\{\{`)
	twoColons    = regexp.MustCompile(`:\s.*:(?:\s|$)`)
)

// syntaxHint names the usual reason for the error, by the line and the character at the
// position.
func syntaxHint(data []byte, at pos, e *yaml.LoadError) string {
	lines := bytes.Split(data, []byte("\n"))
	if at.line > len(lines) {
		return ""
	}

	line := lines[at.line-1]
	switch {
	case bareTemplate.Match(line):
		return " (" + quoteTemplate + ")"
	case strings.Contains(e.Message, "mapping values are not allowed") && twoColons.Match(line):
		return " (text with a colon and a space in it must be in quotes)"
	case strings.Contains(e.Message, "did not find expected key") && strings.Contains(e.ContextMsg, "block mapping"):
		return fmt.Sprintf(" (check the indentation: the keys of one mapping begin in one column, here in column %d)", e.ContextMark.Column)
	case strings.Contains(e.Message, "mapping values are not allowed"):
		return " (is the line before it indented otherwise, or a quote missing?)"
	}

	if at.col > len(line) {
		return ""
	}

	switch line[at.col-1] {
	case '\t':
		return " (indent with spaces, not with tabs)"
	case '@', '`', '%':
		return " (text that starts with this character must be in quotes)"
	case '{', '}':
		if bytes.Contains(line, []byte("${")) {
			return " (inside { } and [ ], put ${...} in quotes)"
		}
	}
	return ""
}
