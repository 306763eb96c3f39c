package tmpl

import (
	"errors"
	"fmt"
	htmltemplate "html/template"
	"maps"
	"slices"
	"strings"
	texttemplate "text/template"
	"text/template/parse"
	"time"
)

// Part is the text of a template that others can call by its name.
type Part struct {
	// Name is what {{ template "name" . }} has.
	Name string
	// Path names the text in errors: the path of its file or its setting.
	Path string
	Text string
	// Inner is true if its dot may be another value than the [Data].
	Inner bool
}

// Set describes templates that call each other.
type Set struct {
	Kind Kind
	// Find returns the part with a name that a template calls and no {{ define }} has. It may be nil.
	Find func(name string) (Part, bool)
	// Cure ends the error about a name that does not exist. {{ define }} in the same text is the default.
	Cure string

	levels Levels // "" for the rule of Kind
}

// rule returns the rule for printed values.
func (s Set) rule() rule {
	if s.levels != "" {
		return rule{refused: string(s.levels), cure: oneLevel}
	}
	return s.Kind.rule()
}

// funcs returns the functions of the templates.
func (s Set) funcs(now *current) map[string]any { return funcs(s.Kind, s.rule(), now) }

// parseOne parses a template that calls no other part.
func (s Set) parseOne(name, text string) (*Template, error) {
	if s.rule().segments && strings.Contains(text, mark) {
		return nil, fmt.Errorf("template %q holds a NUL: remove it", name)
	}
	return s.Parse(Part{Name: name, Path: name, Text: text})
}

// Parse parses the first part, which [Template.Render] executes, and all that it calls. A {{ define }} of a further part
// replaces that of the first one: so a page fills the blocks of a layout. The error joins the mistakes of all parts.
func (s Set) Parse(first Part, further ...Part) (*Template, error) {
	p := &setParser{
		Set:    s,
		trees:  make(map[string]*parse.Tree),
		files:  make(map[string]string),
		called: make(map[string]bool),
	}

	p.add(first, false)
	for _, part := range further {
		p.add(part, true)
	}
	p.addCalled(first.Name)

	if len(p.errs) == 0 { // a part with a mistake may define what others call
		p.errs = p.unknown
	}
	if len(p.errs) == 0 {
		p.fail(refuseRecursion(p.trees, p.files))
	}
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}

	t := &Template{name: first.Path, text: first.Text, kind: s.Kind, constant: p.constant, calls: p.called}
	var err error
	if s.Kind == HTML {
		err = p.html(t, first.Name)
	} else {
		err = p.text(t, first.Name)
	}
	return t, err
}

// setParser collects the trees of a set and their mistakes.
type setParser struct {
	Set

	trees    map[string]*parse.Tree
	files    map[string]string // the paths of the parts that trees come from
	called   map[string]bool   // the names that the first part calls, directly or not
	constant bool              // whether the first part has no actions
	errs     []error
	unknown  []error // about calls
}

func (p *setParser) fail(err error) {
	if err != nil {
		p.errs = append(p.errs, err)
	}
}

// add parses a part. Its own text gets the name of the part, unless a {{ define }} within has that name, and the rest is
// empty.
func (p *setParser) add(part Part, replaces bool) {
	trees, err := p.treesOf(part)
	if err != nil {
		p.fail(err)
		return
	}

	if len(p.trees) == 0 {
		p.constant = isConstant(trees[part.Name])
	}

	for _, name := range slices.Sorted(maps.Keys(trees)) {
		other, taken := p.files[name]
		if taken && !replaces {
			p.fail(fmt.Errorf("template %q: %q is defined in %q too: rename one of them", part.Path, name, other))
			continue
		}
		if file, ok := p.find(name); ok && name != part.Name {
			p.fail(fmt.Errorf("template %q: {{define %q}} has the name of the file %q: rename one of them", part.Path, name, file.Path))
			continue
		}

		p.trees[name] = trees[name]
		p.files[name] = part.Path
	}
}

func (p *setParser) find(name string) (Part, bool) {
	if p.Find == nil {
		return Part{}, false
	}
	return p.Find(name)
}

