package when

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
)

// CompileError explains why an expression does not compile.
type CompileError struct {
	// Line and Column are the place in the expression, both from 1.
	Line, Column int
	// Text describes the mistake, and the cure if one is known.
	Text string
}

// Error returns "column 9: TEXT". It adds the line if that is not the first.
func (m *CompileError) Error() string { return place(m.Line, m.Column) + ": " + m.Text }

func place(line, column int) string {
	if line > 1 {
		return fmt.Sprintf("line %d, column %d", line, column)
	}
	return fmt.Sprintf("column %d", column)
}

// mistakeOf returns the first mistake in an expression. The others often follow from the first.
func mistakeOf(text string, all []*cel.Error) *CompileError {
	if strings.TrimSpace(text) == "" {
		empty := "the expression is empty: write a condition such as payload.total > 100, or leave when out"
		return &CompileError{Line: 1, Column: 1, Text: empty}
	}

	first := slices.MinFunc(all, func(a, b *cel.Error) int {
		byLine := cmp.Compare(a.Location.Line(), b.Location.Line())
		return cmp.Or(byLine, cmp.Compare(a.Location.Column(), b.Location.Column()))
	})

	return &CompileError{
		Line:   max(1, first.Location.Line()),
		Column: max(0, first.Location.Column()) + 1,
		Text:   explain(text, first.Message),
	}
}

// explain rewrites a message of the CEL compiler.
func explain(text, message string) string {
	message = oneLine(message)
	if name, ok := strings.CutPrefix(message, "undeclared reference to '"); ok {
		name, _, _ = strings.Cut(name, "'")
		return fmt.Sprintf("there is no %s: an expression has %s", name, strings.Join(names(), ", "))
	}

	if call, ok := strings.CutPrefix(message, "found no matching overload for '"); ok {
		call, args, _ := strings.Cut(call, "' applied to '")
		args = strings.TrimSuffix(args, "'")
		return fmt.Sprintf("%s does not go with %s: write a value of the right type, or convert one: int(...), double(...), string(...)",
			strings.Trim(call, "_@"), args)
	}

	if syntax, ok := strings.CutPrefix(message, "Syntax error: "); ok {
		return "it is not an expression: " + plain(syntax) + syntaxCure(text, syntax)
	}

	return message
}

// quotedInput matches the part of an expression that a syntax error of the compiler names.
var quotedInput = regexp.MustCompile(`^(mismatched input|no viable alternative at input|extraneous input|missing .* at|` +
	`token recognition error at:) '(.*?)'(?: expecting .*)?$`)

// plain says a syntax error of the compiler without the names of its grammar.
func plain(syntax string) string {
	m := quotedInput.FindStringSubmatch(syntax)
	switch {
	case m == nil:
		return syntax
	case strings.HasSuffix(m[2], "<EOF>"):
		return "it ends where something has to follow"
	case m[1] == "extraneous input":
		return fmt.Sprintf("%q is too much here", m[2])
	case m[1] == "token recognition error at:" && strings.ContainsAny(m[2][:1], "\"'"):
		return "a quote is not closed"
	case m[1] == "token recognition error at:":
		return fmt.Sprintf("%q is no operator", strings.TrimSpace(m[2]))
	default:
		return fmt.Sprintf("%q cannot stand here", m[2])
	}
}

// syntaxCure returns a hint for syntax of other languages.
func syntaxCure(text, syntax string) string {
	lower := " " + strings.ToLower(text) + " "
	switch {
	case strings.Contains(syntax, "token recognition error at: '= '") || strings.Contains(syntax, "token recognition error at: '='"):
		return ": write == for equal"
	case strings.Contains(lower, " and "), strings.Contains(lower, " or "), strings.Contains(lower, " not "):
		return ": write &&, || and ! for and, or and not"
	case strings.Contains(text, "{{"):
		return ": it is no template, write payload.name without braces"
	default:
		return ""
	}
}

// EvalError explains why an expression could not be evaluated for an event. It repeats no value of the event.
type EvalError struct {
	// Expression is the whole text, and Part is the part that failed.
	Expression, Part string
	// Line and Column are the place of the part in the expression, both from 1.
	Line, Column int
	// Text describes the mistake.
	Text string
}

// Error returns the expression, the place in it, and the mistake.
func (f *EvalError) Error() string {
	return fmt.Sprintf("%s: %s, at %s: %s", oneLine(f.Expression), place(f.Line, f.Column), oneLine(f.Part), f.Text)
}

// failure describes an error of an evaluation.
func (x *Expression) failure(err error) *EvalError {
	f := &EvalError{Expression: x.text, Part: x.text, Line: 1, Column: 1}

	if at, ok := errors.AsType[*types.Err](err); ok && at.NodeID() != 0 {
		info := x.tree.SourceInfo()
		l := info.GetStartLocation(at.NodeID())
		f.Line = max(1, l.Line())
		f.Column = max(0, l.Column()) + 1

		isPlace := func(e ast.NavigableExpr) bool { return e.ID() == at.NodeID() }
		for _, e := range ast.MatchDescendants(ast.NavigateAST(x.tree), isPlace) {
			if text, err := cel.ExprToString(e, info); err == nil {
				f.Part = text
			}
		}
	}

	f.Text = reason(err.Error(), f.Part)
	return f
}

// reason rewrites an error of CEL without repeating its text, which may hold a value.
func reason(text, part string) string {
	for _, known := range []string{errText, errBytes, errRead, errNested, errMatch, errSteps} {
		if strings.Contains(text, known) {
			return known
		}
	}

	switch {
	case strings.Contains(text, "no such key"):
		return fmt.Sprintf("the event has no such member: where it may be absent, write has(%s) && ... for a member, "+
			"or \"name\" in headers for a header", oneLine(part))
	case strings.Contains(text, "index out of bounds"):
		return "the list has no such element: ask for size(...) before"
	case strings.Contains(text, "no such overload"), strings.Contains(text, "no matching overload"):
		return "a value has another type than this needs, or is null: ask for it with type(...) before, or convert it"
	case strings.Contains(text, "cost limit"):
		return errSteps
	case strings.Contains(text, "division by zero"), strings.Contains(text, "modulus by zero"):
		return "it divides by zero"
	case strings.Contains(text, "overflow"):
		return "the result is out of range"
	default:
		return "a value cannot be converted, or has another form than this needs"
	}
}

func article(kind string) string {
	switch kind {
	case "int":
		return "an int"
	case "null_type", "null":
		return "null"
	default:
		return "a " + kind
	}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
