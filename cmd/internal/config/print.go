package config

import (
	"encoding"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v4"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

// Print writes the effective configuration as YAML: the settings of the file, and
// the defaults for the rest, so that reading it again yields the same. A text that was
// expanded is printed unexpanded, "${env:NAME}", because it may be a secret. In place of
// a secret that the file holds itself, and of an apparent one in a URL or in a header,
// "${redacted}" is printed; reading that again is a mistake.
func Print(w io.Writer, c *Config) error {
	p := printer{origins: *c.origins}
	root := mapping()
	for _, s := range settingsOf(reflect.ValueOf(c).Elem()) {
		if s.name == "destinations" {
			add(root, s.name, p.destinations(c.Destinations))
			continue
		}
		add(root, s.name, p.setting(s, ""))
	}

	out, err := yaml.Dump(root, yaml.WithIndent(2), yaml.WithLineWidth(-1))
	if err != nil {
		return fmt.Errorf("config: print: %w", err)
	}

	_, err = w.Write(out)
	return err
}

// printer converts values to nodes; with reveal the nodes hold the effective
// values, which are for comparison and never shown.
type printer struct {
	origins origins
	reveal  bool
}

func mapping() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"} }

func text(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }

// bare is a scalar whose tag follows from its text.
func bare(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }

// add appends a key to a mapping. An absent value leaves the key out.
func add(m *yaml.Node, key string, value *yaml.Node) {
	if value != nil {
		m.Content = append(m.Content, text(key), value)
	}
}

func (p printer) destinations(all Destinations) *yaml.Node {
	m := mapping()
	for _, dest := range all {
		path := "destinations." + dest.Name
		one := mapping()
		add(one, "type", text(dest.Type))
		for _, s := range dest.effective() {
			add(one, s.name, p.setting(s, path))
		}

		add(m, dest.Name, one)
	}

	return m
}

// effective lists the settings of a destination with their defaults.
func (d *Destination) effective() []setting {
	settings := d.Settings
	if e, ok := settings.(Effective); ok {
		settings = e.Effective()
	}
	return settingsOf(reflect.ValueOf(&d.Lane).Elem(), reflect.Indirect(reflect.ValueOf(settings)))
}

// setting returns the node for a setting in the mapping at path; nil if it is not set, or if
// it is empty and has a list of allowed words, or is left out where it is not set.
func (p printer) setting(s setting, path string) *yaml.Node {
	v := s.targets[0]
	isWord := len(s.rule.Enum) > 0 && v.Kind() == reflect.String
	if (s.rule.IfSet || isWord) && v.IsZero() {
		return nil
	}

	if o, is := reflect.TypeAssert[Outboxes](v); is && !o.Used() {
		return nil
	}

	if s.rule.Short != "" {
		return p.encodeShort(v, s.rule, join(path, s.name))
	}
	return p.encode(v, join(path, s.name))
}

// encodeShort returns the node for a struct, the setting at path: the scalar that stands for it, if only the field of the key
// r.Short is set.
func (p printer) encodeShort(v reflect.Value, r field.Rule, path string) *yaml.Node {
	all := settingsOf(v)
	if !slices.ContainsFunc(all, func(s setting) bool { return s.name != r.Short && !s.targets[0].IsZero() }) {
		return p.encode(settingOf(all, r.Short).targets[0], path)
	}

	m := p.encode(v, path)
	m.Style = yaml.FlowStyle
	return m
}

// encode returns the node for v, the setting at path; nil if v is nil.
func (p printer) encode(v reflect.Value, path string) *yaml.Node {
	if !v.IsValid() { // nil in a map of anything
		return nil
	}

	if v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v.IsNil() {
			return nil
		}
		return p.encode(v.Elem(), path)
	}

	special := p.encodeSpecial(v, path)
	switch k := v.Kind(); {
	case special != nil:
		return special
	case k == reflect.Struct:
		m := mapping()
		for _, s := range settingsOf(v) {
			add(m, s.name, p.setting(s, path))
		}
		return m
	case k == reflect.Map:
		return p.encodeMap(v, path)
	case k == reflect.Slice:
		return p.encodeList(v, path)
	case k == reflect.String:
		return text(p.visible(v.String(), path, redactText))
	default:
		return bare(fmt.Sprint(v.Interface()))
	}
}

func (p printer) encodeList(v reflect.Value, path string) *yaml.Node {
	list := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Style: yaml.FlowStyle}
	for i := range v.Len() {
		n := p.encode(v.Index(i), fmt.Sprintf("%s.%d", path, i))
		if n == nil {
			n = bare("null") // without it the other elements would move
		}
		if n.Kind != yaml.ScalarNode {
			list.Style = 0
		}
		list.Content = append(list.Content, n)
	}
	return list
}

func (p printer) encodeMap(v reflect.Value, path string) *yaml.Node {
	m := mapping()
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })

	for _, k := range keys {
		at := join(path, k.String())
		value := v.MapIndex(k)
		if value.Kind() == reflect.Interface {
			value = value.Elem()
		}
		if value.Kind() == reflect.String { // a header, or the argument of a queue
			shown := p.visible(value.String(), at, func(s string) string { return redactNamed(k.String(), s) })
			add(m, k.String(), text(shown))
			continue
		}
		add(m, k.String(), p.encode(value, at))
	}
	return m
}

// encodeSpecial handles the types that are not encoded by their kind.
func (p printer) encodeSpecial(v reflect.Value, path string) *yaml.Node {
	switch value := v.Interface().(type) {
	case time.Duration:
		if value == 0 {
			return bare("0")
		}
		return text(formatDuration(value))
	case handlers.Secret:
		if isConnection(path) {
			return text(p.visible(value.Reveal(), path, redactConnection))
		}
		return text(p.visible(value.Reveal(), path, redactSecret))
	case float64:
		return bare(strconv.FormatFloat(value, 'g', -1, 64))
	case encoding.TextMarshaler:
		b, err := value.MarshalText()
		if err != nil {
			return text("")
		}
		return text(p.visible(string(b), path, redactText))
	default:
		return nil
	}
}

// isConnection reports whether the setting at a path is a connection string.
func isConnection(path string) bool {
	last := path[strings.LastIndexByte(path, '.')+1:]
	isURL := last == "url" || last == "listen_url"
	return strings.HasPrefix(path, "database.") || strings.HasPrefix(path, "outboxes.") && isURL
}

// visible returns the printable form of a text: the file's own where it was expanded,
// and without the parts that f takes for secrets.
func (p printer) visible(s, path string, f func(string) string) string {
	if p.reveal {
		return s
	}
	if raw, ok := p.origin(path); ok {
		return redact(raw, f)
	}
	return redact(escape(s), f)
}

// origin returns the text in the file of an expanded value. A single string in place of
// a list is recorded under the path of the list.
func (p printer) origin(path string) (string, bool) {
	raw, ok := p.origins[path]
	if list, isFirst := strings.CutSuffix(path, ".0"); !ok && isFirst {
		raw, ok = p.origins[list]
	}
	return raw, ok
}

// escape ensures that reading the file again does not expand s.
func escape(s string) string {
	if strings.Contains(s, "${") || strings.Contains(s, "$$") || shellVariable(s) {
		return strings.ReplaceAll(s, "$", "$$")
	}
	return s
}