// treesOf parses a part into the trees of its text and of each {{ define }}.
func (s Set) treesOf(part Part) (map[string]*parse.Tree, error) {
	t, err := texttemplate.New(part.Path).Funcs(s.funcs(new(current))).Parse(part.Text)
	if err != nil {
		return nil, parseError(part.Path, err)
	}

	trees := make(map[string]*parse.Tree)
	for _, sub := range t.Templates() {
		trees[sub.Name()] = sub.Tree
	}

	// The text gets the name of the part, unless it is empty and a {{ define }} has that name.
	own := t.Tree
	if own == nil {
		own = &parse.Tree{Name: part.Name, ParseName: part.Path, Root: &parse.ListNode{NodeType: parse.NodeList}}
	}
	if part.Path != part.Name {
		delete(trees, part.Path)
	}
	if trees[part.Name] == nil || !parse.IsEmptyTree(own.Root) {
		trees[part.Name] = own
	}

	return trees, prepare(part, trees, s.rule().segments)
}

// addCalled adds the parts that a template calls, directly or not, and reports calls that lead nowhere.
func (p *setParser) addCalled(from string) {
	tree := p.trees[from]
	if tree == nil {
		return // with a mistake
	}

	for _, node := range calls(tree.Root, nil) {
		if p.called[node.Name] {
			continue
		}
		p.called[node.Name] = true

		if p.trees[node.Name] == nil {
			part, ok := p.find(node.Name)
			if !ok {
				p.unknown = append(p.unknown, p.Unknown(Call{Path: p.files[from], Name: node.Name, Line: node.Line}))
				continue
			}
			p.add(part, false)
		}
		p.addCalled(node.Name)
	}
}

// Call is a place where a template calls another one.
type Call struct {
	Path string // of the part that calls
	Name string
	Line int
}

// Unknown is the error of a call without a template.
func (s Set) Unknown(c Call) error {
	cure := s.Cure
	if cure == "" {
		cure = fmt.Sprintf("write {{define %q}} before it", c.Name)
	}
	return fmt.Errorf("template %q, line %d: there is no template %q: %s", c.Path, c.Line, c.Name, cure)
}

// Inspect parses a part alone. It returns the names that the part defines, and its calls.
func (s Set) Inspect(part Part) (defined []string, called []Call, err error) {
	trees, err := s.treesOf(part)
	if err != nil {
		return nil, nil, err
	}

	defined = slices.Sorted(maps.Keys(trees))
	for _, name := range defined {
		for _, node := range calls(trees[name].Root, nil) {
			called = append(called, Call{Path: part.Path, Name: node.Name, Line: node.Line})
		}
	}
	return defined, called, nil
}

// text makes t executable.
func (p *setParser) text(t *Template, name string) error {
	now := new(current)
	root := texttemplate.New(name).Option("missingkey=error").Funcs(p.funcs(now))
	for _, called := range slices.Sorted(maps.Keys(p.trees)) {
		if _, err := root.AddParseTree(called, p.trees[called]); err != nil {
			return parseError(p.files[called], err)
		}
	}

	t.plain = &instance{exec: root.Execute, now: now}
	t.copy = func() (*instance, error) {
		one, err := root.Clone()
		if err != nil {
			return nil, err
		}
		now := new(current)
		return &instance{exec: one.Funcs(p.funcs(now)).Execute, now: now}, nil
	}
	return nil
}

// html makes t executable, and checks the context of each value. html/template checks a context when a template first runs.
// Afterwards it refuses to copy the template, so root never runs.
func (p *setParser) html(t *Template, name string) error {
	root := htmltemplate.New(name).Option("missingkey=error").Funcs(p.funcs(new(current)))
	for _, called := range slices.Sorted(maps.Keys(p.trees)) {
		if _, err := root.AddParseTree(called, p.trees[called]); err != nil {
			return parseError(p.files[called], err)
		}
	}

	t.copy = func() (*instance, error) {
		one, err := root.Clone()
		if err != nil {
			return nil, err
		}
		now := new(current)
		return &instance{exec: one.Funcs(p.funcs(now)).Execute, now: now}, nil
	}

	var err error
	t.plain, err = t.copy()
	if err != nil {
		return parseError(t.name, err)
	}

	err = t.plain.exec(&limitWriter{until: time.Now().Add(MaxTime)}, &Data{})
	if bad, ok := errors.AsType[*htmltemplate.Error](err); ok {
		return contextError(p.files, bad)
	}
	return nil
}
