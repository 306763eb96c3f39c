package config

import (
	"errors"
	"fmt"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/when"
)

// Filter is the condition of a route, compiled.
type Filter struct {
	expression *when.Expression
	shown      string // the text as the file has it, unexpanded
	expanded   bool   // the text may hold a secret
	match      string
	place      string // file, line and column
}

// Place returns where the route is: file, line and column of its match.
func (r *Route) Place() string { return r.place }

// Filter returns the condition of the route, or nil.
func (r *Route) Filter() *Filter { return r.filter }

// String returns the condition as it may be shown: as the file has it, unexpanded.
func (f *Filter) String() string { return f.shown }

// Match evaluates the condition: it is a delivery.Filter. An error names the route, its place in the
// file, the expression and the place in that, and repeats no value of the event.
func (f *Filter) Match(c *delivery.Candidate) (bool, error) {
	yes, err := f.expression.Match(c)
	if err == nil {
		return yes, nil
	}

	failure, ok := errors.AsType[*when.EvalError](err)
	if ok && f.expanded {
		err = fmt.Errorf("%s: %s", f.shown, failure.Text)
	}
	return false, fmt.Errorf("when of the route %q (%s): %w", f.match, f.place, err)
}

// compileFilters places routes, those of the list at this path, and compiles their conditions.
func (d *fileDecoder) compileFilters(root *node, routes []Route, at string) {
	for i := range routes {
		r := &routes[i]
		path := fmt.Sprintf("%s.%d.when", at, i)
		match := locate(root, fmt.Sprintf("%s.%d.match", at, i))
		r.place = fmt.Sprintf("%s:%d:%d", d.list.file, match.line, match.col)

		n := find(root, path)
		isEmpty := r.When == "" && !n.hidden
		if n.kind != kindScalar || d.list.explains(path) || isEmpty {
			continue // left out, or not a text; an expansion to nothing is a mistake
		}

		language, err := d.expressions()
		if err != nil {
			d.list.add(n.at, path, "%s: %v", path, err)
			return
		}

		x, err := language.Compile(r.When)
		if err != nil {
			if mistake, ok := errors.AsType[*when.CompileError](err); ok && n.hidden { // the text may hold a secret
				err = fmt.Errorf("the expanded value is no condition that notifyd understands (line %d, column %d)",
					mistake.Line, mistake.Column)
			}
			d.validate(field.Errorf(path, "%w", err), root, "")
			continue
		}

		shown := r.When
		if n.hidden {
			shown = n.raw
		}
		r.filter = &Filter{
			expression: x,
			shown:      oneLine(shown),
			expanded:   n.hidden,
			match:      r.Match,
			place:      fmt.Sprintf("%s:%d:%d", d.list.file, n.at.line, n.at.col),
		}
	}
}
