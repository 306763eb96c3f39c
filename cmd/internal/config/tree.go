package config

import (
	"errors"
	"io"
	"strings"

	yaml "go.yaml.in/yaml/v4"
)

// maxValues bounds a file whose aliases multiply: the walk follows each of them.
const maxValues = 100_000

type kind int

const (
	kindNull kind = iota
	kindScalar
	kindList
	kindMap
	// kindBad is a value with a mistake that has been reported.
	kindBad
)

// node is a value of the file, with aliases and merge keys resolved and expansions done.
type node struct {
	kind kind
	// at is the position of the value, key that of its key. They are the same for
	// elements of a list.
	at, key pos
	tag     string // "!!str", "!!int" ..., for scalars
	text    string // scalars only
	// hidden is set if text came from an expansion: it may be a secret, so it
	// must not appear in a message. raw is then the text of the file.
	hidden  bool
	raw     string
	entries []entry // maps only, in the order of the file
	items   []*node // lists only
	size    int     // values inside, counting those behind aliases
}

type entry struct {
	name  string
	value *node
}

// get returns the value of a key, nil if it is missing.
func (n *node) get(name string) *node {
	for _, e := range n.entries {
		if e.name == name {
			return e.value
		}
	}
	return nil
}

// tree converts the YAML library's nodes.
type tree struct {
	list   *mistakes
	expand *expander
	done   map[*yaml.Node]*node
	// open holds the nodes being built, to recognise one that contains itself.
	open map[*yaml.Node]bool
}

// parseTree reads a part of the one document in data. It returns nil if a mistake
// left nothing to check.
func parseTree(data []byte, list *mistakes, expand *expander, p part) *node {
	root := parseDocument(data, list)
	if root == nil {
		return nil
	}

	root = p.of(root)
	t := &tree{list: list, expand: expand, done: map[*yaml.Node]*node{}, open: map[*yaml.Node]bool{}}
	return t.build(root, "")
}

// parseDocument returns the root of the one document in data, nil if a mistake
// left nothing to check.
func parseDocument(data []byte, list *mistakes) *yaml.Node {
	loader, err := yaml.NewLoader(strings.NewReader(string(data)))
	if err != nil {
		list.add(pos{1, 1}, "", "cannot be read: %v", err)
		return nil
	}

	var doc, second yaml.Node
	switch err := loader.Load(&doc); {
	case errors.Is(err, io.EOF):
		list.add(pos{1, 1}, "", `the file is empty: "notifyd config init" writes one to start from`)
		return nil
	case err != nil:
		addSyntaxError(list, data, err)
		return nil
	}

	switch err := loader.Load(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		addSyntaxError(list, data, err)
	default:
		list.add(position(&second), "", "a second document starts here: put everything in one, without ---")
	}

	if len(doc.Content) != 1 {
		list.add(pos{1, 1}, "", "the file holds no settings")
		return nil
	}
	return doc.Content[0]
}

// position returns the position of n; the library leaves some positions out.
func position(n *yaml.Node) pos { return pos{max(n.Line, 1), max(n.Column, 1)} }

// build returns the node for y, always a new one, so that the caller may set
// its key although its content may be shared.
func (t *tree) build(y *yaml.Node, path string) *node {
	if y.Kind == yaml.AliasNode {
		y = y.Alias
	}

	if t.open[y] {
		t.list.add(position(y), path, "the anchor contains itself%s: write the value out", in(path))
		return &node{kind: kindBad, at: position(y), key: position(y)}
	}

	if t.done[y] == nil {
		t.open[y] = true
		t.done[y] = t.construct(y, path)
		delete(t.open, y)
	}

	n := *t.done[y]
	return &n
}

func (t *tree) construct(y *yaml.Node, path string) *node {
	n := &node{at: position(y), key: position(y), tag: y.ShortTag(), size: 1}

	switch {
	case isTemplate(y):
		n.kind = kindBad
		t.list.add(n.at, path, "%s%s", prefix(path), quoteTemplate)
	case y.Kind == yaml.MappingNode && n.tag == "!!map":
		n.kind = kindMap
		t.fillMap(n, y, path)
	case y.Kind == yaml.SequenceNode && n.tag == "!!seq":
		n.kind = kindList
		for _, item := range y.Content {
			child := t.build(item, path)
			n.items = append(n.items, child)
			n.size += child.size
		}
	case y.Kind == yaml.ScalarNode && n.tag == "!!null":
		n.kind = kindNull
	case y.Kind == yaml.ScalarNode && plainTag(n.tag):
		n.kind = kindScalar
		t.fillScalar(n, y, path)
	default:
		n.kind = kindBad
		t.list.add(n.at, path, "YAML tags with an exclamation mark are not supported%s: remove the tag, or put the text in quotes",
			in(path))
	}

	if n.size > maxValues {
		t.list.add(n.at, path, "the aliases%s stand for more than %d values", in(path), maxValues)
		return &node{kind: kindBad, at: n.at, key: n.key, size: 1}
	}

	return n
}

