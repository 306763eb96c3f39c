package config

import (
	"reflect"
	"slices"

	yaml "go.yaml.in/yaml/v4"
)

// part is the part of a file that is read; the rest is dropped before any expansion.
// The zero value is the whole file.
type part struct {
	// keys are the top-level keys that are read; nil for all.
	keys []string
	// names keeps only type and order settings of each destination.
	names bool
	// url, if there is one, takes the place of the connection strings, which are dropped.
	url string
}

func databasePart(url string) part {
	return part{keys: []string{"version", "database", "retention", "outboxes"}, url: url}
}

func routesPart(url string) part {
	keys := []string{"version", "database", "retention", "destinations", "routes", "admin", "outboxes"}
	return part{keys: keys, names: true, url: url}
}

// leavesOut reports whether the part is without a key of the top level.
func (p part) leavesOut(key string) bool { return p.keys != nil && !slices.Contains(p.keys, key) }

// maxMerges bounds the merge keys that are followed into one another: a mapping may
// merge itself, which is reported later.
const maxMerges = 10

// of returns the part of a file's root. A key that does not exist stays, and is a mistake: it may be
// one of the part, misspelt.
func (p part) of(root *yaml.Node) *yaml.Node {
	var known []string
	for _, s := range settingsOf(reflect.ValueOf(&Config{}).Elem()) {
		known = append(known, s.name)
	}

	return rewrite(root, 0, func(key string, value *yaml.Node) *yaml.Node {
		switch {
		case p.keys != nil && slices.Contains(known, key) && !slices.Contains(p.keys, key):
			return nil
		case key == "database" && p.url != "":
			return rewrite(value, 0, func(key string, value *yaml.Node) *yaml.Node {
				if key == "url" || key == "listen_url" {
					return nil
				}
				return value
			})
		case key == "destinations" && p.names:
			return rewrite(value, 0, func(_ string, value *yaml.Node) *yaml.Node { return rewrite(value, 0, nameOnly) })
		}
		return value
	})
}

func nameOnly(key string, value *yaml.Node) *yaml.Node {
	if slices.Contains([]string{"type", "order", "on_dead"}, key) {
		return value
	}
	return nil
}

// rewrite returns a copy of a mapping with its values replaced by f, those of merged
// mappings included; nil drops the key. The original stays for other aliases.
func rewrite(y *yaml.Node, depth int, f func(key string, value *yaml.Node) *yaml.Node) *yaml.Node {
	if y.Kind == yaml.AliasNode {
		y = y.Alias
	}

	if y.Kind != yaml.MappingNode || depth > maxMerges {
		return y
	}

	result := *y
	result.Content = nil
	for i := 0; i+1 < len(y.Content); i += 2 {
		key := y.Content[i]
		value := y.Content[i+1]
		if key.ShortTag() == "!!merge" {
			value = rewriteMerged(value, depth+1, f)
		} else {
			value = f(key.Value, value)
		}

		if value != nil {
			result.Content = append(result.Content, key, value)
		}
	}

	return &result
}

// rewriteMerged rewrites the mapping, or the mappings, in the value of a "<<".
func rewriteMerged(y *yaml.Node, depth int, f func(key string, value *yaml.Node) *yaml.Node) *yaml.Node {
	if y.Kind == yaml.AliasNode {
		y = y.Alias
	}

	if y.Kind != yaml.SequenceNode {
		return rewrite(y, depth, f)
	}

	result := *y
	result.Content = nil
	for _, item := range y.Content {
		result.Content = append(result.Content, rewrite(item, depth, f))
	}

	return &result
}
