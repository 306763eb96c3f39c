package config

import (
	"cmp"
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

// decoder walks the tree against Go values. A null keeps the default, as a
// missing key does.
type decoder struct {
	list    *mistakes
	expand  *expander
	origins *origins
}

// decode fills v, which can be set, with n, the value at path.
func (d *decoder) decode(n *node, v reflect.Value, r field.Rule, path string) {
	switch {
	case n.kind == kindBad:
		d.list.fail(path)
		return
	case n.kind == kindNull:
		return
	case n.hidden:
		(*d.origins)[path] = n.raw
	}

	if v.Kind() == reflect.Pointer {
		fresh := reflect.New(v.Type().Elem())
		d.decode(n, fresh.Elem(), r, path)
		v.Set(fresh)
		return
	}

	switch k := v.Kind(); {
	case d.decodeSpecial(n, v, r, path):
	case r.Short != "":
		d.decodeShort(n, settingsOf(v), r, path)
	case k == reflect.Struct:
		d.decodeStruct(n, path, settingsOf(v))
	case k == reflect.Slice:
		d.decodeList(n, v, r, path)
	case k == reflect.Map:
		d.decodeMap(n, v, path)
	case k == reflect.Interface:
		v.Set(reflect.ValueOf(d.plain(n, path)))
	default:
		d.decodeScalar(n, v, r, path)
	}
}

// decodeSpecial handles the types that decode themselves.
func (d *decoder) decodeSpecial(n *node, v reflect.Value, r field.Rule, path string) bool {
	switch target := v.Addr().Interface().(type) {
	case *delivery.Rate:
		d.decodeRate(n, target, path)
	case *time.Duration:
		d.decodeDuration(n, target, r, path)
	case *handlers.Secret:
		if text, ok := d.text(n, path); ok {
			*target = handlers.NewSecret(text)
			d.expand.keep(text)
		}
	case encoding.TextUnmarshaler:
		if n.kind != kindScalar && v.Kind() == reflect.Slice {
			return false
		}

		text, ok := d.text(n, path)
		if !ok {
			return true
		}
		if err := target.UnmarshalText([]byte(text)); err != nil {
			d.list.add(n.at, path, "%s: %s", path, d.scrub(err.Error()))
		}
	default:
		return false
	}

	return true
}

// scrub removes secret values from a message of other code.
func (d *decoder) scrub(message string) string { return scrub(message, "", d.expand.values) }

// decodeStruct fills fields from a mapping and reports the keys without a field.
func (d *decoder) decodeStruct(n *node, path string, fields []setting) {
	if n.kind != kindMap {
		d.wrong(n, path, "a mapping of keys and values")
		return
	}

	names := make([]string, len(fields))
	known := map[string]bool{}
	for i, f := range fields {
		names[i] = f.name
		known[f.name] = true

		value := n.get(f.name)
		if value == nil || value.kind == kindNull {
			if f.rule.Required {
				d.list.add(n.key, join(path, f.name), "the key %q is missing%s", f.name, in(path))
			}
			continue
		}

		for _, target := range f.targets {
			d.decode(value, target, f.rule, join(path, f.name))
		}
	}

	for _, e := range n.entries {
		if !known[e.name] {
			hint := cmp.Or(elsewhere(e.name, path), suggest(e.name, names))
			d.list.add(e.value.key, join(path, e.name), "unknown key %s%s%s", showKey(e.name), in(path), hint)
		}
	}
}

// decodeShort fills fields from a mapping, or the field of the key r.Short, which is a word, from a scalar. A mapping has one
// required key, whose text is not empty.
func (d *decoder) decodeShort(n *node, fields []setting, r field.Rule, path string) {
	short := settingOf(fields, r.Short)
	i := slices.IndexFunc(fields, func(s setting) bool { return s.rule.Required })
	required := fields[i]
	isWord := slices.Contains(short.rule.Enum, n.text) || didYouMean(n.text, short.rule.Enum) != ""
	isOtherText := n.tag == "!!str" && !n.hidden && !isWord

	switch {
	case n.kind == kindMap:
		fields[i].rule.Required = false // the message below has a cure
		d.decodeStruct(n, path, fields)

		at := join(path, required.name)
		if required.targets[0].IsZero() && !d.list.explains(at) {
			d.list.add(locate(n, required.name), at, "%s: missing: add the %s, or write %s: %s",
				at, required.rule.Kind, path[strings.LastIndexByte(path, '.')+1:], short.targets[0])
		}
	case n.kind != kindScalar:
		d.wrong(n, path, strings.Join(short.rule.Enum, ", ")+" or a mapping of keys and values")
	case isOtherText:
		d.list.add(n.at, path, "%s: %s is not one of %s: write {%s: %s} if it is the %s",
			path, show(n), strings.Join(short.rule.Enum, ", "), required.name, n.text, required.rule.Kind)
	default:
		d.decodeScalar(n, short.targets[0], short.rule, path)
	}
}

// decodeList fills a slice. One string stands for a list of it.
func (d *decoder) decodeList(n *node, v reflect.Value, r field.Rule, path string) {
	if n.kind == kindScalar && v.Type().Elem().Kind() == reflect.String {
		one := reflect.MakeSlice(v.Type(), 1, 1)
		d.decode(n, one.Index(0), r, path)
		v.Set(one)
		return
	}

	if n.kind != kindList {
		d.wrong(n, path, "a list")
		return
	}

	list := reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
	for i, item := range n.items {
		at := fmt.Sprintf("%s.%d", path, i)
		if item.kind == kindNull {
			d.list.add(item.at, at, "%s: an element of the list is empty", at)
			continue
		}
		d.decode(item, list.Index(i), r, at)
	}

	v.Set(list)
}

func (d *decoder) decodeMap(n *node, v reflect.Value, path string) {
	if n.kind != kindMap {
		d.wrong(n, path, "a mapping of names and values")
		return
	}

	m := reflect.MakeMapWithSize(v.Type(), len(n.entries))
	for _, e := range n.entries {
		value := reflect.New(v.Type().Elem()).Elem()
		d.decode(e.value, value, field.Rule{}, join(path, e.name))
		m.SetMapIndex(reflect.ValueOf(e.name).Convert(v.Type().Key()), value)
	}

	v.Set(m)
}

// plain returns n as the value that encoding/json would decode.
func (d *decoder) plain(n *node, path string) any {
	switch {
	case n.kind == kindList:
		list := make([]any, len(n.items))
		for i, item := range n.items {
			list[i] = d.plain(item, fmt.Sprintf("%s.%d", path, i))
		}
		return list
	case n.kind == kindMap:
		m := make(map[string]any, len(n.entries))
		for _, e := range n.entries {
			m[e.name] = d.plain(e.value, join(path, e.name))
		}
		return m
	case n.kind == kindScalar && n.hidden:
		(*d.origins)[path] = n.raw
		d.expand.keep(n.text)
		return n.text
	case n.kind == kindScalar:
		return plainScalar(n)
	default:
		return nil
	}
}

// wrong reports a value of the wrong kind.
func (d *decoder) wrong(n *node, path, want string) {
	if n.kind == kindBad {
		d.list.fail(path)
		return
	}

	where := prefix(path)
	if where == "" {
		where = "the file: "
	}

	d.list.add(n.at, path, "%sexpected %s, got %s", where, want, describe(n))
}