// isTemplate reports whether a mapping is a template without quotes, as YAML reads one:
// the only key of {{ .Payload.x }} is a mapping.
func isTemplate(y *yaml.Node) bool {
	isFlow := y.Kind == yaml.MappingNode && y.Style&yaml.FlowStyle != 0
	if !isFlow || len(y.Content) != 2 {
		return false
	}
	return y.Content[0].Kind == yaml.MappingNode && y.Content[1].ShortTag() == "!!null"
}

// plainTag reports whether a scalar with this tag is text, a number or a
// boolean. A plain date counts as text.
func plainTag(tag string) bool {
	switch tag {
	case "!!str", "!!int", "!!float", "!!bool", "!!timestamp", "!!merge":
		return true
	default:
		return false
	}
}

func (t *tree) fillScalar(n *node, y *yaml.Node, path string) {
	n.text = y.Value
	if !strings.Contains(y.Value, "$") {
		return
	}

	if shellVariable(y.Value) {
		t.list.add(n.at, path, "%s%v", prefix(path), errShellVariable)
		n.kind = kindBad
		return
	}

	text, used, errs := t.expand.expand(y.Value)
	for _, err := range errs {
		t.list.add(n.at, path, "%s%v", prefix(path), err)
		n.kind = kindBad
	}

	n.text = text
	if used {
		n.hidden = true
		n.raw = y.Value
		n.tag = "!!str"
	}
}

// prefix returns "path: ", or "" for an empty path.
func prefix(path string) string {
	if path == "" {
		return ""
	}
	return path + ": "
}

// fillMap fills n.entries. A key of the mapping itself wins over a merged one,
// whatever their order, as YAML specifies.
func (t *tree) fillMap(n *node, y *yaml.Node, path string) {
	first := map[string]pos{}
	var merged []*node
	for i := 0; i+1 < len(y.Content); i += 2 {
		key := y.Content[i]
		value := y.Content[i+1]
		at := position(key)
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}

		if key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge" {
			merged = append(merged, t.mergeable(value, path)...)
			continue
		}
		if key.Kind != yaml.ScalarNode {
			t.list.add(at, path, "a key must be a name%s, not a list or a mapping", in(path))
			continue
		}

		if before, ok := first[key.Value]; ok {
			t.list.add(at, join(path, key.Value), "the key %s is there twice%s: the first is on line %d",
				showKey(key.Value), in(path), before.line)
			continue
		}

		first[key.Value] = at
		v := t.build(value, join(path, key.Value))
		v.key = at
		n.entries = append(n.entries, entry{key.Value, v})
		n.size += v.size
	}

	for _, m := range merged {
		for _, e := range m.entries {
			if _, ok := first[e.name]; !ok {
				first[e.name] = e.value.key
				n.entries = append(n.entries, e)
				n.size += e.value.size
			}
		}
	}
}

// mergeable returns the mappings in the value of a "<<".
func (t *tree) mergeable(y *yaml.Node, path string) []*node {
	n := t.build(y, path)
	all := []*node{n}
	if n.kind == kindList {
		all = n.items
	}

	for _, m := range all {
		if m.kind != kindMap && m.kind != kindBad {
			t.list.add(position(y), path, "<< merges a mapping%s, not %s", in(path), describe(m))
			return nil
		}
	}
	return all
}

// describe names the kind of a node without revealing its content.
func describe(n *node) string {
	switch {
	case n.kind == kindList:
		return "a list"
	case n.kind == kindMap:
		return "a mapping"
	case n.kind == kindNull:
		return "nothing"
	case n.tag == "!!int", n.tag == "!!float":
		return "a number"
	case n.tag == "!!bool":
		return "true or false"
	default:
		return "text"
	}
}

// showKey quotes a key for a message. Of "password:hunter2", where only a space
// is missing, it shows what precedes the colon: the rest may be a secret.
func showKey(key string) string {
	if before, _, found := strings.Cut(key, ":"); found {
		return quote(before+":") + " (is a space missing after the colon?)"
	}
	return quote(key)
}
