package tmpl

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/template/parse"
)

// prepare checks the parsed trees of one part. It changes them so that each printed value goes through present,
// and so that the limitWriter counts each iteration of a loop. With marks, a mark stands in front of each action.
func prepare(part Part, trees map[string]*parse.Tree, marks bool) error {
	for _, sub := range slices.Sorted(maps.Keys(trees)) {
		tree := trees[sub]
		isMain := sub == part.Name && !part.Inner
		w := walker{template: part.Path, tree: tree, main: isMain, root: isMain, marks: marks}
		w.list(tree.Root)
		if w.err != nil {
			return w.err
		}
		tick(tree.Root)
	}
	return nil
}

// tick puts an empty text in front of a list. The text prints nothing, but calls Write, which counts the steps.
func tick(l *parse.ListNode) {
	l.Nodes = slices.Insert(l.Nodes, 0, parse.Node(&parse.TextNode{NodeType: parse.NodeText, Pos: l.Pos}))
}

type walker struct {
	template string
	tree     *parse.Tree
	main     bool // whether $ is the Data
	root     bool // whether dot is the Data
	marks    bool
	err      error
}

func (w *walker) list(l *parse.ListNode) {
	if l == nil {
		return
	}

	nodes := l.Nodes
	if w.marks {
		l.Nodes = nil
	}

	for _, n := range nodes {
		w.node(n)
		if w.marks && n.Type() != parse.NodeText {
			l.Nodes = append(l.Nodes, &parse.TextNode{NodeType: parse.NodeText, Pos: n.Position(), Text: []byte(mark)})
		}

		if w.marks {
			l.Nodes = append(l.Nodes, n)
		}
	}
}

func (w *walker) node(n parse.Node) {
	switch n := n.(type) {
	case *parse.ActionNode:
		w.pipe(n.Pipe)
		if len(n.Pipe.Decl) == 0 {
			// {{ .x }} becomes {{ .x | present ".x" false }}.
			written := n.Pipe.String()
			n.Pipe.Cmds = append(n.Pipe.Cmds, &parse.CommandNode{NodeType: parse.NodeCommand, Pos: n.Pos, Args: []parse.Node{
				parse.NewIdentifier(presentFunc).SetPos(n.Pos),
				&parse.StringNode{NodeType: parse.NodeString, Pos: n.Pos, Quoted: strconv.Quote(written), Text: written},
				&parse.BoolNode{NodeType: parse.NodeBool, Pos: n.Pos, True: w.readsTypeOnly(n.Pipe)},
			}})
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
				w.field(a)
			}
		}
	}
}

// readsTypeOnly reports whether a pipeline reads nothing of the event but its type.
func (w *walker) readsTypeOnly(p *parse.PipeNode) bool {
	isType := func(path []string) bool { return slices.Equal(path, []string{"Event", "Type"}) }

	for _, c := range p.Cmds {
		for _, a := range c.Args {
			ok := true
			switch a := a.(type) {
			case *parse.PipeNode:
				ok = w.readsTypeOnly(a)
			case *parse.FieldNode:
				ok = w.root && isType(a.Ident)
			case *parse.VariableNode:
				ok = w.main && a.Ident[0] == "$" && isType(a.Ident[1:])
			case *parse.DotNode, *parse.ChainNode:
				ok = false
			}
			if !ok {
				return false
			}
		}
	}

	return true
}

// field refuses a path that cannot exist for any event.
func (w *walker) field(n *parse.FieldNode) {
	path := n.Ident
	if !w.root || w.err != nil || len(path) == 0 {
		return
	}

	top := []string{"Event", "Payload", "Headers"}
	event := []string{
		"ID", "Type", "AggregateType", "AggregateID", "CreatedAt", "Attempt", "Replay", "DedupeID", "Destination", "Outbox", "DeadLetter",
	}

	switch {
	case !slices.Contains(top, path[0]):
		w.err = fmt.Errorf("template %q, line %d: there is no .%s: a template has .Event, .Payload and .Headers",
			w.template, w.lineOf(n), path[0])
	case path[0] == "Event" && len(path) > 1 && !slices.Contains(event, path[1]):
		w.err = fmt.Errorf("template %q, line %d: there is no .Event.%s: an event has %s",
			w.template, w.lineOf(n), path[1], strings.Join(event, ", "))
	}
}

// lineOf returns the line of a node, which package parse tells in a text alone: NAME:LINE:COLUMN.
func (w *walker) lineOf(n parse.Node) int {
	place, _ := w.tree.ErrorContext(n)
	parts := strings.Split(place, ":")
	if len(parts) < 3 {
		return 1
	}
	line, err := strconv.Atoi(parts[len(parts)-2])
	if err != nil {
		return 1
	}
	return line
}

// refuseRecursion refuses templates that call themselves: text/template would
// follow them 100,000 levels deep.
func refuseRecursion(trees map[string]*parse.Tree, files map[string]string) error {
	const (
		open = 1 + iota
		closed
	)

	state := make(map[string]int)
	var visit func(sub string) error
	visit = func(sub string) error {
		tree := trees[sub]
		if state[sub] == closed || tree == nil {
			return nil
		}

		state[sub] = open
		for _, call := range calls(tree.Root, nil) {
			if state[call.Name] == open {
				return fmt.Errorf("template %q, line %d: %q calls itself: use {{range}} for a list", files[sub], call.Line, call.Name)
			}
			if err := visit(call.Name); err != nil {
				return err
			}
		}

		state[sub] = closed
		return nil
	}

	for _, sub := range slices.Sorted(maps.Keys(trees)) {
		if err := visit(sub); err != nil {
			return err
		}
	}

	return nil
}

// calls appends the calls of templates in l.
func calls(l *parse.ListNode, found []*parse.TemplateNode) []*parse.TemplateNode {
	if l == nil {
		return found
	}

	for _, n := range l.Nodes {
		switch n := n.(type) {
		case *parse.TemplateNode:
			found = append(found, n)
		case *parse.IfNode:
			found = calls(n.ElseList, calls(n.List, found))
		case *parse.WithNode:
			found = calls(n.ElseList, calls(n.List, found))
		case *parse.RangeNode:
			found = calls(n.ElseList, calls(n.List, found))
		}
	}

	return found
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
