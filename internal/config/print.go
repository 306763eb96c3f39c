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

	"github.com/notifyd/notifyd/internal/secret"
)

// Print writes the effective configuration as YAML: the settings of the file, and
// the defaults for the rest. Secrets, and the password of a connection string,
// are replaced by [secret.Redacted]. A text that was expanded is printed
// unexpanded, "${env:NAME}", because it may be a secret as well.
func Print(w io.Writer, c *Config) error {
	p := printer{origins: *c.origins}
	root := mapping()
	for _, s := range settingsOf(reflect.ValueOf(c).Elem()) {
		if s.name == "destinations" {
			add(root, s.name, p.destinations(c.Destinations))
			continue
		}
		add(root, s.name, p.encode(s.targets[0], s.name))
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
		fields := settingsOf(reflect.ValueOf(&dest.Lane).Elem(), reflect.Indirect(reflect.ValueOf(dest.Settings)))
		for _, s := range fields {
			add(one, s.name, p.encode(s.targets[0], join(path, s.name)))
		}
		add(m, dest.Name, one)
	}
	return m
}

// encode returns the node for v, the setting at path; nil if v is nil.
func (p printer) encode(v reflect.Value, path string) *yaml.Node {
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
			add(m, s.name, p.encode(s.targets[0], join(path, s.name)))
		}
		return m
	case k == reflect.Map:
		return p.encodeMap(v, path)
	case k == reflect.Slice:
		list := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Style: yaml.FlowStyle}
		for i := range v.Len() {
			n := p.encode(v.Index(i), fmt.Sprintf("%s.%d", path, i))
			if n == nil {
				n = bare("null") // without it the others would move
			}
			if n.Kind != yaml.ScalarNode {
				list.Style = 0
			}
			list.Content = append(list.Content, n)
		}
		return list
	case k == reflect.String:
		return text(p.visible(v.String(), path))
	default:
		return bare(fmt.Sprint(v.Interface()))
	}
}

func (p printer) encodeMap(v reflect.Value, path string) *yaml.Node {
	m := mapping()
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	for _, k := range keys {
		add(m, k.String(), p.encode(v.MapIndex(k), join(path, k.String())))
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
	case secret.String:
		if p.reveal {
			return text(value.Reveal())
		}
		if path == "database.url" || path == "database.listen_url" {
			return text(escape(redactConnection(value.Reveal())))
		}
		return text(value.String())
	case float64:
		return bare(strconv.FormatFloat(value, 'g', -1, 64))
	case encoding.TextMarshaler:
		b, err := value.MarshalText()
		if err != nil {
			return text("")
		}
		return text(p.visible(string(b), path))
	default:
		return nil
	}
}

// visible returns the text in the file of an expanded value. A single string in
// place of a list is recorded under the path of the list.
func (p printer) visible(s, path string) string {
	if p.reveal {
		return s
	}
	if raw, ok := p.origins[path]; ok {
		return redactURL(raw)
	}
	if list, ok := strings.CutSuffix(path, ".0"); ok && p.origins[list] != "" {
		return redactURL(p.origins[list])
	}
	return redactURL(escape(s))
}

// escape ensures that reading the file again does not expand s.
func escape(s string) string {
	if strings.Contains(s, "${") || strings.Contains(s, "$$") {
		return strings.ReplaceAll(s, "$", "$$")
	}
	return s
}
