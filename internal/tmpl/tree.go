package tmpl

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/template/parse"
)

// prepare checks the parsed trees of one template. It changes them so that
// printing nothing is an error, and so that the limitWriter counts each iteration
// of a loop. The functions named in escapers are appended to every value.
func prepare(name string, trees map[string]*parse.Tree, escapers ...string) error {
	for sub, tree := range trees {
		if tree == nil || tree.Root == nil {
			continue
		}
		w := walker{template: name, root: sub == name, behind: append([]string{presentFunc}, escapers...)}
		w.list(tree.Root)
		if w.err != nil {
			return w.err
		}
		tick(tree.Root)
	}
	return refuseRecursion(name, trees)
}

// tick puts an empty text in front of a list. The text prints nothing, but calls Write, which counts the steps.
func tick(l *parse.ListNode) {
	l.Nodes = slices.Insert(l.Nodes, 0, parse.Node(&parse.TextNode{NodeType: parse.NodeText, Pos: l.Pos}))
}

type walker struct {
	template string
	root     bool     // whether dot and $ are the Data
	behind   []string // the functions appended to every value
	err      error
}

func (w *walker) list(l *parse.ListNode) {
	if l == nil {
		return
	}
	for _, n := range l.Nodes {
		w.node(n)
	}
}

func (w *walker) node(n parse.Node) {
	switch n := n.(type) {
	case *parse.ActionNode:
		w.pipe(n.Pipe)
		if len(n.Pipe.Decl) == 0 {
			// {{ .x }} becomes {{ .x | present }}.
			written := n.Pipe.String()
			for _, name := range w.behind {
				args := []parse.Node{parse.NewIdentifier(name).SetPos(n.Pos)}
				if name == presentFunc { // present's error names the expression
					args = append(args, &parse.StringNode{NodeType: parse.NodeString, Pos: n.Pos, Quoted: strconv.Quote(written), Text: written})
				}
				n.Pipe.Cmds = append(n.Pipe.Cmds, &parse.CommandNode{NodeType: parse.NodeCommand, Pos: n.Pos, Args: args})
			}
		}
	case *parse.IfNode:
		w.pipe(n.Pipe)
		w.list(n.List)
		w.list(n.ElseList)
	case *parse.WithNode:
		w.pipe(n.Pipe)
		w.inner(n.List)
		w.list(n.ElseList)
	case *parse.RangeNode:
		w.pipe(n.Pipe)
		w.inner(n.List)
		w.list(n.ElseList)
		tick(n.List)
	case *parse.TemplateNode:
		w.pipe(n.Pipe)
	}
}

// inner walks a list in which dot is not the Data.
func (w *walker) inner(l *parse.ListNode) {
	was := w.root
	w.root = false
	w.list(l)
	w.root = was
}

func (w *walker) pipe(p *parse.PipeNode) {
	if p == nil {
		return
	}
	for _, c := range p.Cmds {
		for _, a := range c.Args {
			switch a := a.(type) {
			case *parse.PipeNode:
				w.pipe(a)
			case *parse.FieldNode:
				w.field(a.Ident)
			}
		}
	}
}

// field refuses a path that cannot exist for any event.
func (w *walker) field(path []string) {
	if !w.root || w.err != nil || len(path) == 0 {
		return
	}
	top := []string{"Event", "Payload", "Headers"}
	event := []string{
		"ID", "Type", "AggregateType", "AggregateID", "CreatedAt", "Attempt", "Replay", "DedupeID", "Destination", "Outbox", "DeadLetter",
	}
	switch {
	case !slices.Contains(top, path[0]):
		w.err = fmt.Errorf("template %q: there is no .%s: a template has .Event, .Payload and .Headers",
			w.template, path[0])
	case path[0] == "Event" && len(path) > 1 && !slices.Contains(event, path[1]):
		w.err = fmt.Errorf("template %q: there is no .Event.%s: an event has %s",
			w.template, path[1], strings.Join(event, ", "))
	}
}

// refuseRecursion refuses templates that call themselves: text/template would
// follow them 100,000 levels deep.
func refuseRecursion(name string, trees map[string]*parse.Tree) error {
	const (
		open = 1 + iota
		closed
	)
	state := make(map[string]int)
	var visit func(sub string) error
	visit = func(sub string) error {
		if state[sub] == open {
			return fmt.Errorf("template %q: {{define %q}} calls itself: use {{range}} for a list", name, sub)
		}
		tree := trees[sub]
		if state[sub] == closed || tree == nil || tree.Root == nil {
			return nil
		}
		state[sub] = open
		for _, callee := range calls(tree.Root, nil) {
			if err := visit(callee); err != nil {
				return err
			}
		}
		state[sub] = closed
		return nil
	}
	for sub := range trees {
		if err := visit(sub); err != nil {
			return err
		}
	}
	return nil
}

// calls appends the names of the templates that l calls.
func calls(l *parse.ListNode, names []string) []string {
	if l == nil {
		return names
	}
	for _, n := range l.Nodes {
		switch n := n.(type) {
		case *parse.TemplateNode:
			names = append(names, n.Name)
		case *parse.IfNode:
			names = calls(n.ElseList, calls(n.List, names))
		case *parse.WithNode:
			names = calls(n.ElseList, calls(n.List, names))
		case *parse.RangeNode:
			names = calls(n.ElseList, calls(n.List, names))
		}
	}
	return names
}

// isConstant reports whether a tree consists of text only.
func isConstant(t *parse.Tree) bool {
	if t == nil || t.Root == nil {
		return true
	}
	return !slices.ContainsFunc(t.Root.Nodes, func(n parse.Node) bool {
		return n.Type() != parse.NodeText
	})
}
